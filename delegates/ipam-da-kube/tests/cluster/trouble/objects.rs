//! Kinds that are not served, and objects that others have written in another way than expected.

use std::net::Ipv6Addr;

use ipam_testkit::node::addresses;
use ipam_testkit::whereabouts::{Crds, POOLS, RESERVATIONS, Release};
use serde_json::{Value, json};

use super::Site;
use crate::common::node::{POOL, SUBNET};
use crate::common::{Desk, changing, v094};

/// The CRDs of upstream, whose entries may lack each member.
fn lenient() -> Crds {
    let text = Value::from(v094().0).to_string();
    let crds: Value =
        serde_json::from_str(&text.replace(r#""required":["id","podref"],"#, "")).unwrap();
    Crds(crds.as_array().unwrap().clone())
}

/// Reservations alone.
fn without_pools() -> Crds {
    let mut crds = v094();
    crds.0.retain(|crd| crd["spec"]["names"]["plural"] == RESERVATIONS);
    crds
}

#[test]
fn a_cluster_without_the_kind_of_reservations_is_told_with_both_remedies() {
    let site = Site::on(Desk::new(&Release::V04.crds()));
    let parts = [
        "does not serve overlappingrangeipreservations.whereabouts.cni.cncf.io (404)",
        "install the custom resource definitions of whereabouts.cni.cncf.io, or check ipam.kube.kubeconfig",
        "the definitions are in delegates/ipam-da-kube/deploy/crds.yaml",
        "if all nodes run whereabouts 0.4 or its fork, set ipam.kube.overlapCheck to false",
    ];
    site.fails("ADD", "c1", 103, &parts);
    assert_eq!(site.desk.held(), [""; 0]);
    site.del("c1");
    let Site { desk, node } = site;
    let site = Site { desk, node: node.with("overlapCheck", false) };
    assert_eq!(site.address("c1"), "10.1.2.2");
    site.del("c1");
    assert_eq!(site.desk.held(), [""; 0]);
}

#[test]
fn a_cluster_without_the_kind_of_pools_is_told_by_every_verb() {
    let kube = changing();
    without_pools().install_alone(&kube);
    let site = Site::on(Desk::on(&kube));
    let parts = [
        "does not serve ippools.whereabouts.cni.cncf.io (404)",
        "install the custom resource definitions of whereabouts.cni.cncf.io, or check ipam.kube.kubeconfig",
        "the definitions are in delegates/ipam-da-kube/deploy/crds.yaml",
        "if the API server is just starting, call again",
    ];
    for (verb, code) in [("ADD", 103), ("CHECK", 103), ("DEL", 103), ("STATUS", 50)] {
        let text = site.fails(verb, "c1", code, &parts);
        assert!(!text.contains("overlapCheck"), "{text}");
    }
}

#[test]
fn an_address_beyond_the_keys_that_old_releases_read_is_refused() {
    let Site { desk, node } = Site::new();
    let site = Site { desk, node: node.with_subnets(&["fd00:1::/64"]) };
    // The last address that they read, and the first that they do not.
    for (address, is_given) in [("fd00:1::7fff:ffff:ffff:ffff", true), ("fd00:1:0:0:8000::", false)]
    {
        let pools = json!([{"ranges": [{"subnet": "fd00:1::/64"}], "requested-ip": address}]);
        let pools = json!({"pools": pools});
        if is_given {
            let given = site.call_with("ADD", "c1", &pools).success();
            assert_eq!(addresses(&given), [address]);
            assert!(site.desk.held().contains(&format!("fd00-1---64 {} c1", i64::MAX)));
        } else {
            site.fails_with("ADD", "c2", &pools, 101, &[address, "not in fd00:1::1-fd00:1::7fff"]);
        }
    }
    let pools =
        json!([{"ranges": [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::8000:0:0:0"}]}]);
    site.fails_with("ADD", "c2", &json!({"pools": pools}), 101, &["choose a range near"]);
}

#[test]
fn an_address_at_random_is_one_that_old_releases_read() {
    let Site { desk, node } = Site::new();
    let mut node = node.with_subnets(&["fd00:1::/48"]);
    node.ipam["strategy"] = "random".into();
    let address: Ipv6Addr = node.address("c1").parse().unwrap();
    let last: Ipv6Addr = "fd00:1::7fff:ffff:ffff:ffff".parse().unwrap();
    assert!(address <= last, "{address}");
    node.del("c1");
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_range_that_cannot_be_read_or_differs_from_the_name_is_named() {
    for range in ["", "10.1.2.0", "nonsense", "10.1.2.5/24", "10.1.3.0/24", "fd00::/64"] {
        let site = Site::new();
        site.desk.objects().create_pool("", SUBNET, &json!({"7": {"id": "x", "podref": ""}}));
        site.desk.patch(POOLS, POOL, &json!({"spec": {"range": range}}));
        let shown = format!("spec.range is {range:?}: expected {SUBNET}");
        for verb in ["ADD", "DEL"] {
            site.fails(
                verb,
                "c1",
                103,
                &[POOL, &site.desk.namespace, &shown, "correct spec.range"],
            );
        }
        // A pool of another subnet still works.
        site.node.call("STATUS", "").success();
    }
}

#[test]
fn a_pool_beside_one_that_cannot_be_read_is_used() {
    let site = Site::new();
    site.desk.objects().create_pool("", "10.9.0.0/24", &json!({}));
    site.desk.patch(POOLS, "10.9.0.0-24", &json!({"spec": {"range": "nonsense"}}));
    assert_eq!(site.address("c1"), "10.1.2.2");
}

#[test]
fn keys_that_name_no_address_and_entries_without_id_stay_and_are_named_by_lint() {
    let kube = changing();
    lenient().install_alone(&kube);
    let site = Site::on(Desk::on(&kube));
    let strange = json!({
        "-1": {"id": "a", "podref": "ns/a"},
        "300": {"id": "b", "podref": "ns/b"},
        "99999999999999999999999999999999999999999": {"id": "c", "podref": "ns/c"},
        "x": {"id": "d", "podref": "ns/d"},
        "01": {"id": "e", "podref": "ns/e"},
        "1": {"podref": "ns/f"},
        "2": {},
    });
    site.desk.objects().create_pool("", SUBNET, &strange);
    let held = site.add("c1");
    assert_eq!(addresses(&held), ["10.1.2.3"]);
    site.add("c1");
    let printed = site.told(&["lint"]);
    for key in strange.as_object().unwrap().keys() {
        let place = format!("{POOL} spec.allocations[{key:?}]: ");
        assert!(printed.contains(&place), "{place}: {printed}");
    }
    assert!(!printed.contains("allocations[\"3\"]"), "{printed}");
    site.typed(&["list"]).ended_well();
    let (code, text) =
        site.typed(&["release", "10.1.2.1", "10.1.2.2", "--yes", "--json"]).failure();
    assert!(code == 103 && text.contains("the entry of 10.1.2.1 in the IPPool"), "{code}: {text}");
    site.gc(&[]).ended_well();
    site.check("c1", &held).success();
    site.del("c1");
    let pool = site.desk.objects().pool(POOL).unwrap();
    assert_eq!(pool["spec"]["allocations"], strange);
}

#[test]
fn an_entry_without_id_is_never_overwritten() {
    let kube = changing();
    lenient().install_alone(&kube);
    let site = Site::on(Desk::on(&kube));
    let entry = json!({"5": {"podref": "ns/f"}});
    site.desk.objects().create_pool("", SUBNET, &entry);
    let pools = json!([{"ranges": [{"subnet": SUBNET}], "requested-ip": "10.1.2.5"}]);
    site.fails_with("ADD", "c1", &json!({"pools": pools}), 102, &["10.1.2.5"]);
    let Site { desk, node } = site;
    let site = Site { desk, node: node.taking_over(true) };
    site.fails_with("ADD", "c1", &json!({"pools": pools}), 102, &["10.1.2.5"]);
    assert_eq!(site.desk.objects().pool(POOL).unwrap()["spec"]["allocations"], entry);
}

#[test]
fn an_address_that_old_releases_cannot_count_to_is_refused() {
    let Site { desk, node } = Site::new();
    let mut site = Site { desk, node: node.with_subnets(&["fd00::/64"]) };
    site.node.pools[0]["ranges"][0]["rangeStart"] = "fd00::8000:0:0:0".into();
    let parts = ["fd00::8000:0:0:0", "up to 2^63", "near the beginning of the subnet"];
    site.fails("ADD", "c1", 101, &parts);
    assert!(site.desk.objects().pools().is_empty());
}
