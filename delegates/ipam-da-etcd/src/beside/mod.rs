//! Beside a replaced plugin that reads and writes the same keys: cni-ipam-etcd, or host-etcd.

mod additions;
mod call;
mod change;
mod held;
mod hints;
pub(crate) mod layouts;
mod lock;
mod node_turn;
mod old_keys;
mod queue;
mod scan;
mod spelling;
mod view;
mod written;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};
use ipam_kit::cni::{ContainerId, IfName};

pub(crate) use self::call::Beside;
use crate::house::{Each, House};
use crate::outcome::commit_in_parts;
use crate::removal::remove;
use crate::token::Token;

impl House for Beside {
    /// Nothing may be given ahead of a plugin that takes what comes next unseen.
    fn is_strict(&self) -> bool {
        self.keys.overwrites
    }

    fn view(&mut self, query: &ViewQuery<'_>, earlier: Token) -> Result<View<Token>> {
        self.adapting(|beside| view::view(beside, query, &earlier))
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &Token,
        change: &Change<'_>,
    ) -> Result<Commit<Token>> {
        self.adapting(|beside| {
            commit_in_parts(token, change, |token, part| change::change(beside, owner, token, part))
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let removed = self.adapting(|beside| remove(&mut beside.session, entries))?;
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

    fn scan(&mut self, node: Option<&str>, each: Each<'_>) -> Result<()> {
        scan::scan(self, node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.adapting(|beside| beside.session.ready())?;
        if self.keys.overwrites {
            scan::warn_of_overwriting(self);
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let looked = self.adapting(|beside| beside.session.look())?;
        self.session.accept(looked)
    }
}

impl Drop for Beside {
    /// Releases the plugin's lock, however a call ends.
    fn drop(&mut self) {
        self.queue.end(&mut self.session.client);
    }
}
