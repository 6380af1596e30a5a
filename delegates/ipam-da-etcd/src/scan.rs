//! Every lease of a network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_delegated::Result;
use ipam_delegated::allocate::ledger::{Entry, Holder};
use log::warn;

use crate::client::Answer;
use crate::document::{Holding, Revision};
use crate::ledger::Etcd;
use crate::page::{below, found_by_key};

/// Shows an entry, and hears whether to go on.
type Each<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;

/// How many keys are read at once by their names; a transaction may have 128 operations.
const BATCH: usize = 100;

impl Etcd {
    /// Shows every entry of the network; only those of `node` where one is named.
    pub fn walk(&self, node: Option<&str>, each: Each<'_>) -> Result<()> {
        let Some(node) = node else { return self.walk_all(each) };
        match self.adapting(|| self.holdings(&self.keys.of_node(node))) {
            Err(error) => Err(error),
            Ok(_) if !self.indexed.get() => self.walk_noted(node, each),
            Ok(holdings) => {
                let its = |holding: &&Holding| {
                    let document = &holding.document;
                    document.node == node && document.network == self.keys.network().as_str()
                };
                // Whether it ended early is the caller's own doing.
                let _ = holdings.iter().filter(its).flat_map(Holding::entries).try_for_each(each);
                Ok(())
            }
        }
    }

    fn walk_all(&self, each: Each<'_>) -> Result<()> {
        // A bare container id is all that the keys of a replaced plugin tell.
        let owners = match self.keys.old() {
            Some(_) => self.adapting(|| self.holdings(self.keys.owners()))?,
            None => Vec::new(),
        };
        let mut told: BTreeMap<(IpAddr, i64), (Entry, bool)> = BTreeMap::new();
        for holding in &owners {
            let here = holding.document.network == self.keys.network().as_str();
            for entry in holding.entries() {
                let Some(seen) = Revision::read(&entry.lease.revision) else { continue };
                told.insert((entry.lease.address.addr(), seen.revision), (entry, here));
            }
        }
        below(&self.client, self.keys.leases(), |answer| self.judge(answer), &mut |found| {
            let Some(address) = self.keys.address(found.key()) else {
                warn_of_foreign(found);
                return ControlFlow::Continue(());
            };
            match told.remove(&(address, found.mod_revision())) {
                Some((entry, true)) => return each(entry),
                Some((_, false)) => return ControlFlow::Continue(()),
                None => {}
            }
            let entry = self.keys.codec().entry(address, found);
            if entry.holder.is_none() {
                warn_of_foreign(found);
            }
            each(entry)
        })
    }

    /// What owners hold whose keys begin so. In a store that lets us have no such keys there are none.
    fn holdings(&self, prefix: &str) -> Result<Vec<Holding>> {
        let mut holdings = Vec::new();
        if self.indexed.get() {
            below(&self.client, prefix, |answer| self.judge(answer), &mut |found| {
                match Holding::read(found) {
                    Ok(holding) => holdings.push(holding),
                    Err(_) => warn_of_foreign(found),
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(holdings)
    }

    /// What this node has noted itself, as far as the store still says so.
    fn walk_noted(&self, node: &str, each: Each<'_>) -> Result<()> {
        let noted = self.hints.all(self.keys.network());
        let addresses: Vec<IpAddr> =
            noted.iter().flat_map(|noted| &noted.addresses).copied().collect();
        let found = self.read_leases(&addresses)?;
        for noted in noted {
            for address in &noted.addresses {
                let Some(found) = found.get(address) else { continue };
                let mut entry = self.keys.codec().entry(*address, found);
                entry.since = noted.confirmed;
                let holder = entry.holder.take().filter(|its| its.container == noted.container);
                let Some(Holder { container, .. }) = holder else { continue };
                entry.holder = Some(Holder {
                    node: Some(node.to_owned()),
                    container,
                    ifname: Some(noted.ifname.clone()),
                });
                if each(entry).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Warns of a plugin that takes addresses which others hold, as long as it is at work, and of the
    /// addresses that it has taken from containers of this node, by the runtime's cache of results.
    pub fn warn_of_overwriting(&self) {
        if let Err(error) = self.look_for_overwriting() {
            warn!("it is not known what host-etcd has overwritten: {error}");
        }
    }

    fn look_for_overwriting(&self) -> Result<()> {
        if let Some(lock) = &self.lock {
            let answer = self.ask(&Txn::new().and_then([lock.read()]))?;
            if found_by_key(&answer.response).values().any(|found| lock.is_old(found)) {
                warn!(
                    "host-etcd is at work on this store, and gives addresses again that are in use: replace it on every node"
                );
            }
        }
        let given = self.hints.given(self.keys.network());
        let addresses: Vec<IpAddr> = given.iter().map(|(address, _)| *address).collect();
        let found = self.read_leases(&addresses)?;
        for (address, container) in given {
            let Some(found) = found.get(&address) else { continue };
            let holder = self.keys.codec().entry(address, found).holder;
            if let Some(other) = holder.filter(|holder| holder.container != container) {
                warn!(
                    "{address} of {container} was given to {other} by host-etcd, too: re-create {container}"
                );
            }
        }
        Ok(())
    }

    /// The keys of these addresses, as far as they are there.
    fn read_leases(&self, addresses: &[IpAddr]) -> Result<BTreeMap<IpAddr, KeyValue>> {
        let mut all = BTreeMap::new();
        for batch in addresses.chunks(BATCH) {
            let reads = batch.iter().map(|address| TxnOp::get(self.keys.lease(*address), None));
            let answer: Answer = self.ask(&Txn::new().and_then(reads.collect::<Vec<_>>()))?;
            let found = found_by_key(&answer.response).into_values();
            all.extend(found.filter_map(|found| Some((self.keys.address(found.key())?, found))));
        }
        Ok(all)
    }
}

fn warn_of_foreign(found: &KeyValue) {
    let key = String::from_utf8_lossy(found.key());
    warn!("the key {key} is not ours: it counts as taken and is left alone");
}
