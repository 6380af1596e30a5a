//! The leases of a store in memory, and the steps that a commit is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use ipam_kit::allocate::ledger::{
    Change, Claim, Commit, Entry, Fault, Holder, PoolView, Scan, Taken, Used,
};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, StickyName, is_resting};
use ipam_kit::cni::address;
use ipam_kit::pool::RangeSet;

/// Every lease of every network.
#[derive(Default)]
pub(super) struct Table {
    slots: BTreeMap<(String, IpAddr), Slot>,
    cursors: BTreeMap<(String, u32), IpAddr>,
    /// When addresses were freed.
    freed: BTreeMap<(String, IpAddr), SystemTime>,
    revision: u64,
}

struct Slot {
    owner: Owner,
    lease: Lease,
    since: SystemTime,
    /// The name that the address stays with.
    sticky: Option<StickyName>,
    /// Until when it is kept for that name, which has no owner.
    kept_until: Option<SystemTime>,
}

/// Why nothing was chosen.
pub(super) enum NoChoice {
    /// Every candidate of a claim is taken.
    Taken(Vec<Taken>),
    /// The pool of this claim is full.
    Full(usize),
}

impl<T> From<NoChoice> for Commit<T> {
    fn from(why: NoChoice) -> Self {
        match why {
            NoChoice::Taken(taken) => Self::Lost { taken, view: None },
            NoChoice::Full(claim) => Self::Full { claim },
        }
    }
}

impl Table {
    pub(crate) fn held(&self, owner: &Owner) -> Vec<Lease> {
        let its = self.slots.values().filter(|slot| slot.owner == *owner && !slot.is_kept());
        its.map(|slot| slot.lease.clone()).collect()
    }

    pub(crate) fn entry(&self, network: &str, address: IpAddr) -> Option<Entry> {
        self.slots.get(&(network.to_owned(), address)).map(Slot::entry)
    }

    pub(crate) fn entries(&self, network: &str, node: Option<&str>) -> Vec<Entry> {
        let of_network = self.slots.values().filter(|slot| slot.is_of(network));
        of_network
            .filter(|slot| node.is_none_or(|node| slot.is_of_node(node)))
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
        let kept = self.named(network, request).filter(|slot| slot.is_kept());
        let kept = kept.map(|slot| slot.lease.address.addr());
        PoolView { cursor, used, kept, ..PoolView::default() }
    }

    /// The addresses that were freed less than the cooldown ago.
    pub(crate) fn resting(
        &self,
        network: &str,
        cooldown: Duration,
    ) -> BTreeMap<IpAddr, SystemTime> {
        let of_network = self.freed.iter().filter(|((of, _), _)| of == network);
        let resting = of_network.filter(|(_, freed)| is_resting(**freed, cooldown));
        resting.map(|((_, address), freed)| (*address, *freed)).collect()
    }

    /// The entry of another owner who has the name of a request.
    pub(crate) fn rival(&self, owner: &Owner, request: &PoolRequest) -> Option<Entry> {
        let slot = self.named(owner.scope.network.as_str(), request)?;
        (slot.owner != *owner && !slot.is_kept()).then(|| slot.entry())
    }

    /// Forgets all names that have no owner, for a bug.
    pub(crate) fn forget_kept(&mut self) {
        self.slots.retain(|_, slot| !slot.is_kept());
    }

    fn named(&self, network: &str, request: &PoolRequest) -> Option<&Slot> {
        let (sticky, set) = (request.sticky.as_ref()?, request.set.as_ref()?);
        self.slots.values().filter(|slot| slot.is_of(network)).find(|slot| {
            slot.has_name(&sticky.name) && set.find(slot.lease.address.addr()).is_some()
        })
    }

    fn taken(&self, network: &str) -> BTreeSet<IpAddr> {
        let of_network = self.slots.values().filter(|slot| slot.is_of(network));
        of_network.filter(|slot| !slot.is_over()).map(|slot| slot.lease.address.addr()).collect()
    }

    /// For each claim the first candidate that is free, or the last free address of its ranges if it
    /// has no candidates.
    ///
    /// `tries` is how many candidates are tried.
    pub(crate) fn choose(
        &self,
        network: &str,
        claims: &[Claim<'_>],
        tries: usize,
    ) -> Result<Vec<IpAddr>, NoChoice> {
        let mut chosen = Vec::new();
        for (number, claim) in claims.iter().enumerate() {
            let is_free = |a: &IpAddr| !chosen.contains(a) && self.is_free(network, *a, claim);
            let tried = || claim.candidates.iter().take(tries).copied();
            let taken = || tried().map(|a| self.taken_by(number, network, a)).collect();
            let (free, why) = match claim.candidates.is_empty() {
                true => (usable(&claim.set).find(is_free), NoChoice::Full(number)),
                false => (tried().find(is_free), NoChoice::Taken(taken())),
            };
            chosen.push(free.ok_or(why)?);
        }
        Ok(chosen)
    }

    /// Whether a claim may take an address: no entry has it, the very one that the claim replaces, or
    /// one that is kept for the name of the claim, or no longer kept.
    fn is_free(&self, network: &str, address: IpAddr, claim: &Claim<'_>) -> bool {
        let name = claim.request.sticky.as_ref().map(|sticky| sticky.name.as_str());
        let slot = self.slots.get(&(network.to_owned(), address));
        if slot.is_some_and(|slot| {
            slot.is_over() || (slot.is_kept() && name.is_some_and(|name| slot.has_name(name)))
        }) {
            return true;
        }
        match (self.entry(network, address), &claim.replaces) {
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
            self.end(&network, lease.address.addr());
        }
        let kept = change.keep.iter().map(|lease| self.put(owner, lease.clone(), None)).collect();
        let mut claimed = Vec::new();
        for (claim, address) in change.claim.iter().zip(chosen) {
            self.cursors.insert((network.clone(), claim.request.index), *address);
            let earlier = self.named(&network, claim.request).map(|slot| slot.lease.address.addr());
            if let Some(earlier) = earlier {
                self.slots.remove(&(network.clone(), earlier));
            }
            let lease = claim.lease(*address, Value::Null);
            claimed.push(self.put(owner, lease, claim.request.sticky.clone()));
        }
        (kept, claimed)
    }

    /// Ends a hold: the address is free, or kept for its name.
    fn end(&mut self, network: &str, address: IpAddr) {
        self.revision += 1;
        let key = (network.to_owned(), address);
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let keep = slot.sticky.as_ref().map_or(Duration::ZERO, |sticky| sticky.keep);
        if keep.is_zero() || slot.is_kept() {
            self.slots.remove(&key);
            self.freed.insert(key, SystemTime::now());
            return;
        }
        slot.kept_until = Some(SystemTime::now() + keep);
        slot.lease.revision = self.revision.into();
    }

    /// Removes an entry while it is still that one.
    pub(crate) fn remove(&mut self, network: &str, entry: &Entry) -> bool {
        let key = (network.to_owned(), entry.lease.address.addr());
        match self.slots.get(&key) {
            Some(slot) if slot.lease.revision == entry.lease.revision => {
                self.end(network, key.1);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn age(&mut self, by: std::time::Duration) {
        self.freed.values_mut().for_each(|freed| *freed -= by);
        for slot in self.slots.values_mut() {
            slot.since -= by;
            slot.kept_until = slot.kept_until.map(|until| until - by);
        }
    }

    fn put(&mut self, owner: &Owner, lease: Lease, sticky: Option<StickyName>) -> Lease {
        self.revision += 1;
        let key = (owner.scope.network.as_str().to_owned(), lease.address.addr());
        let before = self.slots.get(&key).filter(|slot| slot.owner == *owner && !slot.is_kept());
        let sticky = sticky.or_else(|| before?.sticky.clone());
        let taken = before.map_or(Some(SystemTime::now()), |slot| slot.lease.taken);
        let lease = Lease { revision: self.revision.into(), taken, ..lease };
        let slot = Slot {
            owner: owner.clone(),
            lease: lease.clone(),
            since: SystemTime::now(),
            sticky,
            kept_until: None,
        };
        self.slots.insert(key, slot);
        lease
    }
}

impl Slot {
    fn is_of(&self, network: &str) -> bool {
        self.owner.scope.network.as_str() == network
    }

    fn is_of_node(&self, node: &str) -> bool {
        self.owner.scope.node == node && !self.is_kept()
    }

    fn has_name(&self, name: &str) -> bool {
        self.sticky.as_ref().is_some_and(|sticky| sticky.name == name)
    }

    fn is_kept(&self) -> bool {
        self.kept_until.is_some()
    }

    /// Whether it was kept for a name, and that time is over.
    fn is_over(&self) -> bool {
        self.kept_until.is_some_and(|until| until <= SystemTime::now())
    }

    fn entry(&self) -> Entry {
        if let Some(StickyName { name, .. }) = self.sticky.as_ref().filter(|_| self.is_kept()) {
            let fault = Some(Fault::Kept(format!("the sticky name {name}")));
            return Entry { lease: self.lease.clone(), holder: None, since: None, fault };
        }
        Entry {
            lease: self.lease.clone(),
            holder: Some(Holder {
                node: Some(self.owner.scope.node.clone()),
                container: self.owner.container.to_string(),
                ifname: Some(self.owner.ifname.to_string()),
                ..Holder::default()
            }),
            since: Some(self.since),
            fault: None,
        }
    }
}

/// The addresses that ranges give, the last one first.
pub(super) fn usable(set: &RangeSet) -> impl Iterator<Item = IpAddr> {
    set.ranges().iter().rev().flat_map(|range| {
        let down = successors(Some(range.end()), |address| address::previous(*address));
        let inside = down.take_while(|address| range.spans(*address));
        inside.filter(|address| range.usable(*address))
    })
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
