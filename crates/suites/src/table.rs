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
        let of_network = self.slots.values().filter(|slot| slot.is_of(network));
        of_network
            .filter(|slot| node.is_none_or(|node| slot.owner.scope.node == node))
            .map(Slot::entry)
            .collect()
    }

    pub(crate) fn pool(&self, network: &str, request: &PoolRequest, scan: Scan) -> PoolView {
        let cursor = self.cursors.get(&(network.to_owned(), request.index)).copied();
        let used = match scan {
            Scan::None => Used::Unknown,
            Scan::Range(from, to) => {
                let mut taken = self.taken(network);
                taken.retain(|address| (from..=to).contains(address));
                Used::Windows(vec![(from, to)], taken)
            }
            Scan::Full => Used::All(self.taken(network)),
        };
        PoolView { cursor, used, ..PoolView::default() }
    }

    fn taken(&self, network: &str) -> BTreeSet<IpAddr> {
        let of_network = self.slots.values().filter(|slot| slot.is_of(network));
        of_network.map(|slot| slot.lease.address.addr()).collect()
    }

    /// For each claim the first candidate that is free; of a claim without one, all that were tried.
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
            let tried = || claim.candidates.iter().take(tries).copied();
            let free = tried().find(|a| {
                !chosen.contains(a) && self.is_free(network, *a, claim.replaces.as_ref())
            });
            match free {
                Some(address) => chosen.push(address),
                None => return Err(tried().map(|a| self.taken_by(number, network, a)).collect()),
            }
        }
        Ok(chosen)
    }

    /// Whether a claim may take an address: no entry has it, or the very one that the claim replaces.
    fn is_free(&self, network: &str, address: IpAddr, replaces: Option<&Entry>) -> bool {
        match (self.entry(network, address), replaces) {
            (None, replaces) => replaces.is_none(),
            (Some(entry), Some(replaces)) => entry.lease.revision == replaces.lease.revision,
            (Some(_), None) => false,
        }
    }

    fn taken_by(&self, claim: usize, network: &str, address: IpAddr) -> Taken {
        Taken { claim, address, holder: self.entry(network, address) }
    }

    /// Makes the change without a check; answers the kept and the claimed leases.
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
        match self.slots.get(&key) {
            Some(slot) if slot.lease.revision == entry.lease.revision => {
                self.slots.remove(&key).is_some()
            }
            _ => false,
        }
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
    fn is_of(&self, network: &str) -> bool {
        self.owner.scope.network.as_str() == network
    }

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
    let named: Vec<&Lease> = change.keep.iter().chain(&change.leave).chain(&change.drop).collect();
    named.len() == held.len() && named.into_iter().all(|lease| is_among(held, lease))
}

fn is_among(held: &[Lease], lease: &Lease) -> bool {
    held.iter()
        .any(|held| held.address.addr() == lease.address.addr() && held.revision == lease.revision)
}
