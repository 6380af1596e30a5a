//! Beside a replaced plugin that reads and writes the same keys: cni-ipam-etcd, or host-etcd.

mod additions;
mod call;
mod change;
mod key_format;
pub(crate) mod layouts;
mod lock_queue;
mod node_turn;
mod owner_hints;
mod owner_leases;
mod plugin_keys;
mod plugin_lock;
mod scan;
mod stretches;
mod view;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};
use ipam_kit::cni::{ContainerId, IfName};

pub(crate) use self::call::CompatLedger;
use crate::etcd_ledger::{EntryVisitor, EtcdLedger};
use crate::outcome::commit_in_parts;
use crate::removal::remove;
use crate::view_token::EtcdViewToken;

impl EtcdLedger for CompatLedger {
    /// Nothing may be given ahead of a plugin that takes what comes next unseen.
    fn is_strict(&self) -> bool {
        self.keys.overwrites
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: EtcdViewToken,
    ) -> Result<View<EtcdViewToken>> {
        self.retry_without_index(|ledger| view::view(ledger, query, &earlier))
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>> {
        self.retry_without_index(|ledger| {
            commit_in_parts(token, change, |token, part| change::change(ledger, owner, token, part))
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let removed = self.retry_without_index(|ledger| remove(&mut ledger.session, entries))?;
        for holder in removed.iter().filter_map(|entry| entry.holder.as_ref()) {
            // What stands in the store need not be a name that can be a file's.
            let ifname = holder.ifname.as_deref().map(IfName::parse);
            let container = ContainerId::parse(&holder.container);
            if let (Ok(container), Some(Ok(ifname))) = (container, ifname) {
                self.hints.forget_named(&container, self.session.keys.network(), &ifname);
            }
        }
        Ok(removed)
    }

    fn scan(&mut self, node: Option<&str>, each: EntryVisitor<'_>) -> Result<()> {
        scan::scan(self, node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.retry_without_index(|ledger| ledger.session.ready())?;
        if self.keys.overwrites {
            scan::warn_of_overwriting(self);
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let latest = self.retry_without_index(|ledger| ledger.session.read_latest_claim())?;
        self.session.accept(latest)
    }
}

impl Drop for CompatLedger {
    /// Releases the plugin's lock, however a call ends.
    fn drop(&mut self) {
        self.queue.end(&mut self.session.client);
    }
}
