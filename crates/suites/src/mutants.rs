//! Ledgers with one known bug each: what the suites must find.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::memory::{MemoryLedger, MemoryStore, MemoryToken, kept_out};
use super::table::{Table, fits, usable};
use ipam_kit::allocate::ledger::{
    Change, Commit, Entry, Ledger, Need, PoolView, Used, View, ViewQuery,
};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Profile, Reach, cooldown};
use ipam_kit::cni::{IfName, NetworkName};
use ipam_kit::delegate::Request;
use ipam_kit::error::Result;
use ipam_kit::pool::RangeSet;

/// A bug that a ledger may have, and that systems in use have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub enum Bug {
    /// A claim overwrites another owner's lease.
    Overwrite,
    /// An address is seen to be free in one step and taken in another.
    CheckThenPut,
    /// A lease is removed by its address, even if another owner holds it.
    ReleaseOfAny,
    /// The interfaces of a container are one owner.
    IfnameIgnored,
    /// When the second address of a claim is taken, the first one stays.
    NoUndo,
    /// The index of what an owner holds forgets what was kept when something was claimed.
    LostIndex,
    /// A lease is written anew without a look at whose it is now.
    RestampUnguarded,
    /// A lease is removed although it was written again since it was read.
    LateDelUnguarded,
    /// A release and a CHECK believe a look that may be behind.
    StaleBelieved,
    /// A drop of some leases is taken for one of all that the owner holds.
    SomeForAll,
    /// The lock of the view before is kept while the next view takes it.
    EarlierKept,
    /// The previous view is shown again.
    EarlierBelieved,
    /// An address does not stay with its name.
    NamesForgotten,
    /// No address rests after its release.
    RestForgotten,
    /// An address that rests counts as taken.
    RestTaken,
    /// The lease is another one than the store chose.
    ChoiceIgnored,
}

impl Bug {
    /// Every one.
    pub const ALL: [Self; 16] = [
        Self::Overwrite,
        Self::CheckThenPut,
        Self::ReleaseOfAny,
        Self::IfnameIgnored,
        Self::NoUndo,
        Self::LostIndex,
        Self::RestampUnguarded,
        Self::LateDelUnguarded,
        Self::StaleBelieved,
        Self::SomeForAll,
        Self::EarlierKept,
        Self::EarlierBelieved,
        Self::NamesForgotten,
        Self::RestForgotten,
        Self::RestTaken,
        Self::ChoiceIgnored,
    ];
}

/// A ledger in memory with a bug, or with none.
pub struct Mutant {
    inner: MemoryLedger,
    store: String,
    bug: Option<Bug>,
    /// The last view.
    shown: Vec<Lease>,
}

/// The settings that it reads from `ipam`.
#[derive(Debug, serde::Deserialize)]
pub struct MutantConfig {
    /// The [`MemoryStore::named`] that it works on.
    pub(crate) memory: String,
    /// The bug.
    #[serde(default)]
    pub(crate) bug: Option<Bug>,
}

type AddressesOfOwners = BTreeMap<(String, String), Vec<IpAddr>>;

/// The index of a store, for [`Bug::LostIndex`].
static INDEX: LazyLock<Mutex<AddressesOfOwners>> = LazyLock::new(Mutex::default);

impl Mutant {
    /// A ledger for one network.
    pub fn on(store: &str, network: NetworkName, bug: Option<Bug>) -> Self {
        let inner = MemoryLedger::on(&MemoryStore::named(store), network);
        Self { inner, store: store.to_owned(), bug, shown: Vec::new() }
    }

    fn owner(&self, owner: &Owner) -> Owner {
        let mut owner = owner.clone();
        if self.bug == Some(Bug::IfnameIgnored)
            && let Ok(ifname) = IfName::parse("any")
        {
            owner.ifname = ifname;
        }
        owner
    }

    /// The leases that the buggy index knows.
    fn indexed(&self, owner: &Owner, mut held: Vec<Lease>) -> Vec<Lease> {
        if self.bug == Some(Bug::LostIndex) {
            let index = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
            let known = index.get(&(self.store.clone(), owner.to_string()));
            held.retain(|lease| known.is_some_and(|known| known.contains(&lease.address.addr())));
        }
        held
    }

    fn index(&self, owner: &Owner, kept: &[Lease], claimed: &[Lease]) {
        let names = if claimed.is_empty() { kept } else { claimed };
        let names = names.iter().map(|lease| lease.address.addr()).collect();
        let mut index = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
        index.insert((self.store.clone(), owner.to_string()), names);
    }

    /// Whether the guards of the change hold, with the bug.
    fn fits(&self, table: &Table, owner: &Owner, change: &Change<'_>) -> bool {
        let held = self.indexed(owner, table.held(owner));
        let only_drops = change.keep.is_empty() && change.claim.is_empty();
        match self.bug {
            Some(Bug::ReleaseOfAny) if only_drops => true,
            Some(Bug::RestampUnguarded) => {
                let mut rest = held;
                rest.retain(|lease| !has_address_of(&change.keep, lease));
                fits(&rest, &Change { drop: change.drop.clone(), ..Change::default() })
            }
            Some(Bug::LateDelUnguarded) if only_drops => {
                change.drop.iter().all(|lease| has_address_of(&held, lease))
            }
            Some(Bug::SomeForAll) if only_drops => {
                let mut known = held;
                known.retain(|lease| has_address_of(&change.drop, lease));
                fits(&known, &Change { drop: change.drop.clone(), ..Change::default() })
            }
            _ => fits(&held, change),
        }
    }

    fn attempt(&self, owner: &Owner, change: &Change<'_>) -> Commit<()> {
        let store = &self.inner.store;
        let tries = store.shape().tries;
        let in_two_steps = self.bug == Some(Bug::CheckThenPut);
        if !in_two_steps {
            store.between();
        }
        let mut table = store.table();
        if !self.fits(&table, owner, change) {
            return Commit::Lost { taken: Vec::new(), view: None };
        }
        let chosen = match self.bug {
            Some(Bug::Overwrite) => {
                let claims = change.claim.iter();
                Ok(claims.filter_map(|claim| claim.candidates.first().copied()).collect())
            }
            _ => table.choose(owner.scope.network.as_str(), &change.claim, tries),
        };
        if self.bug == Some(Bug::NoUndo) && chosen.is_err() {
            claim_first(&mut table, owner, change, tries);
        }
        if in_two_steps {
            drop(table);
            store.between();
            table = store.table();
        }
        match chosen {
            Err(why) => why.into(),
            Ok(chosen) => {
                let (kept, mut claimed) = table.apply(owner, change, &chosen);
                if self.bug == Some(Bug::ChoiceIgnored) {
                    choose_again(change, &mut claimed);
                }
                if self.bug == Some(Bug::NamesForgotten) {
                    table.forget_kept();
                }
                self.index(owner, &kept, &claimed);
                Commit::Done { kept, claimed }
            }
        }
    }
}

fn has_address_of(leases: &[Lease], lease: &Lease) -> bool {
    leases.iter().any(|other| other.address.addr() == lease.address.addr())
}

/// Answers the first address of each pool in place of what the store chose.
fn choose_again(change: &Change<'_>, claimed: &mut [Lease]) {
    for (claim, lease) in change.claim.iter().zip(claimed) {
        if claim.candidates.is_empty()
            && let Some(first) = usable(&claim.set).last()
        {
            *lease = claim.lease(first, lease.revision.clone());
        }
    }
}

/// Takes the first address of a change whose second is taken.
fn claim_first(table: &mut Table, owner: &Owner, change: &Change<'_>, tries: usize) {
    let Some(first) = change.claim.first() else { return };
    let claims = std::slice::from_ref(first);
    if let Ok(free) = table.choose(owner.scope.network.as_str(), claims, tries) {
        table.apply(owner, &Change { claim: claims.to_vec(), ..Change::default() }, &free);
    }
}

impl Ledger for Mutant {
    type Config = MutantConfig;
    type Token = MemoryToken;

    const REACH: Reach = Reach::Cluster;

    fn open(config: MutantConfig, request: &Request) -> Result<Self> {
        let mut this = Self::on(&config.memory, request.network.name().clone(), config.bug);
        this.inner.cooldown = cooldown(request)?;
        Ok(this)
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Self::Token>,
    ) -> Result<View<MemoryToken>> {
        let owner = self.owner(query.owner);
        let stale = self.bug == Some(Bug::StaleBelieved);
        let need = if stale { Need::Claim } else { query.need };
        let is_believed = earlier.is_some() && self.bug == Some(Bug::EarlierBelieved);
        if self.bug == Some(Bug::EarlierKept)
            && earlier.as_ref().is_some_and(MemoryToken::is_locked)
        {
            return Err(kept_out());
        }
        let mut view = self.inner.view(&ViewQuery { owner: &owner, need, ..*query }, earlier)?;
        let sure = view.sure || (stale && !query.may_guess);
        if self.bug == Some(Bug::RestForgotten) {
            view.pools.iter_mut().for_each(|pool| pool.resting.clear());
        }
        if self.bug == Some(Bug::RestTaken) {
            for PoolView { used, resting, .. } in &mut view.pools {
                if let Used::All(taken) | Used::Windows(_, taken) = used {
                    taken.extend(resting.keys());
                }
            }
        }
        if !is_believed {
            self.shown = self.indexed(&owner, view.held);
        }
        Ok(View { held: self.shown.clone(), sure, ..view })
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: MemoryToken,
        change: &Change<'_>,
    ) -> Result<Commit<MemoryToken>> {
        let owner = self.owner(owner);
        let done = self.attempt(&owner, change);
        Ok(match self.inner.with_view(&owner, seen, done) {
            Commit::Lost { taken, view: Some(view) } => {
                let held = self.indexed(&owner, view.held);
                Commit::Lost { taken, view: Some(View { held, ..view }) }
            }
            other => other,
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.inner.remove(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.scan(node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.inner.ready()
    }

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        self.inner.ranges(request)
    }
}
