//! Calls of ours between any two requests of old nodes.
//!
//! In the fork's pools IPv4 alone is tried: there it gives its first address to several pods, and
//! ours must keep apart from all of them.

use std::net::IpAddr;

use ipam_testkit::kube::Kube;
use ipam_testkit::node::at_once;
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::Release;
use ipam_testkit::world::full_size;

use crate::common::beside::{
    IFNAME, Ours, Site, amid, given, old_add, old_del, old_given, pod, served,
};

/// A release, and the world in which ours are beside it.
#[derive(Clone, Copy)]
struct Beside {
    release: Release,
    world: World,
}

#[derive(Clone, Copy, PartialEq)]
enum World {
    /// Under the release's own CRDs.
    Own,
    /// Under the CRDs that this repository ships.
    Shipped,
    /// Under the release's own CRDs, in a network with a name.
    Named,
}

use World::{Named, Own, Shipped};

impl Beside {
    fn served(self) -> &'static Kube {
        served((self.world != Shipped).then_some(self.release))
    }

    /// An old node with a range.
    fn old(self, site: &Site, range: &str) -> Whereabouts {
        site.old(self.release, range).network_name(self.network_name())
    }

    /// One of ours, by a number.
    fn ours(self, number: usize, site: &Site, range: &str) -> Ours {
        Ours::of(number, site, range).in_network(self.network_name())
    }

    fn network_name(self) -> &'static str {
        if self.world == Named { "blue" } else { "" }
    }

    /// Does something before, between and after so many requests. In CI in a part of the places,
    /// but for the release's own CRDs: by hand in all, as with histories.
    fn after_each(self, requests: usize, work: impl Fn(usize) + Sync) {
        let step = if self.world == Own || full_size() { 1 } else { 3 };
        let places: Vec<usize> = (0..=requests).step_by(step).collect();
        at_once(places.len(), |place| work(places[place]));
    }

    /// How many requests an old ADD and an old DEL send.
    fn requests(self, site: &Site, range: &str) -> [usize; 2] {
        let old = self.old(site, range);
        let ours = self.ours(1, site, range);
        ours.add("earlier");
        let requests = [old_add(&old, "c1").count(), old.del("c1", IFNAME, &pod("c1")).count()];
        ours.del("earlier");
        requests
    }
}

/// One family under the release's own CRDs, the other under the shipped ones.
fn range(beside: Beside) -> &'static str {
    if beside.world == Shipped && beside.release != Release::Fork {
        "fd00:1::/120"
    } else {
        "10.1.2.0/26"
    }
}

fn ours_come_between_the_requests_of_an_add(beside: Beside) {
    let (kube, range) = (beside.served(), range(beside));
    let release = beside.release;
    let [requests, _] = beside.requests(&Site::new(kube), range);
    beside.after_each(requests, |requests| {
        let site = Site::new(kube);
        let (ours, old) = (beside.ours(requests / 2, &site, range), beside.old(&site, range));
        let when = format!("{} after {requests}", ours.kind);
        let earlier = ours.add("earlier");

        let (first, outcome) = amid(old_add(&old, "first"), requests, || ours.start("ADD", "ours"));
        let (first, own) = (first.unwrap()[0], given(outcome));
        let all = [("earlier", earlier), ("first", first), ("ours", own)];
        site.assert_held(release, all, &when);

        let (second, outcome) =
            amid(old_add(&old, "second"), requests, || ours.start("DEL", "earlier"));
        outcome.success();
        let second = second.unwrap()[0];
        let last = ours.add("last");
        let all = [("first", first), ("ours", own), ("second", second), ("last", last)];
        site.assert_held(release, all, &when);

        ["ours", "last"].iter().for_each(|container| ours.del(container));
        ["first", "second"].iter().for_each(|container| old_del(&old, container));
        site.assert_empty(&when);
    });
}

fn ours_come_between_the_requests_of_a_del(beside: Beside) {
    let (kube, range) = (beside.served(), range(beside));
    let release = beside.release;
    let [_, requests] = beside.requests(&Site::new(kube), range);
    beside.after_each(requests, |requests| {
        let site = Site::new(kube);
        let (ours, old) = (beside.ours(requests / 2, &site, range), beside.old(&site, range));
        let when = format!("{} after {requests}", ours.kind);
        let del = |container: &str| old.del(container, IFNAME, &pod(container));
        let earlier = ours.add("earlier");

        old_given(old_add(&old, "old"));
        let (gone, outcome) = amid(del("old"), requests, || ours.start("ADD", "ours"));
        let own = given(outcome);
        assert_eq!(gone, Ok(vec![]));
        site.assert_held(release, [("earlier", earlier), ("ours", own)], &when);

        old_given(old_add(&old, "old"));
        let (gone, outcome) = amid(del("old"), requests, || ours.start("DEL", "earlier"));
        outcome.success();
        assert_eq!(gone, Ok(vec![]));
        site.assert_held(release, [("ours", own)], &when);

        // Both release the same.
        let (gone, outcome) = amid(del("ours"), requests, || ours.start("DEL", "ours"));
        outcome.success();
        assert_eq!(gone, Ok(vec![]));
        site.assert_empty(&when);
    });
}

/// Each side finds and releases what the other has given.
fn each_releases_what_the_other_gave(beside: Beside) {
    let (kube, range) = (beside.served(), range(beside));
    let release = beside.release;
    for kind in 0..2 {
        let site = Site::new(kube);
        let (ours, old) = (beside.ours(kind, &site, range), beside.old(&site, range));
        // The fork gives its first IPv4 address twice.
        ours.add("stays");
        let own = ours.add("c1");
        old_del(&old, "c1");
        assert_eq!(site.held().len(), 1, "{release:?}");
        assert!(
            !site.reserves || release == Release::Fork || site.objects.reservations().len() == 1
        );
        assert_eq!(ours.check("c1", &pod("c1"), own).failure().0, 104);

        // The address belongs to another container then, so ours does not release it.
        assert_eq!(old_given(old_add(&old, "c2")), own);
        let again = ours.add("c1");
        assert_ne!(again, own);
        ours.del("c1");
        assert_eq!(site.held().remove(&own).as_deref(), Some("c2"));

        // A node with this program that has never called.
        let fresh = beside.ours(kind, &site, range);
        fresh.check("c2", &pod("c2"), own).ended_well();
        let third = old_given(old_add(&old, "c3"));
        assert_eq!(fresh.check("c2", &pod("c2"), third).failure().0, 104);
        fresh.del("c2");
        assert_eq!(site.held().remove(&third).as_deref(), Some("c3"));
        assert_eq!(site.held().len(), 2);
        fresh.del("c2");
        fresh.del("c3");
        ours.del("stays");
        assert!(site.held().is_empty(), "{}", ours.kind);
        // The fork leaves the reservations of what it releases. GC finds those of this node.
        let left = (site.reserves && release == Release::Fork).then(|| own.to_string());
        let reservations: Vec<String> = site.objects.reservations().into_keys().collect();
        assert_eq!(reservations, Vec::from_iter(left), "{}", ours.kind);
    }
}

/// Pools that overlap: each asks the reservations, which the fork does not have.
fn pools_that_overlap_give_no_address_twice(beside: Beside) {
    let (kube, release) = (beside.served(), beside.release);
    let [requests, _] = beside.requests(&Site::new(kube), "10.1.2.0/26");
    beside.after_each(requests, |requests| {
        let both = [["10.1.2.0/26", "10.1.2.0/27"], ["10.1.2.0/27", "10.1.2.0/26"]];
        let some = if full_size() { &both[..] } else { &both[requests % 2..][..1] };
        for ranges in some.iter().copied() {
            let site = Site::new(kube);
            let [ours, old] = ranges;
            let (ours, old) = (beside.ours(requests / 2, &site, ours), beside.old(&site, old));
            let when = format!("{} in {ranges:?} after {requests}", ours.kind);
            let before = old_given(old_add(&old, "before"));
            let earlier = ours.add("earlier");

            let (first, outcome) =
                amid(old_add(&old, "first"), requests, || ours.start("ADD", "ours"));
            let own = given(outcome);
            let all = [("before", before), ("earlier", earlier), ("ours", own)];
            match first {
                Ok(first) => {
                    let all = all.into_iter().chain([("first", first[0])]);
                    site.assert_held(release, all, &when);
                }
                // This program made the reservation first. The old node keeps its entry until a DEL.
                Err(error) => {
                    assert!(error.contains("already exists"), "{when}: {error}");
                    let entries: Vec<IpAddr> = site
                        .objects
                        .held()
                        .into_iter()
                        .filter(|held| held.entry.id != "first")
                        .map(|held| held.address)
                        .collect();
                    let mut expected = all.map(|(_, address)| address).to_vec();
                    expected.sort();
                    let mut entries = entries;
                    entries.sort();
                    assert_eq!(entries, expected, "{when}");
                }
            }
            ["ours", "earlier"].iter().for_each(|container| ours.del(container));
            ["first", "before"].iter().for_each(|container| old_del(&old, container));
            site.assert_empty(&when);
        }
    });
}

macro_rules! beside {
    ($($module:ident: $release:ident, $world:ident, [$($test:ident),*];)*) => {$(
        mod $module {
            const BESIDE: super::Beside =
                super::Beside { release: super::Release::$release, world: super::$world };
            $(
                #[test]
                fn $test() {
                    super::$test(BESIDE);
                }
            )*
        }
    )*};
}

beside! {
    v0_5_4_under_its_crds: V054, Own, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    v0_7_0_under_its_crds: V07, Own, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    v0_9_4_under_its_crds: V094, Own, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    the_fork_under_its_crds: Fork, Own, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave
    ];
    v0_5_4_under_ours: V054, Shipped, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    v0_7_0_under_ours: V07, Shipped, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    v0_9_4_under_ours: V094, Shipped, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    the_fork_under_ours: Fork, Shipped, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave
    ];
    v0_7_0_in_a_named_network: V07, Named, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
    v0_9_4_in_a_named_network: V094, Named, [
        ours_come_between_the_requests_of_an_add, ours_come_between_the_requests_of_a_del,
        each_releases_what_the_other_gave, pools_that_overlap_give_no_address_twice
    ];
}
