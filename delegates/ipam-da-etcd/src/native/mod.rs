//! Our own layout: no other plugin reads or writes the same keys.

mod change;
mod scan;
pub(crate) mod spelling;
mod view;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};

use crate::house::{Each, House};
use crate::outcome::commit_in_parts;
use crate::removal::remove;
use crate::session::Session;
use crate::token::Token;

/// A store of ours alone.
#[derive(Debug)]
pub(crate) struct Native(pub(crate) Session);

impl House for Native {
    fn is_strict(&self) -> bool {
        false
    }

    fn view(&mut self, query: &ViewQuery<'_>, earlier: Token) -> Result<View<Token>> {
        view::view(&mut self.0, query, &earlier)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &Token,
        change: &Change<'_>,
    ) -> Result<Commit<Token>> {
        commit_in_parts(token, change, |token, part| {
            change::change(&mut self.0, owner, token, part)
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        remove(&mut self.0, entries)
    }

    fn scan(&mut self, node: Option<&str>, each: Each<'_>) -> Result<()> {
        scan::scan(&mut self.0, node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.0.ready()
    }

    fn accept(&mut self) -> Result<()> {
        let looked = self.0.look()?;
        self.0.accept(looked)
    }
}
