//! What the releases of whereabouts leave on a real server, each under its own CRDs.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::IpAddr;

use ipam_testkit::kube::Kube;
use ipam_testkit::old::whereabouts::{Call, Whereabouts, reconcile};
use ipam_testkit::whereabouts::{Crds, Entry, Objects, Release};
use serde_json::{Value, json};

const POOL: &str = "10.1.0.0-24";

/// The members that an entry keeps.
fn kept(entry: &Entry) -> Vec<&str> {
    let more = entry.more.keys().map(String::as_str);
    let known = [("podref", entry.podref.is_some()), ("ifname", entry.ifname.is_some())];
    known.into_iter().filter(|(_, is)| *is).map(|(key, _)| key).chain(more).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn given(call: Call) -> Vec<String> {
    call.run().unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn crds_keep_the_members_that_they_know_and_objects_stay() {
    let kube = Kube::start();
    let objects = Objects::of(&kube, &kube.create_namespace());
    let entry = json!({"id": "c1", "podref": "ns/p", "ifname": "eth0", "ipamDelegated": "n"});
    let all = ["podref", "ifname", "ipamDelegated"];
    for (place, (crds, members)) in [
        (Release::V04.crds(), &all[..]),
        (Release::V054.crds(), &all[..1]),
        (Release::V07.crds(), &all[..1]),
        (Release::V094.crds(), &all[..2]),
        (Release::Fork.crds(), &all),
        (Crds::shipped(), &all),
    ]
    .into_iter()
    .enumerate()
    {
        crds.install(&kube);
        let range = format!("10.1.{place}.0/24");
        let without_pod = json!({"id": "c2", "podref": ""});
        objects.create_pool("", &range, &json!({"1": entry, "2": without_pod}));
        let pool = range.replace('/', "-");
        assert_eq!(kept(&objects.allocations(&pool)[&1]), members, "{crds}");
        assert_eq!(objects.pools().len(), place + 1);
    }
}

/// The world of a release: its CRDs, a namespace and a network.
struct World {
    kube: &'static Kube,
    objects: Objects,
    old: Whereabouts,
}

impl World {
    fn of(release: Release, ranges: &Value) -> Self {
        let kube = release.crds().served();
        let namespace = kube.create_namespace();
        let old = Whereabouts::new(release, kube, &namespace, ranges);
        let objects = Objects::of(kube, &namespace);
        Self { kube, objects, old }
    }

    fn add(&self, container: &str, podref: &str) -> Vec<String> {
        given(self.old.add(container, "net1", podref))
    }
}

/// The steps of a call, and the kind of object alone.
fn steps(call: &mut Call) -> Vec<String> {
    call.map(|step| step.replace("overlappingrangeipreservations", "reservations")).collect()
}

#[test]
fn an_add_of_v0_5_4_and_v0_7_0_leaves_a_containerid_and_takes_a_new_address_for_the_same_pod() {
    for release in [Release::V054, Release::V07] {
        let world = World::of(release, &json!({"range": "10.1.0.0/24"}));
        let World { objects, old, .. } = &world;
        let mut first = old.add("c1", "net1", "ns/p");
        assert_eq!(
            steps(&mut first),
            [
                "GET leases/whereabouts 404",
                "POST leases 201",
                "GET leases/whereabouts 200",
                "PUT leases/whereabouts 200",
                "LIST ippools 200",
                "GET ippools/10.1.0.0-24 404",
                "POST ippools 201",
                "GET ippools/10.1.0.0-24 200",
                "GET reservations/10.1.0.1 404",
                "PATCH ippools/10.1.0.0-24 200",
                "POST reservations 201",
                "PUT leases/whereabouts 200",
            ],
            "{release:?}"
        );
        assert_eq!(given(first), ["10.1.0.1"]);
        assert_eq!(world.add("c2", "ns/p"), ["10.1.0.2"]);
        objects.assert_consistent();
        let entries = objects.allocations(POOL);
        assert_eq!((entries[&2].id.as_str(), kept(&entries[&2])), ("c2", vec!["podref"]));
        let spec = &objects.reservation("10.1.0.2").unwrap()["spec"];
        assert_eq!(*spec, json!({"containerid": "c2", "podref": "ns/p"}));

        // A DEL of another interface of the container frees the address, too.
        assert!(given(old.del("c2", "net2", "ns/p")).is_empty());
        assert!(given(old.del("c1", "net1", "ns/p")).is_empty());
        assert!(given(old.del("c1", "net1", "ns/p")).is_empty());
        assert!(objects.held().is_empty() && objects.reservations().is_empty());
    }
}

#[test]
fn an_add_of_v0_9_4_takes_the_old_address_for_the_same_pod_and_interface() {
    let world = World::of(Release::V094, &json!({"range": "10.1.0.0/24"}));
    let World { objects, old, .. } = &world;
    let mut first = old.add("c1", "net1", "ns/p");
    assert_eq!(
        steps(&mut first),
        [
            "GET leases/whereabouts 404",
            "POST leases 201",
            "PUT leases/whereabouts 200",
            "LIST ippools 200",
            "GET ippools/10.1.0.0-24 404",
            "POST ippools 201",
            "GET ippools/10.1.0.0-24 200",
            "GET reservations/10.1.0.1 404",
            "PATCH ippools/10.1.0.0-24 200",
            "POST reservations 201",
            "GET leases/whereabouts 200",
            "PUT leases/whereabouts 200",
        ]
    );
    assert_eq!(given(first), ["10.1.0.1"]);
    assert_eq!(given(old.add("c2", "net2", "ns/p")), ["10.1.0.2"]);
    assert_eq!(world.add("c3", "ns/p"), ["10.1.0.1"]);
    objects.assert_consistent();
    let entry = &objects.allocations(POOL)[&1];
    assert_eq!((entry.id.as_str(), kept(entry)), ("c3", vec!["podref", "ifname"]));
    let spec = &objects.reservation("10.1.0.1").unwrap()["spec"];
    assert_eq!(*spec, json!({"ifname": "net1", "podref": "ns/p"}));

    for (container, left) in [("c1", 2), ("c2", 2), ("c3", 1)] {
        assert!(given(old.del(container, "net1", "ns/p")).is_empty());
        assert_eq!(objects.held().len(), left, "{container}");
        objects.assert_consistent();
    }
}

#[test]
fn the_fork_gives_its_first_ipv4_address_again_and_again() {
    let world = World::of(Release::Fork, &json!({"range": "10.1.0.0/24"}));
    let mut first = world.old.add("c0", "net1", "");
    let pool = "ippools/10.1.0.0-24";
    let look =
        ["LIST ippools 200".to_owned(), format!("GET {pool} 404"), "POST ippools 201".into()];
    let write = [format!("GET {pool} 200"), format!("PATCH {pool} 200")];
    assert_eq!(steps(&mut first), [&look[..], &write].concat());
    assert_eq!(given(first), ["10.1.0.1"]);
    assert_eq!(world.add("c1", "ns/p"), ["10.1.0.1"]);
    let entries = world.objects.allocations(POOL);
    assert_eq!((entries.len(), entries[&0].id.as_str()), (1, "c1"));
    assert!(given(world.old.del("c1", "net2", "")).is_empty());
    assert!(world.objects.held().is_empty());

    let namespace = world.objects.namespace();
    let v6 =
        Whereabouts::new(Release::Fork, world.kube, namespace, &json!({"range": "fd00::/116"}));
    assert_eq!(given(v6.add("c0", "net1", "")), ["fd00::1"]);
    assert_eq!(given(v6.add("c1", "net1", "")), ["fd00::2"]);
}

#[test]
fn a_player_waits_for_the_lease_of_one_that_was_killed() {
    for release in [Release::V054, Release::V094] {
        let world = World::of(release, &json!({"range": "10.1.0.0/24"}));
        let mut killed = world.old.add("c1", "net1", "ns/p");
        while killed.step().unwrap() != "PATCH ippools/10.1.0.0-24 200" {}
        drop(killed);
        let mut waiting = world.old.add("c2", "net1", "ns/q");
        for _ in 0..2 {
            assert_eq!(waiting.step().as_deref(), Some("GET leases/whereabouts 200"));
        }
        assert_eq!(given(waiting), ["10.1.0.2"]);
        let faults = world.objects.faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("10.1.0.1 of 10.1.0.0-24: no reservation"), "{faults:?}");
    }
}

#[test]
fn a_player_that_has_lost_a_race_tries_again() {
    let world = World::of(Release::V094, &json!({"range": "10.1.0.0/24"}));
    let World { objects, old, kube } = &world;
    objects.create_pool("", "10.1.0.0/24", &json!({}));
    let mut call = old.add("c1", "net1", "ns/p");
    while call.step().unwrap() != "GET overlappingrangeipreservations/10.1.0.1 404" {}
    let entry = json!({"id": "other", "podref": ""});
    let add = json!([{"op": "add", "path": "/spec/allocations/1", "value": entry}]);
    kube.patch(&objects.path("ippools", POOL), &add);
    assert_eq!(call.step().as_deref(), Some("PATCH ippools/10.1.0.0-24 422"));
    assert_eq!(given(call), ["10.1.0.2"]);
}

#[test]
fn pools_that_overlap_ask_reservations_which_the_reconciler_deletes_in_named_networks() {
    let world = World::of(Release::V094, &json!({"range": "10.1.0.0/24"}));
    let World { objects, kube, .. } = &world;
    let namespace = objects.namespace();
    let small = Whereabouts::new(Release::V094, kube, namespace, &json!({"range": "10.1.0.0/29"}));
    assert_eq!(world.add("c1", "ns/p"), ["10.1.0.1"]);
    assert_eq!(given(small.add("c2", "net1", "ns/q")), ["10.1.0.2"]);
    let blue = world.old.clone().network_name("blue");
    assert_eq!(given(blue.add("c3", "net1", "ns/q")), ["10.1.0.1"]);
    objects.assert_consistent();
    let named = objects.held().into_iter().find(|held| held.network == "blue").unwrap();
    assert_eq!((named.address, named.pool.as_str()), (ip("10.1.0.1"), "blue-10.1.0.0-24"));

    reconcile(kube, namespace, &[("ns/q", "10.1.0.2"), ("ns/q", "10.1.0.1")]);
    assert_eq!(objects.reservations().into_keys().collect::<Vec<_>>(), ["10.1.0.2"]);
    assert_eq!(objects.held().len(), 2, "those of living pods stay");

    // Without reservations nothing tells of the other pool.
    let careless = world.old.clone().overlap(false);
    assert_eq!(given(careless.add("c4", "net1", "ns/s")), ["10.1.0.1"]);
    assert_eq!(given(careless.add("c5", "net1", "ns/t")), ["10.1.0.2"]);
    let faults = objects.faults();
    assert!(faults.iter().any(|fault| fault.contains("held twice")), "{faults:?}");
}

/// Recorded from the sources of v0.9.4 and of the fork: successive ADDs of distinct pods.
#[test]
fn players_choose_the_recorded_addresses() {
    let full = "error at storage engine: Could not allocate IP in range: ip:";
    let kube = Release::V094.crds().served();
    for (release, ranges, expected) in [
        (Release::V094, json!({"range": "fd::1/116"}), &["fd::1"][..]),
        (
            Release::V094,
            json!({"range": "caa5::0/112", "exclude": ["caa5::0/113"]}),
            &["caa5::8000"],
        ),
        (Release::V094, json!({"range": "192.168.1.5-192.168.1.25/24"}), &["192.168.1.5"]),
        (
            Release::V094,
            json!({"range": "192.168.2.225/28", "exclude": ["192.168.2.229/30", "192.168.2.236/32"]}),
            &[
                "192.168.2.225",
                "192.168.2.226",
                "192.168.2.227",
                "192.168.2.232",
                "192.168.2.233",
                "192.168.2.234",
                "192.168.2.235",
                "192.168.2.237",
                "192.168.2.238",
                "192.168.2.225 / - 192.168.2.238 / range: 192.168.2.224/28 / excludeRanges: \
                 [192.168.2.229/30 192.168.2.236/32]",
            ],
        ),
        (
            Release::V094,
            json!({"range": "192.168.0.0/29", "range_start": "192.168.0.0"}),
            &["192.168.0.1"],
        ),
        (
            Release::V094,
            json!({"range": "2001:db8::/126"}),
            &[
                "2001:db8::1",
                "2001:db8::2",
                "2001:db8::1 / - 2001:db8::2 / range: 2001:db8::/126 / excludeRanges: []",
            ],
        ),
        (
            Release::V094,
            json!({"range": "2001:db8::/64", "range_start": "2001:db8::8000:0:0:0"}),
            &["2001:db8:0:0:8000::"],
        ),
        (
            Release::V094,
            json!([
                {"range": "192.168.20.0/24", "exclude": ["192.168.10.1/32", "192.168.20.1/32"]},
                {"range": "192.168.10.0/24"},
            ]),
            &["192.168.20.2 192.168.10.1"],
        ),
        (
            Release::Fork,
            json!({"range": "192.168.2.0/30", "range_start": "192.168.2.2", "range_end": "192.168.2.3"}),
            &["192.168.2.2", "192.168.2.3", "192.168.2.2 / - 192.168.2.3 / range: 192.168.2.0/30"],
        ),
        (
            Release::Fork,
            json!({"range": "192.168.1.0/24", "exclude": ["192.168.1.0/28", "192.168.1.16/28"]}),
            &["192.168.1.32"],
        ),
    ] {
        let namespace = kube.create_namespace();
        let player = Whereabouts::new(release, kube, &namespace, &ranges);
        let call = |number: usize| {
            player.add(&format!("c{number}"), "eth0", &format!("ns/p{number}")).run()
        };
        let told = |number: usize| match call(number) {
            Ok(addresses) => {
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.strip_prefix(full).unwrap_or(&error).trim_start().to_owned(),
        };
        let told: Vec<String> = (0..expected.len()).map(told).collect();
        let expected: Vec<String> = expected
            .iter()
            .map(|text| text.parse::<IpAddr>().map_or((*text).to_owned(), |ip| ip.to_string()))
            .collect();
        assert_eq!(told, expected, "{ranges}");
    }
}
