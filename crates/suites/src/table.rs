//! The leases of a store in memory, and the steps that a commit is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::Value;

use ipam_kit::allocate::ledger::{Change, Claim, Entry, Holder, PoolView, Scan, Taken, Used};
use ipam_kit::allocate::{Lease, Owner, PoolRequest};

/// Every lease of every network.
#[derive(Default)]
pub(super) struct Table {
    slots: BTreeMap<(String, IpAddr), Slot>,
    cursors: BTreeMap<(String, u32), IpAddr>,
    revision: u64,
}

struct Slot {
    owner: Owner,
    lease: Lease,
    since: SystemTime,
}

impl Table {
    pub(crate) fn held(&self, owner: &Owner) -> Vec<Lease> {
        let its = self.slots.values().filter(|slot| slot.owner == *owner);
        its.map(|slot| slot.lease.clone()).collect()
    }

    pub(crate) fn entry(&self, network: &str, address: IpAddr) -> Option<Entry> {
        self.slots.get(&(network.to_owned(), address)).map(Slot::entry)
    }

    pub(crate) fn entries(&self, network: &str, node: Option<&str>) -> Vec<Entry> {
        let of_node = |slot: &&Slot| node.is_none_or(|node| slot.owner.scope.node == node);
        let its = self.slots.iter().filter(|((its, _), _)| its == network).map(|(_, slot)| slot);
        its.filter(of_node).map(Slot::entry).collect()
    }

    pub(crate) fn pool(&self, network: &str, request: &PoolRequest, look: Scan) -> PoolView {
        let taken = |from: Option<IpAddr>, to: Option<IpAddr>| -> BTreeSet<IpAddr> {
            let its =
                self.slots.keys().filter(|(its, _)| its == network).map(|(_, address)| *address);
            its.filter(|a| from.is_none_or(|from| from <= *a) && to.is_none_or(|to| *a <= to))
                .collect()
        };
        PoolView {
            cursor: self.cursors.get(&(network.to_owned(), request.index)).copied(),
            used: match look {
                Scan::None => Used::Unknown,
                Scan::Range(from, to) => {
                    Used::Windows(vec![(from, to)], taken(Some(from), Some(to)))
                }
                Scan::Full => Used::All(taken(None, None)),
            },
            ..PoolView::default()
        }
    }

    /// For each claim the first candidate that is free, or those that are not.
    ///
    /// `tries` is how many candidates are tried.
    pub(crate) fn choose(
        &self,
        network: &str,
        claims: &[Claim<'_>],
        tries: usize,
    ) -> Result<Vec<IpAddr>, Vec<Taken>> {
        let mut chosen = Vec::new();
        for (number, claim) in claims.iter().enumerate() {
            let free = |address: &&IpAddr| {
                let entry = self.entry(network, **address);
                let replaced = match (&entry, &claim.replaces) {
                    (None, replaces) => replaces.is_none(),
                    (Some(entry), Some(replaces)) => {
                        entry.lease.revision == replaces.lease.revision
                    }
                    (Some(_), None) => false,
                };
                replaced && !chosen.contains(*address)
            };
            let mut tried = claim.candidates.iter().take(tries);
            match tried.clone().find(free) {
                Some(address) => chosen.push(*address),
                None => {
                    let taken = |address: &IpAddr| Taken {
                        claim: number,
                        address: *address,
                        holder: self.entry(network, *address),
                    };
                    return Err(tried.by_ref().map(taken).collect());
                }
            }
        }
        Ok(chosen)
    }

    /// Makes the change, whatever stands there; the kept and the claimed leases.
    pub(crate) fn apply(
        &mut self,
        owner: &Owner,
        change: &Change<'_>,
        chosen: &[IpAddr],
    ) -> (Vec<Lease>, Vec<Lease>) {
        let network = owner.scope.network.as_str().to_owned();
        for lease in &change.drop {
            self.slots.remove(&(network.clone(), lease.address.addr()));
        }
        let kept = change.keep.iter().map(|lease| self.put(owner, lease.clone())).collect();
        let mut claimed = Vec::new();
        for (claim, address) in change.claim.iter().zip(chosen) {
            self.cursors.insert((network.clone(), claim.request.index), *address);
            claimed.push(self.put(owner, claim.lease(*address, Value::Null)));
        }
        (kept, claimed)
    }

    /// Removes an entry while it is still that one.
    pub(crate) fn remove(&mut self, network: &str, entry: &Entry) -> bool {
        let key = (network.to_owned(), entry.lease.address.addr());
        let same = |slot: &Slot| slot.lease.revision == entry.lease.revision;
        let stands = self.slots.get(&key).is_some_and(same);
        stands && self.slots.remove(&key).is_some()
    }

    pub(crate) fn age(&mut self, by: std::time::Duration) {
        for slot in self.slots.values_mut() {
            slot.since -= by;
        }
    }

    fn put(&mut self, owner: &Owner, lease: Lease) -> Lease {
        self.revision += 1;
        let key = (owner.scope.network.as_str().to_owned(), lease.address.addr());
        let before = self.slots.get(&key).filter(|slot| slot.owner == *owner);
        let taken = before.map_or(Some(SystemTime::now()), |slot| slot.lease.taken);
        let lease = Lease { revision: self.revision.into(), taken, ..lease };
        let slot = Slot { owner: owner.clone(), lease: lease.clone(), since: SystemTime::now() };
        self.slots.insert(key, slot);
        lease
    }
}

impl Slot {
    fn entry(&self) -> Entry {
        Entry {
            lease: self.lease.clone(),
            holder: Some(Holder {
                node: Some(self.owner.scope.node.clone()),
                container: self.owner.container.to_string(),
                ifname: Some(self.owner.ifname.to_string()),
                network: None,
            }),
            since: Some(self.since),
            fault: None,
        }
    }
}

/// Whether a change is about exactly what is held.
pub(super) fn fits(held: &[Lease], change: &Change<'_>) -> bool {
    let named = || change.keep.iter().chain(&change.leave).chain(&change.drop);
    let is_held = |lease: &Lease| {
        held.iter()
            .any(|h| h.address.addr() == lease.address.addr() && h.revision == lease.revision)
    };
    named().all(is_held) && named().count() == held.len()
}
