//! One allocator over any ledger: search, retry, idempotency and GC, once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use super::attempt::{Attempt, Plan, collect};
use super::ledger::{Change, Commit, Entry, Fault, Ledger, Question};
use super::{Allocator, Books, Headroom, Lease, Owner, Reach, Scope, Want};
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
        let (mut before, mut unknown) = (Vec::new(), false);
        for _ in 0..ROUNDS {
            // After an unknown outcome, what is held may be of this very ADD.
            if !unknown {
                before = view.held.iter().map(|lease| lease.address.addr()).collect();
            }
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
                Commit::Done { kept, claimed } => {
                    let mut leases = collect(&sources, &kept, &claimed)?;
                    for lease in &mut leases {
                        lease.kept = before.contains(&lease.address.addr());
                    }
                    return Ok(leases);
                }
                Commit::Lost { taken, view: next } => {
                    attempt.learn(&change, &sources, taken)?;
                    view = match next {
                        Some(next) => next,
                        None => self.ledger.view(&attempt.question(false))?,
                    };
                }
                Commit::Unknown => {
                    unknown = true;
                    view = self.ledger.view(&attempt.question(false))?;
                }
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

    fn take_back(&self, owner: &Owner, leases: &[Lease]) -> Result<Vec<Lease>> {
        let question = Question { owner, known: leases, want: &[], looks: &[], may_guess: false };
        let mut view = self.ledger.view(&question)?;
        let taken = revisions(leases);
        for _ in 0..ROUNDS {
            // One that was confirmed since is a later ADD's.
            let (drop, keep): (Vec<Lease>, Vec<Lease>) =
                view.held.into_iter().partition(|lease| taken.contains(&revision(lease)));
            if drop.is_empty() {
                return Ok(Vec::new());
            }
            let change = Change { keep, drop, ..Change::default() };
            match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { .. } => return Ok(change.drop),
                Commit::Lost { view: Some(next), .. } => view = next,
                Commit::Lost { view: None, .. } | Commit::Unknown => {
                    view = self.ledger.view(&question)?;
                }
            }
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

/// The very leases that are held.
fn revisions(held: &[Lease]) -> BTreeSet<(IpAddr, String)> {
    held.iter().map(revision).collect()
}

fn revision(lease: &Lease) -> (IpAddr, String) {
    (lease.address.addr(), lease.revision.to_string())
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
            let time = if keys.get("late").is_some() { "0" } else { "10000" };
            let environment = Environment::new([
                (Deadline::VARIABLE, time),
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
    fn of_two_leases_that_a_crash_left_in_a_pool_one_stays() {
        let desk = Desk::new(Shape::default());
        desk.add("c1", two());
        let both = json!([{"ranges": [{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]}]);
        assert_eq!(desk.add("c1", both)["ips"].as_array().unwrap().len(), 1);
        assert_eq!(desk.held().len(), 1);
    }

    #[test]
    fn nothing_is_tried_again_when_the_time_is_over() {
        let desk = Desk::new(Shape::default());
        desk.store.lose_answer(Unsure::Never);
        let added = desk.call("ADD", "c1", two(), json!({"late": true}));
        assert_eq!(added["code"], 111, "{added}");
        desk.add("c1", two());
        desk.store.lose_answer(Unsure::Never);
        let deleted = desk.call("DEL", "c1", json!([]), json!({"late": true}));
        assert_eq!(deleted["code"], 111, "{deleted}");
        assert_eq!(desk.held().len(), 2);
    }

    #[test]
    fn whoever_loses_every_race_is_told_to_call_again() {
        let desk = Desk::new(Shape::default());
        desk.add("c1", two());
        let _ = desk.store.clone().shaped(Shape { contended: true, ..Shape::default() });
        assert_eq!(desk.add("c2", two())["code"], 11);
        assert_eq!(desk.call("DEL", "c1", json!([]), json!({}))["code"], 11);
    }

    #[test]
    fn a_free_address_behind_many_that_are_taken_is_found() {
        for shape in shapes().into_iter().chain([Shape { tries: 1, ..Shape::default() }]) {
            let desk = Desk::new(shape);
            let lan = json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]);
            for number in 0..200 {
                desk.add(&format!("c{number}"), lan.clone());
            }
            desk.del("c0");
            desk.del("c150");
            desk.add("c0", requesting("10.0.0.2", false));
            let added = desk.add("c200", lan);
            assert_eq!(added["ips"][0]["address"], "10.0.0.152/24", "{shape:?}: {added}");
        }
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
