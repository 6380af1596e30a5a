//! Calls of old nodes between any two requests of ours, and with the next sandbox of a pod of ours.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ipam_testkit::kube::Kube;
use ipam_testkit::node::at_once;
use ipam_testkit::old::whereabouts::{Call, Whereabouts};
use ipam_testkit::whereabouts::Release;
use ipam_testkit::world::{full_size, wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::beside::{IFNAME, Ours, Site, old_add, old_del, old_given, pod, served};
use crate::common::relay::{Fate, Relay, no_bug};

const RANGE: &str = "10.1.2.0/26";

/// The releases under CRDs that serve reservations: their own, the fork under the shipped ones.
const RELEASES: [(Release, Option<Release>); 4] = [
    (Release::V054, Some(Release::V054)),
    (Release::V07, Some(Release::V07)),
    (Release::V094, Some(Release::V094)),
    (Release::Fork, None),
];

/// The releases of a test: the newest and the fork in CI, all of them by hand, as with histories.
fn releases() -> &'static [(Release, Option<Release>)] {
    if full_size() { &RELEASES } else { &RELEASES[2..] }
}

/// Those that make reservations.
fn reserving() -> impl Iterator<Item = &'static (Release, Option<Release>)> {
    releases().iter().filter(|(release, _)| *release != Release::Fork)
}

/// More requests than any call of this program sends here.
const REQUESTS: usize = 5;

/// Does something once, before the n-th request through a relay.
fn before_request(relay: &Relay, number: usize, work: impl FnOnce() + Send + 'static) {
    let (count, work) = (AtomicUsize::new(0), Mutex::new(Some(work)));
    relay.decide(move |_| {
        if count.fetch_add(1, Ordering::SeqCst) == number
            && let Some(work) = work.lock().unwrap().take()
        {
            work();
        }
        Fate::Pass
    });
}

/// An old node in a pool, and ours behind a relay in the same pool or in one that overlaps.
struct Between {
    site: Site,
    relay: Relay,
    ours: Ours,
    old: Whereabouts,
}

impl Between {
    fn new(kube: &Kube, release: Release, number: usize, ranges: [&str; 2]) -> Self {
        let relay = Relay::to(kube, no_bug);
        let site = Site::through(kube, Some(&relay.url()));
        let (ours, old) = (Ours::of(number, &site, ranges[0]), site.old(release, ranges[1]));
        Self { site, relay, ours, old }
    }

    /// A call of ours, with an ADD of the old node before its n-th request: what both were given.
    fn add_before(&self, number: usize, container: &str) -> (IpAddr, Option<IpAddr>) {
        let (old, address) = (self.old.clone(), Arc::new(Mutex::new(None)));
        let found = address.clone();
        let name = format!("old-{container}");
        before_request(&self.relay, number, move || {
            *found.lock().unwrap() = Some(old_given(old_add(&old, &name)));
        });
        let own = self.ours.add(container);
        self.relay.pass();
        let old = *address.lock().unwrap();
        (own, old)
    }

    /// An ADD of ours that is killed when it has its reservation, and changes the pool that overlaps.
    fn kill_before_other_pool(&self, container: &str) {
        let killed = Arc::new(OnceLock::<Pid>::new());
        let its = killed.clone();
        self.relay.decide(move |ask| {
            if ask.method != "PATCH" || !ask.body.contains("outdated") {
                return Fate::Pass;
            }
            kill_process(*its.wait(), Signal::KILL).unwrap();
            Fate::End
        });
        let child = self.ours.start("ADD", container);
        killed.set(Pid::from_child(&child)).unwrap();
        assert_eq!(wait(child).exit, None);
        assert_eq!(self.site.objects.reservations().len(), 1);
        self.relay.pass();
    }

    /// A DEL of ours, with a DEL of the old node before its n-th request, else after it.
    fn del_before(&self, number: usize, container: &str, other: &str) {
        let (old, name) = (self.old.clone(), other.to_owned());
        let ran = Arc::new(AtomicBool::new(false));
        let runs = ran.clone();
        before_request(&self.relay, number, move || {
            runs.store(true, Ordering::SeqCst);
            old_del(&old, &name);
        });
        self.ours.del(container);
        self.relay.pass();
        if !ran.load(Ordering::SeqCst) {
            old_del(&self.old, other);
        }
    }
}

#[test]
fn an_old_call_comes_before_any_request_of_ours() {
    for &(release, crds) in releases() {
        let kube = served(crds);
        at_once(REQUESTS + 1, |number| {
            let between = Between::new(kube, release, number, [RANGE, RANGE]);
            let Between { site, ours, old, .. } = &between;
            let when = format!("{release:?}: {} before {number}", ours.kind);
            // The first address is free: the fork has a key of its own for it. The pool is missing
            // first, and then empty.
            for name in ["cold", "warm"] {
                let (own, other) = between.add_before(number, name);
                assert_ne!(Some(own), other, "{when}");
                let Some(other) = other else {
                    ours.del(name);
                    continue;
                };
                let theirs = format!("old-{name}");
                site.assert_held(release, [(name, own), (&theirs, other)], &when);
                between.del_before(number, name, &theirs);
                site.assert_released(release, &when);
            }

            // Both release the same.
            ours.add("both");
            between.del_before(number, "both", "both");
            assert!(site.held().is_empty(), "{when}");
            let again = old_given(old_add(old, "again"));
            assert_ne!(ours.add("last"), again, "{when}");
        });
    }
}

#[test]
fn an_old_call_in_a_pool_that_overlaps_comes_before_any_request_of_ours() {
    for &(release, crds) in reserving() {
        let kube = served(crds);
        at_once(REQUESTS + 3, |number| {
            let between = Between::new(kube, release, number, [RANGE, "10.1.2.0/27"]);
            let Between { site, ours, old, .. } = &between;
            let when = format!("{release:?}: {} before {number}", ours.kind);
            let before = old_given(old_add(old, "before"));
            let (own, other) = between.add_before(number, "ours");
            let all = [("before", before), ("ours", own)].into_iter();
            site.assert_held(release, all.chain(other.map(|other| ("old-ours", other))), &when);
            ours.del("ours");
            ["before", "old-ours"].iter().for_each(|container| old_del(old, container));
            site.assert_empty(&when);
        });
    }
}

/// The end of an old ADD: its address, or none after a DEL.
fn ended(old: &Whereabouts, call: Call) -> Option<IpAddr> {
    let given = call.run().ok().map(|addresses| addresses[0]);
    if given.is_none() {
        old_del(old, "late");
    }
    given
}

/// When the rest of an old ADD comes, whose entry comes late.
#[derive(Clone, Copy, PartialEq)]
enum Rest {
    /// With the entry, and then its DEL if the ADD fails.
    AtOnce,
    /// After our ADD.
    Later,
}

/// What was before our ADD.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    /// An ADD of the same container, killed before it changed the other pool.
    Killed,
}

/// An ADD of an old node has seen that an address is not reserved, and writes its entry later.
#[test]
fn an_old_entry_in_a_pool_that_overlaps_comes_before_any_request_of_ours() {
    late_entry_comes(Rest::Later, Before::Nothing);
}

/// The same, and that ADD fails, and its DEL ends, before the same request.
#[test]
fn an_old_add_that_fails_and_its_del_come_before_any_request_of_ours() {
    late_entry_comes(Rest::AtOnce, Before::Nothing);
}

/// The same two, where ours repeats an ADD that was killed before it changed the other pool.
#[test]
fn an_old_entry_comes_before_any_request_of_an_add_that_repeats_a_killed_one() {
    late_entry_comes(Rest::Later, Before::Killed);
}

#[test]
fn an_old_add_that_fails_and_its_del_come_before_any_request_of_an_add_that_repeats_a_killed_one() {
    late_entry_comes(Rest::AtOnce, Before::Killed);
}

/// The late entry comes before a request of ours.
fn late_entry_comes(rest: Rest, before: Before) {
    for &(release, crds) in reserving() {
        let kube = served(crds);
        at_once(REQUESTS + 3, |number| {
            // The kill of a chain would leave the delegate to its end.
            let kind = if before == Before::Killed { 1 } else { number };
            let between = Between::new(kube, release, kind, ["10.1.2.0/27", RANGE]);
            let Between { site, relay, ours, old } = &between;
            let when = format!("{release:?}: {} before {number}", ours.kind);
            // Both pools exist, and ours knows the other.
            let first = old_given(old_add(old, "first"));
            ours.add("first-of-ours");
            old_del(old, "first");
            ours.del("first-of-ours");

            let mut late = old_add(old, "late");
            let look = format!("GET overlappingrangeipreservations/{first} 404");
            assert!(late.any(|step| step == look), "{when}");
            if before == Before::Killed {
                between.kill_before_other_pool("ours");
            }
            let late = Arc::new(Mutex::new((Some(late), None)));
            let (its, its_old) = (late.clone(), old.clone());
            before_request(relay, number, move || {
                let (call, given) = &mut *its.lock().unwrap();
                if rest == Rest::AtOnce {
                    *given = call.take().and_then(|call| ended(&its_old, call));
                } else {
                    call.as_mut().and_then(Call::step);
                }
            });
            let own = ours.add("ours");
            relay.pass();
            let (call, given) = &mut *late.lock().unwrap();
            let late = given.or_else(|| call.take().and_then(|call| ended(old, call)));
            let next = old_given(old_add(old, "next"));
            let mut holders = vec![("ours", own), ("next", next)];
            holders.extend(late.map(|address| ("late", address)));
            site.assert_held(release, holders, &when);
            ours.del("ours");
            ["late", "next"].into_iter().for_each(|name| old_del(old, name));
            site.assert_released(release, &when);
        });
    }
}

#[test]
fn a_late_del_frees_nothing_that_an_old_node_gave_to_the_next_sandbox() {
    for crds in [Some(Release::V094), None] {
        let kube = served(crds);
        for kind in [Ours::chain, Ours::alone] {
            let site = Site::new(kube);
            let (ours, old) = (kind(&site, RANGE), site.old(Release::V094, RANGE));
            let own = ours.add("c1");
            let next = || old.add("c2", IFNAME, &pod("c1"));
            assert_eq!(old_given(next()), own, "{}", ours.kind);
            ours.del("c1");
            site.assert_held(Release::V094, [("c2", own)], ours.kind);
            ours.del("c1");
            site.assert_held(Release::V094, [("c2", own)], ours.kind);
            old.del("c2", IFNAME, &pod("c1")).run().unwrap();
            site.assert_empty(ours.kind);

            // A node with this program releases it, too.
            ours.add("c1");
            old_given(next());
            kind(&site, RANGE).del("c2");
            site.assert_empty(ours.kind);
            ours.del("c1");
            site.assert_empty(ours.kind);
        }
    }
}
