//! One allocator over any ledger: search, retry, idempotency and GC, once.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use log::warn;

use super::ledger::{
    Change, Claim, Commit, Entry, Fault, Ledger, Look, PoolView, Question, Taken, Used, View,
    unknown_ranges,
};
use super::search::{Search, scramble};
use super::{Allocator, Books, Headroom, Lease, Owner, Reach, Scope, Strategy, Want};
use crate::cni::Keep;
use crate::delegate::{Deadline, Request};
use crate::error::{Error, ErrorCode, Result};
use crate::pool::{Pool, RangeSet};

/// An [`Allocator`] over a [`Ledger`].
#[derive(Debug)]
pub struct Bookkeeper<L> {
    ledger: L,
    /// Where not every pool is shown, what the owner holds of the others stays.
    shown_all: bool,
    grace: Duration,
    /// STATUS counts what is free.
    counts: bool,
    deadline: Deadline,
}

/// A race is lost a few times at most; more means that something is wrong.
const ROUNDS: u64 = 64;

/// How many addresses are offered for one claim.
const CANDIDATES: usize = 64;

impl<L: Ledger> Allocator for Bookkeeper<L> {
    type Config = L::Config;

    const REACH: Reach = L::REACH;
    const WAITS: bool = L::WAITS;

    fn open(config: Self::Config, request: &Request) -> Result<Self> {
        let ipam = request.network.ipam();
        Ok(Self {
            shown_all: !ipam.contains_key("serves"),
            counts: ipam.get("statusExhaustion").and_then(serde_json::Value::as_bool) == Some(true),
            grace: request.settings.gc_grace,
            deadline: request.deadline,
            ledger: L::open(config, request)?,
        })
    }

    fn allocate(&self, owner: &Owner, want: &[Pool]) -> Result<Vec<Lease>> {
        let wants = Want::read(want, L::STRATEGY)?;
        let mut attempt = Attempt::new(owner, &wants, self.shown_all);
        let mut view = self.ledger.view(&attempt.question(true))?;
        for _ in 0..ROUNDS {
            let (change, sources) = match attempt.plan(&view)? {
                Plan::Commit(change, sources) => (change, sources),
                Plan::Look => {
                    // A token may be a lock, which the next view takes again.
                    drop(view);
                    view = self.ledger.view(&attempt.question(false))?;
                    continue;
                }
            };
            match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { kept, claimed } => return collect(&sources, &kept, &claimed),
                Commit::Lost { taken, view: next } => {
                    attempt.learn(&change, &sources, taken)?;
                    view = match next {
                        Some(next) => next,
                        None => self.ledger.view(&attempt.question(false))?,
                    };
                }
                Commit::Unknown => view = self.ledger.view(&attempt.question(false))?,
            }
            self.in_time()?;
        }
        Err(contended(owner))
    }

    fn release(&self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>> {
        let question =
            |known, may_guess| Question { owner, known, want: &[], looks: &[], may_guess };
        let guessed = !known.is_empty();
        let mut view = self.ledger.view(&question(known, guessed))?;
        // What was held when this DEL looked; what is taken or confirmed later is not its affair.
        let mut seen = (!guessed).then(|| revisions(&view.held));
        for _ in 0..ROUNDS {
            let now = revisions(&view.held);
            if view.held.is_empty() || seen.as_ref().is_some_and(|seen| !now.is_subset(seen)) {
                return Ok(Vec::new());
            }
            let change = Change { drop: view.held, ..Change::default() };
            match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { .. } => return Ok(change.drop),
                Commit::Lost { view: Some(next), .. } => view = next,
                Commit::Lost { view: None, .. } | Commit::Unknown => {
                    view = self.ledger.view(&question(known, false))?;
                }
            }
            seen.get_or_insert_with(|| revisions(&view.held));
            self.in_time()?;
        }
        Err(contended(owner))
    }

    fn held(&self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>> {
        let question = Question { owner, known, want: &[], looks: &[], may_guess: false };
        Ok(self.ledger.view(&question)?.held)
    }

    fn retain(&self, scope: &Scope, keep: &Keep) -> Result<Vec<Lease>> {
        let now = SystemTime::now();
        let mut stale = Vec::new();
        self.ledger.scan(Some(&scope.node), &mut |entry| {
            if self.is_stale(&entry, scope, keep, now) {
                stale.push(entry);
            }
            ControlFlow::Continue(())
        })?;
        if stale.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.ledger.remove(&stale)?.into_iter().map(|entry| entry.lease).collect())
    }

    fn books(&self) -> Option<&dyn Books> {
        Some(self)
    }

    fn ready(&self, want: &[Pool]) -> Result<Headroom> {
        self.ledger.ready()?;
        if !self.counts || want.is_empty() {
            return Ok(Headroom::default());
        }
        Ok(Headroom { free: self.free(want)? })
    }
}

impl<L: Ledger> Books for Bookkeeper<L> {
    fn entries(&self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()> {
        self.ledger.scan(None, each)
    }

    fn remove(&self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.ledger.remove(entries)
    }

    fn sets(&self, pools: &[Pool]) -> Result<Vec<RangeSet>> {
        Want::read(pools, L::STRATEGY)?.iter().map(|want| self.ledger.ranges(want)).collect()
    }
}

impl<L: Ledger> Bookkeeper<L> {
    /// What is free in the scarcest pool, counted.
    fn free(&self, pools: &[Pool]) -> Result<Option<u64>> {
        let sets = self.sets(pools)?;
        let mut used = vec![0_u128; sets.len()];
        self.ledger.scan(None, &mut |entry| {
            let address = entry.lease.address.addr();
            for (used, set) in used.iter_mut().zip(&sets) {
                *used += u128::from(set.refusal(address).is_none());
            }
            ControlFlow::Continue(())
        })?;
        let free = sets.iter().zip(used).map(|(set, used)| set.size().saturating_sub(used)).min();
        Ok(free.map(|free| u64::try_from(free).unwrap_or(u64::MAX)))
    }

    /// Whether GC releases an entry: this node's, in no list, and old enough that the list can
    /// know of it.
    fn is_stale(&self, entry: &Entry, scope: &Scope, keep: &Keep, now: SystemTime) -> bool {
        if entry.fault == Some(Fault::Leftover) {
            return true;
        }
        let Some(holder) = &entry.holder else { return false };
        let listed = match &holder.ifname {
            Some(ifname) => keep.contains(&holder.container, ifname),
            None => keep.iter().any(|(container, _)| container == holder.container),
        };
        let foreign = holder.node.as_ref().is_some_and(|node| *node != scope.node);
        // A time to come is of a clock that was set back: nobody knows how old the lease is.
        let age = entry.since.and_then(|since| now.duration_since(since).ok());
        !listed && !foreign && age.is_some_and(|age| age >= self.grace)
    }

    fn in_time(&self) -> Result<()> {
        if !self.deadline.left().is_zero() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::TIMED_OUT, "the time is over")
            .advise("raise `ipam.timeout`, or look at what the store waits for"))
    }
}

/// One ADD on its way through lost races.
struct Attempt<'a> {
    owner: &'a Owner,
    wants: &'a [Want],
    shown_all: bool,
    looks: Vec<Look>,
    /// Candidates found taken while nothing else was known of their pools.
    avoid: BTreeSet<IpAddr>,
    /// Entries to take over, by pool.
    replaces: Vec<Option<Entry>>,
    /// An address that was seen free was taken by somebody quicker.
    raced: bool,
    random: u64,
}

enum Plan<'a> {
    Commit(Change<'a>, Vec<Source>),
    /// All that is known of a pool is taken: look further.
    Look,
}

/// Where the lease of a pool comes from.
enum Source {
    Kept(usize),
    Claimed { claim: usize, seen: bool },
}

impl<'a> Attempt<'a> {
    fn new(owner: &'a Owner, wants: &'a [Want], shown_all: bool) -> Self {
        Self {
            owner,
            wants,
            shown_all,
            looks: vec![Look::Nowhere; wants.len()],
            avoid: BTreeSet::new(),
            replaces: vec![None; wants.len()],
            raced: false,
            random: RandomState::new().build_hasher().finish(),
        }
    }

    fn question(&self, may_guess: bool) -> Question<'_> {
        Question { owner: self.owner, known: &[], want: self.wants, looks: &self.looks, may_guess }
    }

    /// What to commit by what the view shows.
    fn plan<T>(&mut self, view: &View<T>) -> Result<Plan<'a>> {
        let sets = self.sets(&view.pools)?;
        let (serving, rest) = match_leases(self.wants, &sets, &view.held);
        let (unasked, others) = self.part(rest, &sets);
        let mut change = Change::default();
        let mut sources = Vec::new();
        let mut further = false;
        for (i, (want, set)) in self.wants.iter().zip(sets).enumerate() {
            if let Some(lease) = &serving[i] {
                sources.push(Source::Kept(change.keep.len()));
                change.keep.push(want.lease(&set, lease.address.addr(), lease.revision.clone()));
                continue;
            }
            let pool = &view.pools[i];
            let candidates = self.candidates(want, &set, pool);
            if candidates.is_empty() {
                self.look_further(i, &set, pool)?;
                further = true;
            }
            let seen = pool.used != Used::Unknown;
            sources.push(Source::Claimed { claim: change.claim.len(), seen });
            change.claim.push(Claim { want, set, candidates, replaces: self.replaces[i].clone() });
        }
        if further {
            return Ok(Plan::Look);
        }
        change.drop = unasked;
        change.keep.extend(others);
        Ok(Plan::Commit(change, sources))
    }

    /// Of the leases that serve no pool, those that are not asked for any more, and those of pools
    /// that are not shown here.
    fn part(&self, rest: Vec<Lease>, sets: &[RangeSet]) -> (Vec<Lease>, Vec<Lease>) {
        let shown = |lease: &Lease| {
            let mut shown = self.wants.iter().zip(sets);
            shown.any(|(want, set)| want.is_home_of(lease, set))
        };
        rest.into_iter().partition(|lease| self.shown_all || shown(lease))
    }

    fn sets(&self, pools: &[PoolView]) -> Result<Vec<RangeSet>> {
        let of = |(want, pool): (&Want, &PoolView)| {
            let set = want.set.as_ref().or(pool.set.as_ref());
            let set = set.cloned().ok_or_else(|| unknown_ranges(want))?;
            want.judge_request(&set)?;
            Ok(set)
        };
        let sets: Vec<RangeSet> = self.wants.iter().zip(pools).map(of).collect::<Result<_>>()?;
        RangeSet::refuse_overlaps(self.wants.iter().map(|w| w.path.as_str()).zip(&sets))?;
        Ok(sets)
    }

    fn candidates(&self, want: &Want, set: &RangeSet, pool: &PoolView) -> Vec<IpAddr> {
        match want.requested {
            Some(asked) => vec![asked],
            None => self.search(want, set).candidates(pool, CANDIDATES),
        }
    }

    fn search<'b>(&'b self, want: &Want, set: &'b RangeSet) -> Search<'b> {
        // Whoever lost a race tries elsewhere.
        let strategy = if self.raced { Strategy::Random } else { want.strategy };
        Search { set, strategy, random: self.random, avoid: &self.avoid }
    }

    fn look_further(&mut self, i: usize, set: &RangeSet, pool: &PoolView) -> Result<()> {
        let want = &self.wants[i];
        let seen = if matches!(pool.used, Used::All(_)) { Look::Everywhere } else { self.looks[i] };
        let next = self.search(want, set).look_after(seen, pool.cursor);
        self.looks[i] = next.ok_or_else(|| exhausted(want, set))?;
        Ok(())
    }

    /// Takes in why a commit was lost.
    fn learn(&mut self, change: &Change<'_>, sources: &[Source], taken: Vec<Taken>) -> Result<()> {
        for Taken { claim, address, holder } in taken {
            let of_claim =
                |source: &Source| matches!(source, Source::Claimed { claim: c, .. } if *c == claim);
            let Some(i) = sources.iter().position(of_claim) else { continue };
            let Some(claim) = change.claim.get(claim) else { continue };
            if self.wants[i].requested.is_some() {
                // Whoever was to be replaced has gone meanwhile.
                let gone = claim.replaces.is_some() && holder.is_none();
                self.replaces[i] = match holder {
                    _ if gone => None,
                    holder => Some(self.take_over(claim, address, holder)?),
                };
                continue;
            }
            self.raced |= matches!(sources[i], Source::Claimed { seen: true, .. });
            self.avoid.insert(address);
            if self.looks[i] == Look::Nowhere {
                let next =
                    self.search(claim.want, &claim.set).look_after(Look::Nowhere, Some(address));
                self.looks[i] = next.unwrap_or(Look::Everywhere);
            }
        }
        self.random = scramble(self.random);
        Ok(())
    }

    /// The entry that a request may take the place of.
    fn take_over(
        &self,
        claim: &Claim<'_>,
        address: IpAddr,
        holder: Option<Entry>,
    ) -> Result<Entry> {
        let by = holder.as_ref().map_or("another owner".to_owned(), Entry::held_by);
        match holder {
            Some(entry) if claim.want.takeover && entry.holder.is_some() => {
                warn!("{} takes over {address}, which is held by {by}: takeover is set", self.owner);
                Ok(entry)
            }
            _ => Err(Error::new(
                ErrorCode::TAKEN,
                format!(
                    "failed to allocate for range {}: requested IP address {address} is not available in range set {}: \
                     it is held by {by}",
                    claim.want.index,
                    claim.want.describe(&claim.set)
                ),
            )
            .advise("request another address, or release the one that is held")),
        }
    }
}

/// For each pool the lease that serves it already, and the leases that serve none.
fn match_leases(
    wants: &[Want],
    sets: &[RangeSet],
    held: &[Lease],
) -> (Vec<Option<Lease>>, Vec<Lease>) {
    let mut rest = held.to_vec();
    let mut serving = vec![None; wants.len()];
    // A pool that may take any address leaves the one asked for to the pool that asks.
    let order =
        |asked: bool| (0..wants.len()).filter(move |i| wants[*i].requested.is_some() == asked);
    for i in order(true).chain(order(false)) {
        let place = rest.iter().position(|lease| wants[i].is_served_by(lease, &sets[i]));
        serving[i] = place.map(|place| rest.swap_remove(place));
    }
    (serving, rest)
}

/// One lease for each pool, in order.
fn collect(sources: &[Source], kept: &[Lease], claimed: &[Lease]) -> Result<Vec<Lease>> {
    let of = |source: &Source| match source {
        Source::Kept(place) => kept.get(*place),
        Source::Claimed { claim, .. } => claimed.get(*claim),
    };
    sources.iter().map(|source| of(source).cloned()).collect::<Option<_>>().ok_or_else(|| {
        Error::new(ErrorCode::INTERNAL, "the ledger answered fewer leases than it was asked for")
    })
}

/// The very leases that are held.
fn revisions(held: &[Lease]) -> BTreeSet<(IpAddr, String)> {
    held.iter().map(|lease| (lease.address.addr(), lease.revision.to_string())).collect()
}

fn exhausted(want: &Want, set: &RangeSet) -> Error {
    let message = format!(
        "failed to allocate for range {}: no IP addresses available in range set: {}",
        want.index,
        want.describe(set)
    );
    Error::new(ErrorCode::EXHAUSTED, message).advise("free leases, or add a range to the pool")
}

fn contended(owner: &Owner) -> Error {
    let message = format!("{owner} has lost {ROUNDS} races for an address");
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise("call again; others take and free addresses all the time")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::allocate::Allocate;
    use crate::cni::{Environment, NetworkName};
    use crate::delegate::answer;
    use crate::host::Settings;
    use crate::testing::memory::{Memory, Shape, Shows, Store, Unsure};

    /// A store of its own, and calls of the allocator over it.
    #[derive(Clone)]
    struct Desk {
        name: String,
        store: Store,
    }

    impl Desk {
        fn new(shape: Shape) -> Self {
            static STORES: AtomicU64 = AtomicU64::new(0);
            let name = format!("bookkeeper-{}", STORES.fetch_add(1, Ordering::Relaxed));
            Self { store: Store::named(&name).shaped(shape), name }
        }

        fn call(&self, verb: &str, container: &str, pools: Value, keys: Value) -> Value {
            let environment = Environment::new([
                ("CNI_COMMAND", verb),
                ("CNI_CONTAINERID", container),
                ("CNI_IFNAME", "eth0"),
                ("CNI_NETNS", "/run/netns/x"),
            ]);
            let mut ipam = json!({"node": "node-1", "memory": self.name});
            ipam.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            let config = json!({
                "cniVersion": "1.1.0", "name": "n", "ipam": ipam, "prevResult": {"pools": pools},
            });
            let delegate: Allocate<Bookkeeper<Memory>> = Allocate::default();
            let stdin = config.to_string();
            let reply = answer(&delegate, environment, stdin.as_bytes(), Settings::default());
            serde_json::from_str(&reply.stdout).unwrap_or_default()
        }

        fn add(&self, container: &str, pools: Value) -> Value {
            self.call("ADD", container, pools, json!({}))
        }

        fn del(&self, container: &str) {
            assert_eq!(self.call("DEL", container, json!([]), json!({})), Value::Null);
        }

        fn ledger(&self) -> Memory {
            Memory::on(&self.store, NetworkName::parse("n").unwrap())
        }

        fn entries(&self) -> Vec<Entry> {
            let mut entries = Vec::new();
            let scanned = self.ledger().scan(None, &mut |entry| {
                entries.push(entry);
                ControlFlow::Continue(())
            });
            scanned.unwrap();
            entries
        }

        /// Who holds what, in the order of the addresses.
        fn held(&self) -> Vec<String> {
            let line = |entry: &Entry| {
                let holder = entry.holder.as_ref().unwrap();
                format!("{} {}", holder.container, entry.lease.address.addr())
            };
            self.entries().iter().map(line).collect()
        }
    }

    fn shapes() -> [Shape; 4] {
        let default = Shape::default();
        [
            default,
            Shape { guesses: true, tells: false, tries: 1, ..default },
            Shape { shows: Shows::All, ..default },
            Shape { locks: true, shows: Shows::Windows, ..default },
        ]
    }

    fn two() -> Value {
        json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}, {"ranges": [{"subnet": "10.0.1.0/24"}]}])
    }

    fn requesting(address: &str, takeover: bool) -> Value {
        json!([{"ranges": [{"subnet": "10.0.0.0/24"}], "requested-ip": address, "takeover": takeover}])
    }

    #[test]
    fn an_outcome_that_is_not_told_is_found_out() {
        for shape in shapes() {
            for when in [Unsure::Never, Unsure::Done, Unsure::Late, Unsure::Later] {
                let desk = Desk::new(shape);
                desk.store.lose_answer(when);
                let added = desk.add("c1", two());
                assert_eq!(
                    added["ips"][0]["address"], "10.0.0.2/24",
                    "{shape:?} {when:?}: {added}"
                );
                assert_eq!(desk.held(), ["c1 10.0.0.2", "c1 10.0.1.2"], "{shape:?} {when:?}");
                desk.store.lose_answer(when);
                desk.del("c1");
                // A commit that is late still has to be met by the next call.
                desk.add("c2", two());
                desk.del("c2");
                assert_eq!(desk.held(), [""; 0], "{shape:?} {when:?}");
            }
        }
    }

    #[test]
    fn a_del_releases_the_rest_of_what_it_saw_when_a_part_is_gone() {
        let desk = Desk::new(Shape::default());
        desk.add("c1", two());
        let one = desk.entries().remove(0);
        let ledger = desk.ledger();
        assert!(desk.store.interleave(move || assert_eq!(ledger.remove(&[one]).unwrap().len(), 1)));
        desk.del("c1");
        assert_eq!(desk.held(), [""; 0]);
    }

    #[test]
    fn takeover_replaces_the_holder() {
        let desk = Desk::new(Shape::default());
        desk.add("c1", requesting("10.0.0.9", false));
        assert_eq!(desk.add("c2", requesting("10.0.0.9", false))["code"], 102);
        assert_eq!(
            desk.add("c2", requesting("10.0.0.9", true))["ips"][0]["address"],
            "10.0.0.9/24"
        );
        assert_eq!(desk.held(), ["c2 10.0.0.9"]);
    }

    #[test]
    fn takeover_of_what_is_free_by_now_takes_it() {
        let desk = Desk::new(Shape { tells: false, ..Shape::default() });
        desk.add("c1", requesting("10.0.0.9", false));
        let other = desk.clone();
        // The first commit finds the holder; before the second, the holder is released.
        desk.store.interleave(|| ());
        desk.store.interleave(move || other.del("c1"));
        let added = desk.add("c2", requesting("10.0.0.9", true));
        assert_eq!(added["ips"][0]["address"], "10.0.0.9/24", "{added}");
        assert_eq!(desk.held(), ["c2 10.0.0.9"]);
    }

    #[test]
    fn a_delegate_that_is_shown_some_pools_keeps_those_of_others_only() {
        let desk = Desk::new(Shape::default());
        desk.add("c1", two());
        let serves = |pools| desk.call("ADD", "c1", pools, json!({"serves": ["a"]}));
        assert_eq!(serves(requesting("10.0.0.7", false))["ips"][0]["address"], "10.0.0.7/24");
        assert_eq!(desk.held(), ["c1 10.0.0.7", "c1 10.0.1.2"]);
        desk.add("c1", requesting("10.0.0.7", false));
        assert_eq!(desk.held(), ["c1 10.0.0.7"]);
    }

    #[test]
    fn a_full_pool_is_told_whatever_the_store_shows() {
        for shape in shapes() {
            let desk = Desk::new(shape);
            let tiny = json!([{"ranges": [{"subnet": "10.0.0.0/30"}]}]);
            assert_eq!(desk.add("c1", tiny.clone())["ips"][0]["address"], "10.0.0.2/30");
            assert_eq!(desk.add("c2", tiny)["code"], 100, "{shape:?}");
        }
    }
}
