//! Whose the addresses are in the layouts of the two replaced plugins, whose keys tell the container alone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::etcd::Etcd;
use common::layouts::{BOTH, Old, On, all, on, told};
use common::{Node, addresses, subnets};
use serde_json::{Value, json};

/// Runs something on an empty store for each layout.
fn each(act: impl Fn(Old, &Etcd)) {
    let etcd = Etcd::start();
    for old in BOTH {
        act(old, &etcd);
        etcd.etcdctl(&["del", "--prefix", "/"]);
    }
}

#[track_caller]
fn assert_books(old: Old, etcd: &Etcd, expected: &[&str]) {
    assert_eq!(told(&old.books(etcd)), expected, "{old:?}");
}

/// Nothing of any container is left, and no key of an owner.
#[track_caller]
fn assert_empty(old: Old, etcd: &Etcd) {
    assert_books(old, etcd, &[]);
    let owners = format!("{}owners/", old.ours());
    assert_eq!(etcd.keys(&owners), [""; 0], "{old:?}");
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn del_of_one_interface_leaves_the_others() {
    each(|old, etcd| {
        let node = old.node(etcd);
        let [first, second] = ["eth0", "net1"].map(|ifname| on(&node).ifname(ifname));
        let results = [first.add("c1"), second.add("c1")];
        let both = ["10.1.0.2 node-1/net/c1/eth0", "10.1.0.3 node-1/net/c1/net1"];
        assert_books(old, etcd, &both);
        assert_eq!(first.add("c1")["ips"], results[0]["ips"]);
        assert_eq!(second.add("c1")["ips"], results[1]["ips"]);
        for known in [true, false] {
            for _ in 0..2 {
                match known {
                    true => first.del_known("c1", &results[0]),
                    false => first.del("c1"),
                }
                assert_books(old, etcd, &both[1..]);
            }
            // Neither is the other's.
            assert_eq!(first.check_of("c1", &["10.1.0.3"]).failure().0, 104, "{old:?}");
            second.check_of("c1", &["10.1.0.3"]).success();
            let again = old.node(etcd).with_in_pools("requested-ip", "10.1.0.2");
            on(&again).add("c1");
            assert_books(old, etcd, &both);
        }
        first.del("c1");
        second.del("c1");
        assert_empty(old, etcd);
    });
}

#[test]
fn an_interface_is_not_given_what_another_of_its_container_holds() {
    each(|old, etcd| {
        // Indexed, and as the replaced plugin has given it, known by the runtime's cache.
        for indexed in [true, false] {
            let mut node = old.node(etcd);
            if indexed {
                on(&node).add("c1");
            } else {
                old.give(etcd, "10.1.0.2", "c1");
                on(&node).remember("c1", &["10.1.0.2"]);
            }
            let before = old.books(etcd);
            node = node.with_in_pools("requested-ip", "10.1.0.2");
            for cursor in [None, Some("10.1.0.9")] {
                if let Some(cursor) = cursor {
                    // The node knows where it stands, and tries at once.
                    node.pools = subnets(&["10.1.0.0/24"]);
                    etcd.put(&old.cursor(0), cursor);
                    on(&node).add("other");
                    on(&node).del("other");
                    node = node.with_in_pools("requested-ip", "10.1.0.2");
                }
                let outcome = on(&node).ifname("net1").call("ADD", "c1", &json!({}));
                let (code, text) = outcome.failure();
                assert_eq!(code, 102, "{old:?} {indexed} {text}");
                assert_eq!(old.books(etcd), before, "{old:?} {indexed}");
            }
            on(&node).ifname("net1").del("c1");
            assert_eq!(old.books(etcd), before, "{old:?} {indexed}");
            on(&node).del("c1");
            assert_empty(old, etcd);
        }
    });
}

#[test]
fn del_on_one_network_leaves_what_the_index_says_of_another() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    let mut node = old.node(&etcd);
    let a = on(&node).network("a").add("c1");
    node.pools = subnets(&["10.2.0.0/24"]);
    on(&node).network("b").add("c1");
    let both = ["10.1.0.2 node-1/a/c1/eth0", "10.2.0.2 node-1/b/c1/eth0"];
    assert_books(old, &etcd, &both);
    // Whatever the ranges: one may stand in both.
    node.pools = subnets(&["10.0.0.0/8"]);
    on(&node).network("a").del_known("c1", &a);
    assert_books(old, &etcd, &both[1..]);
    on(&node).network("a").del("c1");
    on(&node).network("c").del("c1");
    assert_books(old, &etcd, &both[1..]);
    on(&node).network("b").del("c1");
    assert_empty(old, &etcd);
}

#[test]
fn del_on_one_network_leaves_what_a_cache_or_the_ranges_say_of_another() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    for cached in [true, false] {
        let mut node = old.node(&etcd);
        old.give(&etcd, "10.1.0.2", "c1");
        old.give(&etcd, "10.1.0.3", "c1");
        old.give(&etcd, "10.2.0.2", "c1");
        if cached {
            on(&node).network("b").remember("c1", &["10.2.0.2"]);
            on(&node).network("a").ifname("net1").remember("c1", &["10.1.0.3"]);
            node.pools = subnets(&["10.0.0.0/8"]);
        }
        on(&node).network("a").del("c1");
        let rest: &[&str] = if cached { &["10.1.0.3 c1", "10.2.0.2 c1"] } else { &["10.2.0.2 c1"] };
        assert_books(old, &etcd, rest);
        // The runtime forgets an attachment after its DEL.
        if cached {
            std::fs::remove_file(on(&node).network("a").ifname("net1").cache_file("c1")).unwrap();
        }
        on(&node).network("a").ifname("net1").del("c1");
        assert_books(old, &etcd, &["10.2.0.2 c1"]);
        node.pools = subnets(&["10.2.0.0/24"]);
        on(&node).network("b").del("c1");
        assert_empty(old, &etcd);
    }
}

#[test]
fn networks_of_cni_ipam_etcd_have_nothing_to_do_with_each_other() {
    let etcd = Etcd::start();
    let node = Old::CniIpamEtcd.node(&etcd);
    on(&node).network("net.other").add("c1");
    etcd.put("/etcd-cni/networks/net.other/used/10.1.0.9", "c1");
    on(&node).del("c1");
    on(&node).network("net.othe").del("c1");
    assert_eq!(on(&node).address("c1"), "10.1.0.2");
    assert_eq!(etcd.keys("/etcd-cni/networks/net.other/used/").len(), 2);
    on(&node).network("net.other").del("c1");
    // What the replaced plugin has given as well is not of this attachment, which is indexed.
    assert_eq!(
        etcd.keys("/etcd-cni/networks/net.other/used/"),
        ["/etcd-cni/networks/net.other/used/10.1.0.9"]
    );
    assert_books(Old::CniIpamEtcd, &etcd, &["10.1.0.2 node-1/net/c1/eth0", "10.1.0.9 c1"]);
}

#[test]
fn one_container_id_on_two_nodes_is_two_containers() {
    each(|old, etcd| {
        let [one, two] = old.nodes(etcd);
        let results = [on(&one).add("vm"), on(&two).add("vm")];
        let both = ["10.1.0.2 node-1/net/vm/eth0", "10.1.0.3 node-2/net/vm/eth0"];
        assert_books(old, etcd, &both);
        assert_eq!(on(&two).check_of("vm", &["10.1.0.2"]).failure().0, 104);
        on(&one).del_known("vm", &results[0]);
        on(&one).del("vm");
        assert_books(old, etcd, &both[1..]);
        assert_eq!(on(&one).address("vm"), "10.1.0.4");
        on(&two).del("vm");
        on(&two).del("vm");
        assert_books(old, etcd, &["10.1.0.4 node-1/net/vm/eth0"]);
        on(&one).del("vm");
        assert_empty(old, etcd);
    });
}

#[test]
fn del_releases_what_the_replaced_plugin_gave_and_nothing_of_others() {
    each(|old, etcd| {
        let node = old.node(etcd);
        for (address, container) in
            [("10.1.0.2", "c1"), ("10.1.0.3", "c10"), ("10.1.0.4", "c1"), ("10.1.0.5", "c")]
        {
            old.give(etcd, address, container);
        }
        on(&node).del("c1");
        let rest = ["10.1.0.3 c10", "10.1.0.5 c"];
        assert_books(old, etcd, &rest);
        // By now another has what was freed, be it of the same container.
        let node = node.with_in_pools("strategy", "lowest");
        let taken = on(&node).ifname("net1").add("c1");
        assert_eq!(addresses(&taken), ["10.1.0.2"]);
        on(&node).del("c1");
        let rest = ["10.1.0.2 node-1/net/c1/net1", "10.1.0.3 c10", "10.1.0.5 c"];
        assert_books(old, etcd, &rest);
        on(&node).ifname("net1").del("c1");
        assert_books(old, etcd, &rest[1..]);
    });
}

#[test]
fn del_releases_all_that_the_replaced_plugin_gave_to_a_container() {
    each(|old, etcd| {
        let node = old.node(etcd).with_subnets(&["10.1.0.0/16", "fd00:1::/64"]);
        // An ADD again was another address to it, so that a container that is started each day has many; the
        // runtime knows of the latest.
        let many = common::store::usable("10.1.0.0", 200);
        for batch in many.chunks(100) {
            let pair = |address: &std::net::IpAddr| (old.lease(address), "c1".to_owned());
            common::store::put_all(etcd, batch.iter().map(pair));
        }
        old.give(etcd, "fd00:1::2", "c1");
        on(&node).remember("c1", &["10.1.0.201"]);
        on(&node).del("c1");
        assert_empty(old, etcd);
    });
}

#[test]
fn an_add_again_gives_what_the_runtime_remembers_and_makes_it_indexed() {
    each(|old, etcd| {
        let node = old.node(etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        old.give(etcd, "10.1.0.7", "c1");
        old.give(etcd, "fd00:1::7", "c1");
        old.give(etcd, "10.1.0.2", "c2");
        on(&node).remember("c1", &["10.1.0.7", "fd00:1::7", "192.0.2.1"]);
        for _ in 0..2 {
            assert_eq!(addresses(&on(&node).add("c1")), ["10.1.0.7", "fd00:1::7"]);
            let indexed =
                ["10.1.0.2 c2", "10.1.0.7 node-1/net/c1/eth0", "fd00:1::7 node-1/net/c1/eth0"];
            assert_books(old, etcd, &indexed);
        }
        std::fs::remove_file(on(&node).cache_file("c1")).unwrap();
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.2 c2"]);
    });
}

#[test]
fn an_add_again_that_is_remembered_in_part_gets_the_rest() {
    each(|old, etcd| {
        let node = old.node(etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        old.give(etcd, "fd00:1::7", "c1");
        on(&node).remember("c1", &["10.1.0.7", "fd00:1::7"]);
        assert_eq!(addresses(&on(&node).add("c1")), ["10.1.0.2", "fd00:1::7"], "{old:?}");
        on(&node).del("c1");
        assert_empty(old, etcd);
    });
}

#[test]
fn an_add_again_that_nobody_remembers_gets_another_address() {
    each(|old, etcd| {
        let node = old.node(etcd);
        old.give(etcd, "10.1.0.2", "c1");
        assert_eq!(on(&node).address("c1"), "10.1.0.3");
        assert_books(old, etcd, &["10.1.0.2 c1", "10.1.0.3 node-1/net/c1/eth0"]);
    });
}

#[test]
fn a_cache_that_is_out_of_date_is_not_believed() {
    each(|old, etcd| {
        let node = old.node(etcd);
        on(&node).remember("c1", &["10.1.0.7"]);
        for holder in [Some("c2"), Some("c1x"), None] {
            match holder {
                Some(holder) => old.give(etcd, "10.1.0.7", holder),
                None => drop(etcd.del(&old.lease("10.1.0.7"))),
            }
            let before = old.books(etcd);
            let address = on(&node).address("c1");
            assert_ne!(address, "10.1.0.7", "{old:?} {holder:?}");
            on(&node).del("c1");
            on(&node).del("c1");
            assert_eq!(old.books(etcd), before, "{old:?} {holder:?}");
        }
        // Nor of another interface that has the address by the index.
        let mut node = node.with_in_pools("requested-ip", "10.1.0.7");
        on(&node).ifname("net1").add("c1");
        node.pools = subnets(&["10.1.0.0/24"]);
        assert_ne!(on(&node).address("c1"), "10.1.0.7", "{old:?}");
        on(&node).del("c1");
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.7 node-1/net/c1/net1"]);
    });
}

#[test]
fn check_believes_the_store_alone() {
    each(|old, etcd| {
        let node = old.node(etcd);
        old.give(etcd, "10.1.0.7", "c1");
        on(&node).check_of("c1", &["10.1.0.7"]).success();
        on(&node).remember("c1", &["10.1.0.7"]);
        on(&node).check_of("c1", &["10.1.0.7", "192.0.2.1"]).success();
        assert_eq!(on(&node).check_of("c2", &["10.1.0.7"]).failure().0, 104, "{old:?}");
        assert_eq!(on(&node).check_of("c1", &["10.1.0.8"]).failure().0, 104, "{old:?}");
        old.give(etcd, "10.1.0.7", "c2");
        assert_eq!(on(&node).check_of("c1", &["10.1.0.7"]).failure().0, 104, "{old:?}");
        // What we gave and the replaced plugin has given again.
        let result = on(&node).add("c3");
        node.check("c3", &result).success();
        old.give(etcd, &addresses(&result)[0], "thief");
        for known in [true, false] {
            let outcome = match known {
                true => node.check("c3", &result),
                false => on(&node).check_of("c3", &["10.1.0.2"]),
            };
            assert!(outcome.stderr.contains("which now says thief"), "{old:?} {outcome:?}");
            assert_eq!(outcome.failure().0, 104, "{old:?}");
        }
        on(&node).del_known("c3", &result);
        on(&node).del("c3");
        assert_books(old, etcd, &["10.1.0.2 thief", "10.1.0.7 c2"]);
        assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0]);
    });
}

#[test]
fn gc_releases_what_the_index_says_of_this_node_and_leaves_the_rest() {
    each(|old, etcd| {
        let [one, two] = old.nodes(etcd);
        old.give(etcd, "10.1.0.100", "gone");
        old.give(etcd, "10.1.0.101", "stale");
        on(&one).add("kept");
        on(&one).add("stale");
        on(&one).ifname("net1").add("stale");
        on(&two).add("stale");
        let all = old.books(etcd);
        one.gc(&["kept"]).success();
        assert_eq!(old.books(etcd), all, "{old:?}: young ones stay");
        old.age(etcd, HOUR);
        // The replaced plugin has given one of them again.
        old.give(etcd, "10.1.0.3", "thief");
        one.gc(&["kept"]).success();
        let rest = [
            "10.1.0.2 node-1/net/kept/eth0",
            "10.1.0.3 thief",
            "10.1.0.5 node-2/net/stale/eth0",
            "10.1.0.100 gone",
            "10.1.0.101 stale",
        ];
        assert_books(old, etcd, &rest);
    });
}

#[test]
fn gc_of_one_network_leaves_what_the_index_says_of_another() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    let node = old.node(&etcd);
    on(&node).add("stale");
    on(&node).network("other").add("stale");
    old.age(&etcd, HOUR);
    node.gc(&[]).success();
    assert_books(old, &etcd, &["10.1.0.3 node-1/other/stale/eth0"]);
}

/// A store with entries of all kinds.
fn mixed(old: Old, etcd: &Etcd) -> [Node; 2] {
    let [mut one, two] = old.nodes(etcd);
    on(&one).add("c1");
    on(&one).ifname("net1").add("c1");
    on(&two).add("c2");
    old.give(etcd, "10.1.0.7", "c1");
    old.give(etcd, "10.1.0.8", "bare");
    old.give(etcd, "10.1.0.9", "");
    old.give(etcd, "garbage", "bare");
    let pools = std::mem::replace(&mut one.pools, subnets(&["10.2.0.0/24"]));
    on(&one).network("other").add("c1");
    one.pools = pools;
    [one, two]
}

#[test]
fn people_see_all_entries_of_a_network() {
    each(|old, etcd| {
        let [one, _two] = mixed(old, etcd);
        let rows = one.typed(&["list", "--json"]).success();
        let text = |row: &Value| {
            ["address", "containerID", "ifname", "node", "state"]
                .map(|key| row[key].as_str().unwrap_or("-").to_owned())
                .join(" ")
        };
        let rows: Vec<String> = rows.as_array().unwrap().iter().map(text).collect();
        let expected = [
            "10.1.0.2 c1 eth0 node-1 held",
            "10.1.0.3 c1 net1 node-1 held",
            "10.1.0.4 c2 eth0 node-2 held",
            "10.1.0.7 c1 - - held",
            "10.1.0.8 bare - - held",
            "10.1.0.9 - - - unreadable",
        ];
        assert_eq!(rows, expected, "{old:?}");
        for (address, container) in [("10.1.0.2", "c1"), ("10.1.0.8", "bare")] {
            let who = one.typed(&["who", address, "--json"]).success();
            assert_eq!(who[0]["containerID"], container, "{old:?}");
        }
        let nobody = one.typed(&["who", "10.2.0.2", "--json"]).success();
        assert_eq!(nobody, json!([]), "{old:?}: the index says that it is another network's");
        let pools = one.typed(&["pools", "--json"]).success();
        assert_eq!((&pools[0]["held"], &pools[0]["size"]), (&json!(6), &json!(253)), "{old:?}");
    });
}

#[test]
fn people_release_by_address_owner_and_node() {
    each(|old, etcd| {
        let [one, _two] = mixed(old, etcd);
        let before = old.books(etcd);
        let release = |words: &[&str], gone: &[&str]| {
            let told = one.told(&[&["release"], words, &["--yes"]].concat());
            let rows = told.lines().filter(|line| line.starts_with("10.")).count();
            assert_eq!(rows, gone.len(), "{old:?} {words:?}: {told}");
            for address in gone {
                assert_eq!(etcd.get(&old.lease(address)), None, "{old:?} {words:?}");
            }
            old.books(etcd).len()
        };
        assert_eq!(release(&["10.1.0.9"], &["10.1.0.9"]), before.len() - 1);
        assert_eq!(release(&["--node", "node-2"], &["10.1.0.4"]), before.len() - 2);
        assert_eq!(release(&["--owner", "c1/net1"], &["10.1.0.3"]), before.len() - 3);
        assert_eq!(release(&["10.1.0.8"], &["10.1.0.8"]), before.len() - 4);
        let left = release(&["--owner", "c1"], &["10.1.0.2", "10.1.0.7"]);
        assert_eq!(left, 1, "{old:?}: that of the other network");
        assert_eq!(etcd.get(&old.lease("garbage")).unwrap(), "bare");
        let owners: Vec<String> =
            all(etcd).into_keys().filter(|key| key.contains("/owners/")).collect();
        assert_eq!(owners.len(), 1, "{old:?} {owners:?}");
    });
}

/// An ADD that asks for an address, perhaps one that another holds.
fn asking(old: Old, etcd: &Etcd, name: &str, takeover: bool) -> Node {
    let node = old.node(etcd).named(name).with_in_pools("requested-ip", "10.1.0.7");
    node.with_in_pools("takeover", takeover)
}

#[test]
fn a_requested_address_that_another_container_holds_is_refused() {
    each(|old, etcd| {
        let node = asking(old, etcd, "node-1", false);
        for holder in ["c2", "c1x", ""] {
            old.give(etcd, "10.1.0.7", holder);
            for _ in 0..2 {
                let (code, text) = on(&node).call("ADD", "c1", &json!({})).failure();
                assert_eq!(code, 102, "{old:?} {text}");
                let named = if holder.is_empty() { old.lease("10.1.0.7") } else { holder.into() };
                assert!(text.contains(&named), "{old:?} {text}");
                assert_eq!(etcd.get(&old.lease("10.1.0.7")).unwrap(), holder);
            }
            on(&node).del("c1");
            assert_eq!(etcd.get(&old.lease("10.1.0.7")).unwrap(), holder);
        }
    });
}

#[test]
fn a_requested_address_that_the_container_was_given_by_the_replaced_plugin_is_given_again() {
    each(|old, etcd| {
        for fresh in [true, false] {
            let mut node = old.node(etcd);
            if !fresh {
                on(&node).add("other");
                on(&node).del("other");
            }
            node = node.with_in_pools("requested-ip", "10.1.0.7");
            old.give(etcd, "10.1.0.7", "c1");
            assert_eq!(on(&node).address("c1"), "10.1.0.7", "{old:?} {fresh}");
            assert_books(old, etcd, &["10.1.0.7 node-1/net/c1/eth0"]);
            on(&node).del("c1");
            assert_empty(old, etcd);
        }
    });
}

#[test]
fn an_address_that_the_replaced_plugin_gave_is_taken_over() {
    each(|old, etcd| {
        old.give(etcd, "10.1.0.7", "theirs");
        let node = asking(old, etcd, "node-1", true);
        let result = on(&node).add("vm");
        assert_books(old, etcd, &["10.1.0.7 node-1/net/vm/eth0"]);
        on(&node).del("theirs");
        node.check("vm", &result).success();
        // Nor what is not a container's at all.
        on(&node).del_known("vm", &result);
        old.give(etcd, "10.1.0.7", "");
        assert_eq!(on(&node).call("ADD", "vm", &json!({})).failure().0, 102, "{old:?}");
    });
}

#[test]
fn an_address_that_is_indexed_is_taken_over_and_its_old_owner_frees_nothing() {
    each(|old, etcd| {
        // A machine that moves keeps its name.
        for (container, known) in [("vm", true), ("vm", false), ("other", true), ("other", false)] {
            let [one, two] =
                ["node-1", "node-2"].map(|name| asking(old, etcd, name, name == "node-2"));
            let held = on(&one).add("vm");
            let taken = on(&two).add(container);
            assert_eq!(addresses(&taken), ["10.1.0.7"]);
            let its = on(&one);
            let gives = |on: On<'_>| match known {
                true => on.del_known("vm", &held),
                false => on.del("vm"),
            };
            let (code, text) = one.check("vm", &held).failure();
            assert_eq!(code, 104, "{old:?} {text}");
            gives(its);
            gives(its);
            let owner = format!("10.1.0.7 node-2/net/{container}/eth0");
            assert_books(old, etcd, &[&owner]);
            two.check(container, &taken).success();
            on(&two).del_known(container, &taken);
            assert_empty(old, etcd);
        }
    });
}

#[test]
fn a_late_del_frees_nothing_that_another_interface_of_the_container_was_given() {
    each(|old, etcd| {
        let node = old.node(etcd).with_in_pools("strategy", "lowest");
        let first = on(&node).add("c1");
        on(&node).del_known("c1", &first);
        let second = on(&node).ifname("net1").add("c1");
        assert_eq!(addresses(&second), addresses(&first));
        for known in [true, false] {
            match known {
                true => on(&node).del_known("c1", &first),
                false => on(&node).del("c1"),
            }
            assert_books(old, etcd, &["10.1.0.2 node-1/net/c1/net1"]);
        }
        on(&node).ifname("net1").del_known("c1", &second);
        assert_empty(old, etcd);
    });
}

#[test]
fn a_late_del_frees_nothing_that_was_given_anew() {
    each(|old, etcd| {
        let node = old.node(etcd).with_in_pools("strategy", "lowest");
        let first = on(&node).add("c1");
        let again = on(&node).add("c1");
        assert_eq!(addresses(&again), addresses(&first));
        on(&node).del_known("c1", &again);
        let other = on(&node).add("c2");
        assert_eq!(addresses(&other), addresses(&first));
        on(&node).del_known("c1", &first);
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.2 node-1/net/c2/eth0"]);
        node.check("c2", &other).success();
    });
}

#[test]
fn keys_of_owners_deleted_by_hand_leave_what_the_container_id_tells() {
    each(|old, etcd| {
        let node = old.node(etcd);
        let result = on(&node).add("c1");
        let other = on(&node).ifname("net1").add("c1");
        assert!(etcd.del(&old.owner("node-1", "c1")));
        node.check("c1", &result).success();
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.3 node-1/net/c1/net1"]);
        etcd.etcdctl(&["del", "--prefix", old.ours()]);
        on(&node).ifname("net1").del_known("c1", &other);
        assert_empty(old, etcd);
    });
}

#[test]
fn addresses_deleted_by_hand_are_taken_off_their_owners() {
    each(|old, etcd| {
        let node = old.node(etcd).with_in_pools("strategy", "lowest");
        let result = on(&node).add("c1");
        assert!(etcd.del(&old.lease("10.1.0.2")));
        assert_eq!(node.check("c1", &result).failure().0, 104, "{old:?}");
        let other = on(&node).add("c2");
        assert_eq!(addresses(&other), ["10.1.0.2"]);
        assert_eq!(on(&node).address("c1"), "10.1.0.3", "{old:?}");
        assert_books(old, etcd, &["10.1.0.2 node-1/net/c2/eth0", "10.1.0.3 node-1/net/c1/eth0"]);
        on(&node).del_known("c1", &result);
        on(&node).del("c2");
        assert_empty(old, etcd);
    });
}

#[test]
fn an_owners_key_that_is_not_ours_is_named() {
    each(|old, etcd| {
        let node = old.node(etcd);
        let result = on(&node).add("c1");
        let key = old.owner("node-1", "c1");
        etcd.put(&key, "garbage");
        for (verb, known) in
            [("ADD", json!({})), ("CHECK", common::given(&result)), ("DEL", json!({}))]
        {
            let (code, text) = on(&node).call(verb, "c1", &known).failure();
            assert_eq!(code, 103, "{old:?} {verb} {text}");
            assert!(text.contains(&key), "{old:?} {text}");
        }
        // It is in no other's way.
        on(&node).ifname("net1").add("c1");
        on(&node).ifname("net1").del("c1");
        assert_eq!(etcd.get(&old.lease("10.1.0.2")).unwrap(), "c1", "{old:?}");
        etcd.del(&key);
        on(&node).del("c1");
        assert_empty(old, etcd);
    });
}

#[test]
fn names_that_are_parts_of_each_other_are_kept_apart() {
    each(|old, etcd| {
        let node = old.node(etcd);
        let containers = ["c", "c1", "c1.", "c1-", "c1_", "c10"];
        for container in containers {
            on(&node).add(container);
            on(&node).ifname("eth0.1").add(container);
        }
        for (number, container) in containers.iter().enumerate() {
            on(&node).del(container);
            on(&node).del(container);
            assert_eq!(old.books(etcd).len(), 12 - 2 * number - 1, "{old:?} {container}");
            on(&node).ifname("eth0.1").del(container);
        }
        assert_empty(old, etcd);
    });
}

#[test]
fn many_pools_are_searched_at_once() {
    each(|old, etcd| {
        // Each is a piece of two stretches of keys and a single one beside each.
        let pool = |n| {
            let [from, to] = ["fff0", "1:f"].map(|end| format!("fd00:{n}::{end}"));
            json!({"ranges": [{"subnet": format!("fd00:{n}::/64"), "rangeStart": from, "rangeEnd": to}]})
        };
        let mut node = old.node(etcd);
        node.pools = (1..=30).map(pool).collect();
        let result = on(&node).add("c1");
        assert_eq!(addresses(&result).len(), 30, "{old:?}");
        assert_eq!(addresses(&on(&node).add("c1")), addresses(&result), "{old:?}");
        on(&node).del("c1");
        assert_empty(old, etcd);
    });
}
