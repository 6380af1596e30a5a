//! Which address a name has, and for how long.

use ipam_testkit::node::{addresses, given, within};
use ipam_testkit::whereabouts::POOLS;
use serde_json::{Value, json};

use crate::common::node::Node;
use crate::common::sticky::{StickySandbox, sticky_desk};

/// A pool of two addresses.
const TWO: &str = "10.1.2.0/30";

#[test]
fn an_address_whose_time_is_over_stays_until_an_add_needs_it() {
    let desk = sticky_desk();
    let pool = json!([{"ranges": [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.5", "rangeEnd": "10.1.2.6"}]}]);
    let plain = Node { pools: pool.clone(), ..Node::of(&desk).named("node-1") };
    let sticky = |name: &str| {
        let node = Node { pools: pool.clone(), ..Node::of(&desk).named("node-2") };
        node.with_in_pools("sticky", name).with_in_pools("keep", "1h")
    };
    let (web, db) = (sticky("web"), sticky("db"));
    for (node, container) in [(&web, "w1"), (&db, "d1")] {
        let result = node.add(container);
        node.del_known(container, &result).ended_well();
    }
    let (code, text) = plain.call("ADD", "c1").failure();
    assert_eq!(code, 100, "{text}");
    desk.expire("db");
    // Its own name may still come for it.
    assert_eq!(db.address("d2"), "10.1.2.6");
    db.del("d2");
    desk.expire("db");
    desk.expire("web");
    desk.client.patch(
        &desk.sticky_path("10.1.2.0-24.web"),
        &json!({"spec": {"keptUntil": "2026-02-01T00:00:00Z"}}),
    );
    // An ADD that has an address needs no other.
    for container in ["d2", "d2"] {
        assert_eq!(db.address(container), "10.1.2.6");
        assert!(desk.sticky("web").is_some());
    }
    db.del("d2");
    desk.expire("db");
    // The one that is over for longest goes first, and no other. The ADD does not wait for its own
    // turn at the pool.
    let quick = std::time::Duration::from_secs(15);
    assert_eq!(within(quick, || plain.address("c1")), "10.1.2.6");
    assert_eq!(desk.sticky("db"), None);
    assert_eq!(web.address("w2"), "10.1.2.5");
    assert_eq!(db.call("ADD", "d3").failure().0, 100);
    web.del("w2");
    desk.expire("web");
    // A static address is given without a lease, and so is not free.
    let more = json!({"static": [{"address": "10.1.2.6/24"}]});
    plain.del("c1");
    let given = plain.call_with("ADD", "c3", &more).success();
    assert_eq!(addresses(&given), ["10.1.2.5", "10.1.2.6"]);
    plain.del("c3");
    assert_eq!(web.address("w3"), "10.1.2.5");
    web.del("w3");
    // A requested address is needed, too.
    desk.expire("web");
    let asks = Node { pools: pool, ..Node::of(&desk) }.with_in_pools("requested-ip", "10.1.2.5");
    assert_eq!(asks.address("c2"), "10.1.2.5");
    assert_eq!(desk.sticky("web"), None);
    desk.objects().assert_consistent();
}

#[test]
fn a_requested_address_that_is_kept_is_refused_and_not_taken_over() {
    let desk = sticky_desk();
    let web = desk.sticky_node("node-1", "web", "1h");
    web.add("w1");
    web.del("w1");
    let asks = Node::of(&desk).named("node-2").with_in_pools("requested-ip", "10.1.2.2");
    for node in [asks, Node::of(&desk).with_in_pools("requested-ip", "10.1.2.2").taking_over(true)]
    {
        let (code, text) = node.call("ADD", "c1").failure();
        assert_eq!(code, 102, "{text}");
    }
    assert_eq!(web.address("w2"), "10.1.2.2");
}

#[test]
fn each_pool_of_a_call_has_its_own_object() {
    let desk = sticky_desk();
    let both = Node::of(&desk).with_subnets(&["10.1.2.0/24", "fd00:1::/64"]);
    let both = both.with_in_pools("sticky", "shop/web-0").with_in_pools("keep", "1h");
    let first = both.add("c1");
    both.del_known("c1", &first).ended_well();
    assert_eq!(addresses(&both.add("c2")), addresses(&first));
    let objects = desk.sticky_objects();
    assert_eq!(objects.len(), 2, "{objects:?}");
    for (name, object) in objects {
        // No object can have this name.
        assert_eq!(object["spec"]["name"], "shop/web-0");
        assert!(name.contains(".xshopweb-0-"), "{name}");
    }
    let twice = json!([
        {"ranges": [{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.9"}], "sticky": "a"},
        {"ranges": [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.10"}], "sticky": "a"},
    ]);
    let (code, text) = Node { pools: twice, ..both }.call("ADD", "c3").failure();
    assert!(code == 7 && text.contains("prevResult.pools[1].sticky: "), "{code} {text}");
}

#[test]
fn a_failed_add_gives_a_name_back_as_it_was() {
    let desk = sticky_desk();
    let full = Node::of(&desk).with_subnets(&[TWO]).named("other");
    full.add("full1");
    let sticky = desk.sticky_node("node-1", "web", "1h");
    let mut pools = sticky.pools.as_array().unwrap().clone();
    pools.push(json!({"ranges": [{"subnet": "10.1.3.0/30"}], "requested-ip": "10.1.3.2"}));
    let and_more = Node { pools: pools.into(), ..desk.sticky_node("node-1", "web", "1h") };
    let and_more = and_more.with_in_pools("keep", "0s");
    let taken = Node::of(&desk).with_subnets(&["10.1.3.0/30"]).named("node-2");
    assert_eq!(taken.address("c9"), "10.1.3.2");
    let before = desk.held();
    // A new name: nothing is left.
    assert_eq!(and_more.call("ADD", "c1").failure().0, 102);
    assert_eq!((desk.held(), desk.sticky("web")), (before, None));
    // A name that is kept stays kept, until the same time.
    sticky.add("c1");
    sticky.del("c1");
    let kept = |spec: Value| {
        assert!(spec["keptUntil"].is_string() && spec["holder"].is_null(), "{spec}");
        spec["keptUntil"].clone()
    };
    let before = (desk.held(), kept(desk.sticky("web").unwrap()["spec"].clone()));
    let now = || (desk.held(), kept(desk.sticky("web").unwrap()["spec"].clone()));
    assert_eq!(and_more.call("ADD", "c2").failure().0, 102);
    assert_eq!(now(), before);
    // An entry that was missing stays: another call of the name may count on it.
    let none = json!({"spec": {"allocations": {"2": null}}});
    desk.patch(POOLS, "10.1.2.0-24", &none);
    assert_eq!(and_more.call("ADD", "c2").failure().0, 102);
    assert_eq!(now(), before);
}

#[test]
fn a_repeated_add_says_how_long_the_address_stays() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "web", "0s");
    node.add("c1");
    let node = node.with_in_pools("keep", "1h");
    let result = node.add("c1");
    node.del_known("c1", &result).ended_well();
    assert_eq!(desk.sticky("web").unwrap()["spec"]["keepSeconds"], 3600);
}

#[test]
fn the_undo_of_an_add_frees_the_name_and_that_of_a_repeated_one_does_not() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "web", "0s");
    let undo = |result: &Value| {
        let mut given = given(result);
        given["undo"] = true.into();
        node.call_with("DEL", "c1", &given).ended_well();
    };
    let first = node.add("c1");
    let again = node.add("c1");
    undo(&again);
    assert_eq!(desk.sticky("web").unwrap()["spec"]["holder"]["container"], "c1");
    // The leases of the first are of an earlier state, and were not taken by the second.
    undo(&first);
    assert_eq!(desk.sticky("web").unwrap()["spec"]["holder"]["container"], "c1");
    node.del("c1");
    let third = node.add("c1");
    undo(&third);
    assert_eq!((desk.held(), desk.sticky("web")), (Vec::new(), None));
}

#[test]
fn a_name_whose_address_is_no_longer_given_moves_as_its_holder_ends() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "web", "1h");
    assert_eq!(node.address("c1"), "10.1.2.2");
    let mut moved = desk.sticky_node("node-2", "web", "1h");
    moved.pools[0]["ranges"][0]["rangeStart"] = "10.1.2.100".into();
    let (code, text) = moved.call("ADD", "c2").failure();
    assert!(code == 11 && text.contains("is held by"), "{code} {text}");
    node.del("c1");
    assert_eq!(moved.address("c2"), "10.1.2.100");
    let held = desk.objects().held();
    assert_eq!(held.len(), 1, "{held:?}");
    desk.objects().assert_consistent();
    // So does a name for which an address is requested.
    moved.del("c2");
    let asks = desk.sticky_node("node-1", "web", "0s").with_in_pools("requested-ip", "10.1.2.7");
    assert_eq!(asks.address("c3"), "10.1.2.7");
    asks.del("c3");
    assert_eq!((desk.held(), desk.sticky("web")), (Vec::new(), None));
}

#[test]
fn the_labels_of_people_stay_on_an_object() {
    let desk = sticky_desk();
    let [one, two] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web", "1h"));
    let path = desk.sticky_path("10.1.2.0-24.web");
    let labels = || desk.sticky("web").unwrap()["metadata"]["labels"].clone();
    let of = |node: &str, container: &str| json!({"team": "shop", "ipam-delegated/node": node, "ipam-delegated/container": container});
    let uid = desk.create_pod("a", "");
    let first = StickySandbox::of_pod(&desk, &one, "c1", "a", &uid);
    first.add();
    desk.client.patch(&path, &json!({"metadata": {"labels": {"team": "shop"}}}));
    first.add();
    assert_eq!(labels(), of("node-1", "c1"));
    // While it is kept, after its holder, and after a holder that is gone.
    first.del();
    assert_eq!(labels()["team"], "shop");
    let uid = desk.create_pod("b", "");
    let second = StickySandbox::of_pod(&desk, &two, "c2", "b", &uid);
    second.add();
    assert_eq!(labels(), of("node-2", "c2"));
    desk.force_delete_pod("b");
    assert_eq!(first.address(), "10.1.2.2");
    assert_eq!(labels(), of("node-1", "c1"));
    // One that a person has left without labels gets those of its next holder.
    first.del();
    desk.client.patch(&path, &json!({"metadata": {"labels": null}}));
    assert_eq!(StickySandbox { container: "c3", ..first }.address(), "10.1.2.2");
    let own = json!({"ipam-delegated/node": "node-1", "ipam-delegated/container": "c3"});
    assert_eq!(labels(), own);
}

#[test]
fn a_container_that_loses_its_name_or_gets_one_changes_its_address() {
    let desk = sticky_desk();
    let pools = |name: &str, keep: &str| desk.sticky_node("node-1", name, keep).pools;
    let node = Node::of(&desk);
    node.add("c1");
    let node = Node { pools: pools("web", "1h"), ..node };
    let first = node.address("c1");
    assert_eq!(desk.sticky("web").unwrap()["spec"]["address"], first);
    let node = Node { pools: pools("db", "0s"), ..node };
    assert_ne!(node.address("c1"), first);
    assert!(desk.sticky("web").unwrap()["spec"]["keptUntil"].is_string());
    let node = Node { pools: Node::of(&desk).pools, ..node };
    node.add("c1");
    assert_eq!(desk.sticky("db"), None);
    node.del("c1");
    assert_eq!(desk.sticky_node("node-2", "web", "0s").address("c2"), first);
    assert_eq!(desk.objects().held().len(), 1);
}

#[test]
fn what_is_left_of_an_object_that_a_person_deleted_is_removed_when_needed() {
    let desk = sticky_desk();
    let web = desk.sticky_node("node-1", "web", "1h").with_subnets(&["10.1.2.0/30"]);
    let web = web.with_in_pools("sticky", "web");
    web.add("c1");
    web.del("c1");
    for (name, _) in desk.sticky_objects() {
        desk.client.delete(&desk.sticky_path(&name));
    }
    // Also by the name itself.
    assert_eq!(web.address("c2"), "10.1.2.2");
    web.del("c2");
    for (name, _) in desk.sticky_objects() {
        desk.client.delete(&desk.sticky_path(&name));
    }
    let plain = Node::of(&desk).named("node-2").with_subnets(&["10.1.2.0/30"]);
    assert_eq!(plain.address("c2"), "10.1.2.2");
    desk.objects().assert_consistent();
    plain.del("c2");
    // Not while the pod runs, which its reservation names.
    let uid = desk.create_pod("a", "");
    StickySandbox::of_pod(&desk, &web, "c3", "a", &uid).add();
    for (name, _) in desk.sticky_objects() {
        desk.client.delete(&desk.sticky_path(&name));
    }
    assert_eq!(plain.call("ADD", "c4").failure().0, 100);
    desk.force_delete_pod("a");
    // A container without a pod does not show that the pods are in this cluster.
    assert_eq!(plain.call("ADD", "c4").failure().0, 100);
    let uid = desk.create_pod("b", "");
    assert_eq!(StickySandbox::of_pod(&desk, &plain, "c4", "b", &uid).address(), "10.1.2.2");
}

#[test]
fn an_object_that_finalizers_keep_keeps_its_address() {
    let desk = sticky_desk();
    let web = desk.sticky_node("node-1", "web", "0s");
    let result = web.add("c1");
    let path = desk.sticky_path("10.1.2.0-24.web");
    desk.client.patch(&path, &json!({"metadata": {"finalizers": ["example.org/backup"]}}));
    let before = desk.held();
    let (code, text) = web.del_known("c1", &result).failure();
    assert!(code == 11 && text.contains("its finalizers keep it"), "{code} {text}");
    let (code, text) = web.call("ADD", "c2").failure();
    assert!(code == 103 && text.contains("metadata.deletionTimestamp is set"), "{code} {text}");
    assert_eq!(desk.held(), before);
    desk.client.patch(&path, &json!({"metadata": {"finalizers": null}}));
    web.del_known("c1", &result).ended_well();
    assert_eq!((desk.held(), desk.sticky("web")), (Vec::new(), None));
}
