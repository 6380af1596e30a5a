//! What the objects of whereabouts hold by release, on a real server.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use ipam_testkit::kube::Kube;
use ipam_testkit::whereabouts::{Entry, Objects, Release};
use serde_json::json;

/// The members that an entry keeps.
fn kept(entry: &Entry) -> Vec<&str> {
    let more = entry.more.keys().map(String::as_str);
    let known = [("podref", entry.podref.is_some()), ("ifname", entry.ifname.is_some())];
    known.into_iter().filter(|(_, is)| *is).map(|(key, _)| key).chain(more).collect()
}

#[test]
fn each_release_keeps_the_members_that_its_crds_know() {
    let kube = Kube::start();
    let entry = json!({"id": "c1", "podref": "ns/p", "ifname": "eth0", "ipamDelegated": "n"});
    for (release, members) in [
        (Release::V04, &["podref", "ifname", "ipamDelegated"][..]),
        (Release::V054, &["podref"]),
        (Release::V07, &["podref"]),
        (Release::V094, &["podref", "ifname"]),
        (Release::Fork, &["podref", "ifname", "ipamDelegated"]),
    ] {
        release.crds().install_alone(&kube);
        let objects = Objects::of(&kube, &kube.create_namespace());
        let without_pod = json!({"id": "c2", "podref": ""});
        objects.create_pool("", "10.1.0.0/24", &json!({"1": entry, "2": without_pod}));
        assert_eq!(kept(&objects.allocations("10.1.0.0-24")[&1]), members, "{release:?}");
    }
}
