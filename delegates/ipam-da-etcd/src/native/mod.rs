//! Our own layout: no other plugin reads or writes the same keys.

mod change;
pub(crate) mod key_format;
mod scan;
mod view;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};

use crate::etcd_ledger::{EntryVisitor, EtcdLedger};
use crate::outcome::commit_in_parts;
use crate::removal::remove;
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// A store of ours alone.
#[derive(Debug)]
pub(crate) struct NativeLedger(pub(crate) EtcdSession);

impl EtcdLedger for NativeLedger {
    fn is_strict(&self) -> bool {
        false
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: EtcdViewToken,
    ) -> Result<View<EtcdViewToken>> {
        view::view(&mut self.0, query, &earlier)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>> {
        commit_in_parts(token, change, |token, part| {
            change::change(&mut self.0, owner, token, part)
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        remove(&mut self.0, entries)
    }

    fn scan(&mut self, node: Option<&str>, each: EntryVisitor<'_>) -> Result<()> {
        scan::scan(&mut self.0, node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.0.ready()
    }

    fn accept(&mut self) -> Result<()> {
        let latest = self.0.read_latest_claim()?;
        self.0.accept(latest)
    }
}
