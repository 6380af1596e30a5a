//! The keys of whereabouts, as ADD, DEL and GC read and leave them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, at_once, given, within};
use ipam_testkit::world::{start, wait};
use serde_json::json;

use common::Node;
use common::layouts::{on, whereabouts_node as node};

const POOL: &str = "/whereabouts/10.1.0.0/24";
const OWNERS: &str = "/whereabouts/ipam-delegated/owners/";

#[track_caller]
fn assert_pool(etcd: &Etcd, value: &str) {
    assert_eq!(etcd.get(POOL).as_deref(), Some(value));
}

#[test]
fn add_and_del_leave_the_value_of_whereabouts_and_keys_below_one_of_ours() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    node.add("c1");
    node.add("c2");
    assert_pool(&etcd, "10.1.0.2 c1\n10.1.0.3 c2");
    let keys = [
        POOL,
        "/whereabouts/ipam-delegated/latest/net",
        "/whereabouts/ipam-delegated/owners/c1/node-1/net/eth0",
        "/whereabouts/ipam-delegated/owners/c2/node-1/net/eth0",
        "/whereabouts/ipam-delegated/written/net",
    ];
    assert_eq!(etcd.keys("/"), keys);
    node.del("c1");
    node.del("c1");
    assert_pool(&etcd, "10.1.0.3 c2");
    node.del("c2");
    assert_pool(&etcd, "");
    assert_eq!(etcd.keys(OWNERS), [""; 0]);
}

#[test]
fn both_families_are_two_values_and_one_step() {
    let etcd = Etcd::start();
    let node = node(&etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
    assert_eq!(addresses(&node.add("c1")), ["10.1.0.2", "fd00:1::2"]);
    assert_pool(&etcd, "10.1.0.2 c1");
    assert_eq!(etcd.get("/whereabouts/fd00:1::/64").unwrap(), "fd00:1::2 c1");
    node.del("c1");
    assert_eq!(etcd.get("/whereabouts/fd00:1::/64").unwrap(), "");
}

#[test]
fn a_del_of_one_interface_leaves_the_other() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    on(&node).add("c1");
    on(&node).ifname("net1").add("c1");
    // Of another network with the same pool.
    on(&node).network("other").add("c1");
    assert_pool(&etcd, "10.1.0.2 c1\n10.1.0.3 c1\n10.1.0.4 c1");
    on(&node).ifname("net1").del("c1");
    assert_pool(&etcd, "10.1.0.2 c1\n10.1.0.4 c1");
    on(&node).del("c1");
    assert_pool(&etcd, "10.1.0.4 c1");
    assert_eq!(on(&node).network("other").address("c1"), "10.1.0.4");
}

#[test]
fn a_line_of_whereabouts_is_released_with_its_container() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    etcd.put(POOL, "10.1.0.9 c1\n10.1.0.2 c2\n10.1.0.3 c1");
    // What the runtime remembers of another interface is not this one's.
    on(&node).ifname("net1").remember("c1", &["10.1.0.9"]);
    on(&node).del("c1");
    assert_pool(&etcd, "10.1.0.9 c1\n10.1.0.2 c2");
    on(&node).ifname("net1").del("c1");
    assert_pool(&etcd, "10.1.0.2 c2");
    on(&node).del("c3");
    assert_pool(&etcd, "10.1.0.2 c2");
}

#[test]
fn an_add_takes_over_what_the_runtime_remembers_and_nothing_else() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    etcd.put(POOL, "10.1.0.7 c1\n10.1.0.8 c2\n10.1.0.9 c3");
    on(&node).remember("c1", &["10.1.0.7"]);
    on(&node).remember("c2", &["10.1.0.9"]);
    assert_eq!(node.address("c1"), "10.1.0.7");
    assert_eq!(node.address("c2"), "10.1.0.2");
    on(&node).check_of("c3", &["10.1.0.9"]).success();
    assert_eq!(on(&node).check_of("c3", &["10.1.0.8"]).failure().0, 104);
    assert_pool(&etcd, "10.1.0.7 c1\n10.1.0.8 c2\n10.1.0.9 c3\n10.1.0.2 c2");
    assert_eq!(etcd.keys(OWNERS).len(), 2);
}

#[test]
fn what_whereabouts_has_given_to_another_is_not_ours_to_release() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let result = node.add("c1");
    etcd.put(POOL, "10.1.0.2 c2");
    assert_eq!(node.check("c1", &result).failure().0, 104);
    node.del_known("c1", &result).success();
    assert_pool(&etcd, "10.1.0.2 c2");
    assert_eq!(etcd.keys(OWNERS), [""; 0]);
    assert_eq!(node.address("c1"), "10.1.0.3");
}

#[test]
fn a_malformed_value_is_an_error_with_its_key_and_line_and_stays() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let result = node.add("held");
    for (value, line) in [
        ("10.1.0.2 held\ngarbage\n10.1.0.9 c2", "line 2 has no space"),
        ("10.1.0.2 held\n", "line 2 has no space"),
        ("10.1.0.2 held\n<nil> c2", "line 2 does not begin with an address"),
    ] {
        etcd.put(POOL, value);
        let before = etcd.keys("/");
        for outcome in [
            node.call("ADD", "c1"),
            node.call("DEL", "held"),
            node.del_known("held", &result),
            node.check("held", &result),
        ] {
            let (code, text) = outcome.failure();
            assert_eq!(code, 103, "{text}");
            assert!(text.contains(POOL) && text.contains(line), "{text}");
        }
        assert_eq!(node.call("STATUS", "").failure().0, 50);
        assert_pool(&etcd, value);
        assert_eq!(etcd.keys("/"), before);
    }
}

#[test]
fn foreign_keys_below_the_prefix_stay_and_lint_names_them() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let foreign = ["garbage", "10.1.0.0", "10.1.0.5/24", "10.1.0.0/24x", "x/10.1.0.0/24"];
    for name in foreign {
        etcd.put(&format!("/whereabouts/{name}"), "garbage");
    }
    node.add("c1");
    node.del("c1");
    node.gc(&[]).success();
    assert_eq!(node.typed(&["list", "--json"]).success(), json!([]));
    // Of the mutex.
    etcd.put(&format!("{POOL}/694d"), "");
    let lint = node.typed(&["lint"]);
    assert_eq!(lint.stdout.matches("foreign key").count(), foreign.len(), "{lint:?}");
    for name in foreign {
        assert!(lint.stdout.contains(&format!("foreign key /whereabouts/{name}: ")), "{lint:?}");
        assert_eq!(etcd.get(&format!("/whereabouts/{name}")).as_deref(), Some("garbage"), "{name}");
    }
}

#[test]
fn without_ranges_a_line_is_released_where_only_one_network_can_be_meant() {
    let etcd = Etcd::start();
    let mut node = node(&etcd);
    node.add("ours");
    node.pools = json!([]);
    let other = "/whereabouts/10.2.0.0/24";
    etcd.put(POOL, &format!("{}\n10.1.0.9 one\n10.1.0.8 two", etcd.get(POOL).unwrap()));
    etcd.put(other, "10.2.0.7 two\n10.2.0.8 three\n10.2.0.9 four");
    node.del("ours");
    node.del("unknown");
    node.del("one");
    assert_pool(&etcd, "10.1.0.8 two");
    // One of each of two networks.
    let (code, text) = node.call("DEL", "two").failure();
    assert!(code == 7 && text.contains("several pools name the container"), "{text}");
    assert_pool(&etcd, "10.1.0.8 two");
    on(&node).network("other").remember("two", &["10.2.0.7"]);
    node.del("two");
    assert_pool(&etcd, "");
    assert_eq!(etcd.get(other).as_deref(), Some("10.2.0.7 two\n10.2.0.8 three\n10.2.0.9 four"));

    // What the runtime remembers of this attachment, or sends with the DEL.
    etcd.put(POOL, "10.1.0.3 three\n10.1.0.4 four");
    on(&node).remember("three", &["10.2.0.8"]);
    node.del("three");
    let (command, mut network) = on(&node).command("DEL", "four", &json!({}));
    network["prevResult"]["cniVersion"] = "1.0.0".into();
    network["prevResult"]["ips"] = json!([{"address": "10.1.0.4/24"}]);
    wait(start(command, &network)).success();
    assert_pool(&etcd, "10.1.0.3 three");
    assert_eq!(etcd.get(other).as_deref(), Some("10.2.0.7 two\n10.2.0.9 four"));
    // The same again, and with a result that cannot be read: what is left is another network's.
    let (command, _) = on(&node).command("DEL", "four", &json!({}));
    wait(start(command, &network)).success();
    let (command, _) = on(&node).command("DEL", "four", &json!({}));
    network["prevResult"]["ips"] = json!([{"address": "10.1.0.4"}]);
    assert_eq!(wait(start(command, &network)).failure().0, 7);
    assert_eq!(etcd.get(other).as_deref(), Some("10.2.0.7 two\n10.2.0.9 four"));
}

#[test]
fn a_role_for_the_keys_of_pools_alone_is_refused_and_nothing_is_written() {
    let etcd = Etcd::builder().auth("theirs", "pa55word", POOL).start();
    let node = node(&etcd).with("username", "theirs").with("password", "pa55word");
    etcd.put(POOL, "10.1.0.2 theirs");
    for (verb, code) in [("ADD", 103), ("DEL", 103), ("STATUS", 50)] {
        let (found, text) = node.call(verb, if verb == "STATUS" { "" } else { "theirs" }).failure();
        assert_eq!(found, code, "{text}");
        assert!(text.contains("permission denied"), "{text}");
    }
    assert_eq!(etcd.keys("/"), [POOL]);
    assert_pool(&etcd, "10.1.0.2 theirs");
}

#[test]
fn status_fails_without_a_right_that_every_add_needs_and_writes_nothing() {
    let etcd = Etcd::builder().auth("few", "pa55word", "/nothing/").start();
    let node = node(&etcd).with("username", "few").with("password", "pa55word");
    let grant = |what: &str, prefix: &str, key: &str| {
        etcd.etcdctl(&["role", "grant-permission", prefix, "below-the-prefix", what, key]);
    };
    let [all, one] = ["--prefix=true", "--prefix=false"];
    let refused = || {
        for (verb, code) in [("STATUS", 50), ("ADD", 103)] {
            let (found, text) = node.call(verb, if verb == "ADD" { "c1" } else { "" }).failure();
            assert_eq!(found, code, "{text}");
            assert!(text.contains("permission denied"), "{text}");
        }
        assert_eq!(etcd.keys("/"), [""; 0]);
    };
    refused();
    for (what, prefix, key) in [
        ("read", all, "/"),
        ("readwrite", one, POOL),
        ("readwrite", all, OWNERS),
        ("readwrite", one, "/whereabouts/ipam-delegated/latest/net"),
    ] {
        grant(what, prefix, key);
        refused();
    }
    grant("readwrite", one, "/whereabouts/ipam-delegated/written/net");
    let revision = etcd.revision();
    node.call("STATUS", "").success();
    assert_eq!((etcd.keys("/"), etcd.revision()), (vec![], revision));
    node.add("c1");
    node.call("STATUS", "").success();
    assert_pool(&etcd, "10.1.0.2 c1");
}

#[test]
fn gc_and_release_remove_lines_of_their_owners_alone() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    for container in ["c1", "c2", "c3"] {
        node.add(container);
    }
    etcd.put(POOL, &format!("{}\n10.1.0.9 theirs", etcd.get(POOL).unwrap()));
    // All are younger than the grace time.
    node.gc(&["c1"]).success();
    assert_eq!(node.typed(&["list", "--json"]).success().as_array().unwrap().len(), 4);
    node.told(&["release", "--owner", "c2", "--yes"]);
    assert_pool(&etcd, "10.1.0.2 c1\n10.1.0.9 theirs\n10.1.0.4 c3");
    node.told(&["release", "10.1.0.9", "--yes"]);
    assert_pool(&etcd, "10.1.0.2 c1\n10.1.0.4 c3");
    node.told(&["release", "--node", "node-1", "--yes"]);
    assert_pool(&etcd, "");
    assert_eq!(etcd.keys(OWNERS), [""; 0]);
}

/// How many changes have gone through the log of the server.
fn proposals(etcd: &Etcd) -> u64 {
    let metrics = etcd.metrics().unwrap();
    let count = "etcd_server_proposals_committed_total ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(count)).unwrap();
    line.parse::<f64>().unwrap() as u64
}

#[test]
fn while_the_mutex_is_held_nothing_is_written_and_its_end_lets_calls_go_on() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let held = node.add("held");
    let requests = etcd.requests();
    let mutex = format!("{POOL}/694d");
    let lease = requests.grant(600).unwrap();
    assert!(requests.create(&mutex, "", lease).unwrap());
    let value = etcd.get(POOL).unwrap();
    let written = proposals(&etcd);
    for (verb, container, known) in [("ADD", "late", &json!({})), ("DEL", "held", &given(&held))] {
        let (mut command, network) = on(&node).command(verb, container, known);
        command.env("IPAM_DELEGATED_DEADLINE_MS", "1500");
        let (code, text) = wait(start(command, &network)).failure();
        assert_eq!(code, 11, "{text}");
        assert!(text.contains(&format!("{POOL}/")), "{text}");
    }
    assert_eq!(etcd.get(POOL).unwrap(), value);
    // For each of the calls: the change, an etcd lease, a place in the queue, and their end.
    assert!(proposals(&etcd) - written <= 8, "waiting writes nothing");
    // The release of a mutex that others wait for.
    std::thread::scope(|scope| {
        scope.spawn(|| node.add("c2"));
        std::thread::sleep(Duration::from_millis(400));
        requests.revoke(lease).unwrap();
    });
    assert_pool(&etcd, "10.1.0.2 held\n10.1.0.3 c2");
    assert_eq!(etcd.keys(&format!("{POOL}/")), [""; 0], "no ticket is left");
}

#[test]
fn a_call_keeps_its_place_in_one_mutex_while_it_queues_in_another() {
    let etcd = Etcd::start();
    let other_pool = "/whereabouts/10.2.0.0/24";
    let node = node(&etcd).with_subnets(&["10.1.0.0/24", "10.2.0.0/24"]);
    let requests = etcd.requests();
    let hold = |pool: &str| {
        let lease = requests.grant(600).unwrap();
        assert!(requests.create(&format!("{pool}/694d"), "", lease).unwrap());
        lease
    };
    let places = |pool: &str| etcd.keys(&format!("{pool}/")).len();
    let until_queued = |pool: &str| within(Duration::from_secs(5), || while places(pool) < 2 {});
    let first = hold(POOL);
    std::thread::scope(|scope| {
        let add = scope.spawn(|| addresses(&node.add("c1")));
        until_queued(POOL);
        let second = hold(other_pool);
        requests.revoke(first).unwrap();
        until_queued(other_pool);
        assert_eq!(places(POOL), 1);
        requests.revoke(second).unwrap();
        assert_eq!(add.join().unwrap(), ["10.1.0.2", "10.2.0.2"]);
    });
    assert_eq!((places(POOL), places(other_pool)), (0, 0), "no ticket is left");
}

#[test]
fn a_call_keeps_its_place_in_a_mutex_for_longer_than_its_etcd_lease() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let requests = etcd.requests();
    let queue = |name: &str| {
        let lease = requests.grant(600).unwrap();
        assert!(requests.create(&format!("{POOL}/{name}"), "", lease).unwrap());
        lease
    };
    let places = || etcd.keys(&format!("{POOL}/"));
    let first = queue("694d");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| node.add("c1"));
        within(Duration::from_secs(5), || while places().len() < 2 {});
        let place = places().into_iter().find(|key| !key.ends_with("/694d")).unwrap();
        let behind = queue("695d");
        // The etcd lease of a place is 10 seconds.
        std::thread::sleep(Duration::from_secs(13));
        assert!(places().contains(&place), "{place} is not in {:?}", places());
        requests.revoke(first).unwrap();
        assert_eq!(addresses(&add.join().unwrap()), ["10.1.0.2"], "before the one behind it");
        requests.revoke(behind).unwrap();
    });
}

#[test]
fn a_killed_call_leaves_its_place_in_a_mutex_within_its_etcd_lease() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let requests = etcd.requests();
    let lease = requests.grant(600).unwrap();
    assert!(requests.create(&format!("{POOL}/694d"), "", lease).unwrap());
    let places = || etcd.keys(&format!("{POOL}/")).len();
    let (command, network) = on(&node).command("ADD", "killed", &json!({}));
    let mut call = start(command, &network);
    within(Duration::from_secs(5), || while places() < 2 {});
    call.kill().unwrap();
    call.wait().unwrap();
    within(Duration::from_secs(13), || while places() > 1 {});
}

#[test]
fn twenty_at_once_on_several_nodes_hold_addresses_of_their_own() {
    const NODES: usize = 10;
    let etcd = Etcd::start();
    let nodes: Vec<Node> =
        (0..NODES).map(|number| node(&etcd).named(&format!("node-{number}"))).collect();
    within(Duration::from_secs(60), || {
        at_once(2 * NODES, |worker| {
            let node = &nodes[worker / 2];
            node.add(&format!("stays-{worker}"));
            node.add(&format!("goes-{worker}"));
            node.del(&format!("goes-{worker}"));
        });
    });
    let value = etcd.get(POOL).unwrap();
    let lines: Vec<(&str, &str)> =
        value.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let held: std::collections::BTreeSet<_> = lines.iter().map(|(address, _)| address).collect();
    assert_eq!((lines.len(), held.len()), (2 * NODES, 2 * NODES), "{value}");
    assert!(lines.iter().all(|(_, id)| id.starts_with("stays-")), "{value}");
    assert_eq!(etcd.keys(OWNERS).len(), 2 * NODES);
    assert_eq!(etcd.keys(&format!("{POOL}/")), [""; 0], "no ticket is left");
}

#[test]
fn a_pool_that_is_too_large_for_etcd_is_an_error_and_stays() {
    let etcd = Etcd::start();
    let node = node(&etcd).with_subnets(&["10.1.0.0/16"]);
    let key = "/whereabouts/10.1.0.0/16";
    let line = |n: usize| format!("10.1.{}.{} {n:064x}", 1 + n / 250, n % 250);
    let value: Vec<String> = (0..21_500).map(line).collect();
    let value = value.join("\n");
    let before = &value[..value[..1_571_900].rfind('\n').unwrap()];
    etcd.requests().put(key, before).unwrap();
    let (code, text) = node.call("ADD", &"c".repeat(64)).failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.contains("too large"), "{text}");
    assert_eq!(etcd.get(key).unwrap(), before);
    // A release makes it smaller.
    let first = "0".repeat(64);
    node.del(&first);
    assert!(etcd.get(key).unwrap().len() < before.len());
}
