//! A ledger in memory: a fake for tests, and the measure of the suites.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::table::{Table, fits};
use ipam_kit::allocate::ledger::{
    Change, Claim, Commit, Entry, Ledger, Need, PoolView, Scan, Used, View, ViewQuery,
    unknown_ranges,
};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Profile, Reach, Strategy, cooldown};
use ipam_kit::cni::{NetworkName, address};
use ipam_kit::delegate::Request;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::pool::{Range, RangeConfig, RangeRules, RangeSet};

/// A store that any number of ledgers share, as processes share a server.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    shape: Mutex<Shape>,
    hooks: Mutex<Hooks>,
    locked: Mutex<bool>,
    unlocked: Condvar,
}

/// The kind of store. The default shows everything that a query asks for, at once.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The part of a pool that a view shows.
    pub shows: ShownPools,
    /// A view that may guess does.
    pub guesses: bool,
    /// How many candidates a claim tries.
    pub tries: usize,
    /// A lost commit shows the present state.
    pub tells: bool,
    /// A view locks the store until its token is gone, so that nothing comes between.
    pub locks: bool,
    /// A view for a claim shows nothing held, as a server does that has not caught up, until the ledger
    /// has committed something. A proof shows what is held.
    pub behind: bool,
    /// Another owner is always quicker: no commit that changes anything is done.
    pub contended: bool,
    /// It keeps addresses for names.
    pub keeps_names: bool,
    /// It knows when addresses were freed.
    pub knows_freed: bool,
    /// It has a pool of every name, with the ranges [`STORE_RANGE`], and chooses its addresses.
    pub chooses: bool,
}

/// The subnet of every pool that a store in memory knows by its name.
pub const STORE_RANGE: &str = "10.1.2.0/28";

/// The part of a pool that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownPools {
    /// As little as it may.
    AsAsked,
    /// At least a window of sixteen addresses, from where the search begins.
    Windows,
    /// Everything.
    All,
}

/// When a commit happens whose outcome its caller does not learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAnswer {
    /// Never.
    Never,
    /// At once.
    Done,
    /// Right before the next call, if what guards it still holds.
    Late,
    /// Right before the next commit, if what guards it still holds.
    Later,
}

#[derive(Default)]
struct Hooks {
    between: VecDeque<Box<dyn FnOnce() + Send>>,
    unsure: Option<LostAnswer>,
    late: Vec<LateCommit>,
}

struct LateCommit {
    when: LostAnswer,
    owner: Owner,
    keep: Vec<Lease>,
    leave: Vec<Lease>,
    drop: Vec<Lease>,
    claims: Vec<(PoolRequest, RangeSet, Vec<IpAddr>, Option<Entry>)>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            shows: ShownPools::AsAsked,
            guesses: false,
            tries: usize::MAX,
            tells: true,
            locks: false,
            behind: false,
            contended: false,
            keeps_names: true,
            knows_freed: true,
            chooses: false,
        }
    }
}

static STORES: LazyLock<Mutex<HashMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// The store of that name in this process, made with the first call.
    pub fn named(name: &str) -> Self {
        lock(&STORES).entry(name.to_owned()).or_default().clone()
    }

    /// Makes it another kind of store.
    #[must_use]
    pub fn shaped(self, shape: Shape) -> Self {
        *lock(&self.0.shape) = shape;
        self
    }

    /// The kind of store it is.
    pub fn shape(&self) -> Shape {
        *lock(&self.0.shape)
    }

    /// Calls `between` inside the next commit, after its caller has looked and before anything is
    /// changed; a second one inside the commit after it, and so on. False if a lock keeps
    /// other calls out.
    pub fn interleave(&self, between: impl FnOnce() + Send + 'static) -> bool {
        if !self.shape().locks {
            lock(&self.0.hooks).between.push_back(Box::new(between));
        }
        !self.shape().locks
    }

    /// Keeps the outcome of the next commit from its caller.
    pub fn lose_answer(&self, when: LostAnswer) {
        lock(&self.0.hooks).unsure = Some(when);
    }

    /// Makes every lease look older.
    pub fn age(&self, by: Duration) {
        self.table().age(by);
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.0.table)
    }

    pub(super) fn between(&self) {
        let between = lock(&self.0.hooks).between.pop_front();
        if let Some(between) = between {
            between();
        }
    }

    /// Lets the commits happen that are late, at a commit those too that are later.
    fn settle(&self, at_commit: bool) {
        let mut hooks = lock(&self.0.hooks);
        let due = hooks.late.extract_if(.., |late| at_commit || late.when == LostAnswer::Late);
        let late: Vec<_> = due.collect();
        drop(hooks);
        for late in late {
            let claim = late.claims.iter().map(|(request, set, candidates, replaces)| Claim {
                request,
                set: set.clone(),
                candidates: candidates.clone(),
                next: Scan::None,
                replaces: replaces.clone(),
            });
            let claim = claim.collect();
            let change = Change {
                keep: late.keep.clone(),
                leave: late.leave.clone(),
                drop: late.drop.clone(),
                claim,
            };
            let _ = self.attempt(&late.owner, &change);
        }
    }

    fn lock_out(&self) -> Result<Option<Guard>> {
        if !self.shape().locks {
            return Ok(None);
        }
        let waited = self.0.unlocked.wait_timeout_while(
            lock(&self.0.locked),
            Duration::from_secs(10),
            |locked| *locked,
        );
        let (mut locked, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            return Err(kept_out());
        }
        *locked = true;
        Ok(Some(Guard(self.clone())))
    }

    /// The commit itself, in one step.
    fn attempt(&self, owner: &Owner, change: &Change<'_>) -> Commit<()> {
        let Shape { tries, contended, .. } = self.shape();
        let mut table = self.table();
        if contended || !fits(&table.held(owner), change) {
            return Commit::Lost { taken: Vec::new(), view: None };
        }
        match table.choose(owner.scope.network.as_str(), &change.claim, tries) {
            Err(why) => why.into(),
            Ok(chosen) => {
                let (kept, claimed) = table.apply(owner, change, &chosen);
                Commit::Done { kept, claimed }
            }
        }
    }
}

/// Sixteen addresses from the first one that is tried.
fn window(request: &PoolRequest, cursor: Option<IpAddr>) -> Option<Scan> {
    let set = request.set.as_ref()?;
    let after = cursor.filter(|_| request.strategy == Strategy::RoundRobin);
    let first = after.map_or(set.ranges().first().map(Range::start), address::next)?;
    let range = set.find(first)?;
    Some(Scan::Range(first, address::offset(first, 15)?.min(range.end())))
}

struct Guard(MemoryStore);

impl Drop for Guard {
    fn drop(&mut self) {
        *lock(&self.0.0.locked) = false;
        self.0.0.unlocked.notify_one();
    }
}

/// The lock could not be had.
pub(super) fn kept_out() -> Error {
    let message = "another call has held the store's lock until the deadline";
    Error::new(ErrorCode::TRY_AGAIN, message)
}

/// A ledger on a [`MemoryStore`].
pub struct MemoryLedger {
    pub(super) store: MemoryStore,
    pub(super) network: NetworkName,
    pub(super) cooldown: Duration,
    caught_up: bool,
}

/// The settings that it reads from `ipam`.
#[derive(Debug, serde::Deserialize)]
pub struct MemoryConfig {
    /// The [`MemoryStore::named`] that it works on.
    pub(crate) memory: String,
}

/// The scan of a view, for the view that comes with a lost commit; and the lock.
pub struct MemoryToken {
    scanned: Vec<(PoolRequest, Scan)>,
    guard: Option<Guard>,
}

impl MemoryToken {
    /// Whether it holds the store's lock.
    pub(super) fn is_locked(&self) -> bool {
        self.guard.is_some()
    }
}

impl MemoryLedger {
    /// A ledger for one network.
    pub fn on(store: &MemoryStore, network: NetworkName) -> Self {
        Self { store: store.clone(), network, cooldown: Duration::ZERO, caught_up: false }
    }

    /// Fails for a name that another owner has.
    fn refuse_rivals(&self, query: &ViewQuery<'_>) -> Result<()> {
        let table = self.store.table();
        match query.requests.iter().find_map(|request| table.rival(query.owner, request)) {
            None => Ok(()),
            Some(rival) => {
                let message = format!("the sticky name is held by {}", rival.held_by());
                Err(Error::new(ErrorCode::TRY_AGAIN, message))
            }
        }
    }

    /// A request with its ranges, which the store may know.
    fn with_ranges(&self, request: &PoolRequest) -> Result<PoolRequest> {
        let mut request = request.clone();
        if request.set.is_none() && self.store.shape().chooses {
            let subnet = Some(STORE_RANGE.to_owned());
            let range = RangeConfig { subnet, ..RangeConfig::default() };
            request.set = Some(RangeSet::parse(&[range], RangeRules::ANY, &request.path)?);
        }
        Ok(request)
    }

    fn see(&self, owner: &Owner, token: MemoryToken, need: Need) -> View<MemoryToken> {
        let table = self.store.table();
        let sure = need == Need::Proof || self.caught_up || !self.store.shape().behind;
        let shows = self.store.shape().shows;
        let network = self.network.as_str();
        let mut pools = Vec::new();
        for (request, scan) in &token.scanned {
            let view = table.pool(network, request, *scan);
            let shown = match (shows, scan) {
                (ShownPools::All, _) => table.pool(network, request, Scan::Full),
                (ShownPools::Windows, Scan::None) => match window(request, view.cursor) {
                    Some(window) => table.pool(network, request, window),
                    None => view,
                },
                _ => view,
            };
            let resting = table.resting(network, self.cooldown);
            pools.push(PoolView { set: request.set.clone(), resting, ..shown });
        }
        let held = if sure { table.held(owner) } else { Vec::new() };
        View { held, sure, pools, token }
    }
}

impl Ledger for MemoryLedger {
    type Config = MemoryConfig;
    type Token = MemoryToken;

    const REACH: Reach = Reach::Cluster;

    fn open(config: MemoryConfig, request: &Request) -> Result<Self> {
        let store = MemoryStore::named(&config.memory);
        let this = Self::on(&store, request.network.name().clone());
        Ok(Self { cooldown: cooldown(request)?, ..this })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<MemoryToken>,
    ) -> Result<View<MemoryToken>> {
        // It may hold the lock.
        drop(earlier);
        let guard = self.store.lock_out()?;
        self.store.settle(false);
        self.refuse_rivals(query)?;
        let requests = query.requests.iter().map(|request| self.with_ranges(request));
        let requests: Vec<_> = requests.collect::<Result<_>>()?;
        let scanned = requests.into_iter().zip(query.scans.iter().copied()).collect();
        let view = self.see(query.owner, MemoryToken { scanned, guard }, query.need);
        let blind = query.scans.iter().all(|scan| *scan == Scan::None);
        if !(self.store.shape().guesses && query.may_guess && blind) {
            return Ok(view);
        }
        let pools = view.pools.into_iter().map(|pool| PoolView { used: Used::Unknown, ..pool });
        let (held, pools) = (query.known.to_vec(), pools.collect());
        Ok(View { held, sure: false, pools, token: view.token })
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: MemoryToken,
        change: &Change<'_>,
    ) -> Result<Commit<MemoryToken>> {
        self.store.between();
        self.store.settle(true);
        self.caught_up = true;
        let unsure = lock(&self.store.0.hooks).unsure.take();
        let done = match unsure {
            None => self.store.attempt(owner, change),
            Some(LostAnswer::Never) => Commit::Unknown,
            Some(LostAnswer::Done) => {
                let _ = self.store.attempt(owner, change);
                Commit::Unknown
            }
            Some(when) => {
                let claims = change.claim.iter().map(|claim| {
                    let candidates = claim.candidates.clone();
                    (claim.request.clone(), claim.set.clone(), candidates, claim.replaces.clone())
                });
                lock(&self.store.0.hooks).late.push(LateCommit {
                    when,
                    owner: owner.clone(),
                    keep: change.keep.clone(),
                    leave: change.leave.clone(),
                    drop: change.drop.clone(),
                    claims: claims.collect(),
                });
                Commit::Unknown
            }
        };
        Ok(self.with_view(owner, seen, done))
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.store.settle(false);
        let mut table = self.store.table();
        let network = self.network.as_str();
        Ok(entries.iter().filter(|entry| table.remove(network, entry)).cloned().collect())
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        self.with_ranges(request)?.set.ok_or_else(|| unknown_ranges(request))
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.store.settle(false);
        let entries = self.store.table().entries(self.network.as_str(), node);
        let _ = entries.into_iter().try_for_each(each);
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        Ok(())
    }

    fn profile(&self) -> Profile {
        let Shape { keeps_names, knows_freed, chooses, .. } = self.store.shape();
        Profile { keeps_sticky: keeps_names, knows_freed, chooses, ..Profile::default() }
    }
}

impl MemoryLedger {
    /// A commit; with the present state, if it was lost and the store shows it.
    pub(super) fn with_view(
        &mut self,
        owner: &Owner,
        seen: MemoryToken,
        done: Commit<()>,
    ) -> Commit<MemoryToken> {
        match done {
            Commit::Done { kept, claimed } => Commit::Done { kept, claimed },
            Commit::Full { claim } => {
                drop(seen.guard);
                Commit::Full { claim }
            }
            Commit::Outdated => Commit::Outdated,
            Commit::Unknown => Commit::Unknown,
            Commit::Lost { taken, .. } if !self.store.shape().tells => {
                drop(seen.guard);
                Commit::Lost { taken, view: None }
            }
            Commit::Lost { taken, .. } => {
                self.caught_up = true;
                Commit::Lost { taken, view: Some(self.see(owner, seen, Need::Proof)) }
            }
        }
    }
}
