//! Our own layout: nobody else reads or writes the same keys.

mod change;
mod scan;
pub(crate) mod spelling;
mod view;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Question, View};

use crate::client::Answer;
use crate::house::{Each, House, Token};
use crate::outcome::in_parts;
use crate::removal::remove;
use crate::session::Session;

/// A store of ours alone.
#[derive(Debug)]
pub(crate) struct Native;

impl House for Native {
    fn view(
        &mut self,
        session: &mut Session,
        question: &Question<'_>,
        _: Option<Token>,
    ) -> Result<View<Token>> {
        view::view(session, question)
    }

    fn commit(
        &mut self,
        session: &mut Session,
        owner: &Owner,
        token: &Token,
        change: &Change<'_>,
    ) -> Result<Commit<Token>> {
        in_parts(&token.seen, change, |seen, part| change::change(session, owner, seen, part))
    }

    fn remove(&mut self, session: &mut Session, entries: &[Entry]) -> Result<Vec<Entry>> {
        remove(session, entries)
    }

    fn scan(&mut self, session: &mut Session, node: Option<&str>, each: Each<'_>) -> Result<()> {
        scan::scan(session, node, each)
    }

    fn ready(&mut self, session: &mut Session) -> Result<()> {
        session.ready()
    }

    fn look(&mut self, session: &mut Session) -> Result<(Answer, Option<i64>)> {
        session.look()
    }
}
