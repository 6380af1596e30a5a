//! Every lease of a network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Entry, Holder};
use log::warn;

use crate::client::Answer;
use crate::document::{Holding, OwnerDocument, Revision, holding};
use crate::ledger::Etcd;
use crate::page::{READS, below, found_by_key};

/// Shows an entry, and hears whether to go on.
type Each<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;

impl Etcd {
    /// Shows every entry of the network; only those of `node` where one is named.
    pub(crate) fn walk(&self, node: Option<&str>, each: Each<'_>) -> Result<()> {
        let Some(node) = node else { return self.walk_all(each) };
        let holdings = self.adapting(|| self.holdings(&self.keys.of_node(node)))?;
        let network = self.keys.network().as_str();
        let its = |holding: &&Holding| is_of(&holding.document, node, network);
        let mut entries = holdings.iter().filter(its).flat_map(Holding::entries);
        // Whether it ended early is the caller's own doing.
        if entries.try_for_each(&mut *each).is_break() || self.keys.is_native() {
            return Ok(());
        }
        // Notes are of a time when the store let us have no such keys, or of now.
        let told = holdings.iter().flat_map(Holding::leases);
        self.walk_noted(node, &told.map(|lease| lease.address.addr()).collect(), each)
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
        if !self.indexed.get() {
            // One that lets us read nothing at all has not refused us these keys alone.
            self.judge(&self.look()?.0)?;
            return Ok(holdings);
        }
        below(&self.client, prefix, |answer| self.judge(answer), &mut |found| {
            match holding(found) {
                Ok(holding) => holdings.push(holding),
                Err(_) => warn_of_foreign(found),
            }
            ControlFlow::Continue(())
        })?;
        Ok(holdings)
    }

    /// What this node has noted itself and the index does not tell, as far as the store still says so.
    fn walk_noted(&self, node: &str, told: &BTreeSet<IpAddr>, each: Each<'_>) -> Result<()> {
        let noted = self.hints.all(self.keys.network())?;
        let mut times: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for address in noted.iter().flat_map(|noted| &noted.addresses) {
            *times.entry(*address).or_default() += 1;
        }
        // One of two notes is out of date, and nobody knows which.
        times.retain(|address, times| *times == 1 && !told.contains(address));
        let found = self.read_leases(&times.into_keys().collect::<Vec<_>>())?;
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
                    network: None,
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
    pub(crate) fn warn_of_overwriting(&self) {
        if let Err(error) = self.look_for_overwriting() {
            warn!("it is not known what host-etcd has overwritten: {error}");
        }
    }

    fn look_for_overwriting(&self) -> Result<()> {
        if let Some(lock) = &self.lock {
            let answer = self.ask(&Txn::new().and_then([lock.read_all()]))?;
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
                    "{address} of {container} was given to {} by host-etcd, too: re-create {container}",
                    other.container.escape_debug()
                );
            }
        }
        Ok(())
    }

    /// The keys of these addresses, as far as they are there.
    fn read_leases(&self, addresses: &[IpAddr]) -> Result<BTreeMap<IpAddr, KeyValue>> {
        let mut all = BTreeMap::new();
        for batch in addresses.chunks(READS) {
            let reads = batch.iter().map(|address| TxnOp::get(self.keys.lease(*address), None));
            let answer: Answer = self.ask(&Txn::new().and_then(reads.collect::<Vec<_>>()))?;
            let found = found_by_key(&answer.response).into_values();
            all.extend(found.filter_map(|found| Some((self.keys.address(found.key())?, found))));
        }
        Ok(all)
    }
}

/// Whether an owner is of this node and this network: keys of several networks may stand side by side.
fn is_of(document: &OwnerDocument, node: &str, network: &str) -> bool {
    document.node == node && document.network == network
}

fn warn_of_foreign(found: &KeyValue) {
    let key = String::from_utf8_lossy(found.key());
    warn!("the key {} is not ours: it counts as taken and is left alone", key.escape_debug());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_of_one_node_and_one_network() {
        let document = serde_json::json!({
            "network": "net", "node": "n", "container": "c", "ifname": "eth0",
            "generation": 1, "confirmed": 1, "leases": [],
        });
        let document: OwnerDocument = serde_json::from_value(document).unwrap();
        for (node, network, expected) in
            [("n", "net", true), ("n", "other", false), ("other", "net", false)]
        {
            assert_eq!(is_of(&document, node, network), expected, "{node} {network}");
        }
    }
}
