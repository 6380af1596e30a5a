//! Requested addresses, take-overs and other pools in the old layouts.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, subnets};
use serde_json::json;

use common::Node;
use common::layouts::{Old, On, assert_books, assert_empty, each, on};

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

/// An ADD that asks for an address, perhaps one that another holds.
fn asking(old: Old, etcd: &Etcd, name: &str, takeover: bool) -> Node {
    let node = old.node(etcd).named(name).with_in_pools("requested-ip", "10.1.0.7");
    node.taking_over(takeover)
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
fn an_add_with_other_pools_or_wishes_gives_back_what_it_does_not_keep() {
    each(|old, etcd| {
        for bare in [false, true] {
            let mut node = old.node(etcd);
            if bare {
                old.give(etcd, "10.1.0.2", "c1");
                on(&node).remember("c1", &["10.1.0.2"]);
            } else {
                on(&node).add("c1");
            }
            node = node.with_in_pools("requested-ip", "10.1.0.7");
            assert_eq!(on(&node).address("c1"), "10.1.0.7");
            assert_books(old, etcd, &["10.1.0.7 node-1/net/c1/eth0"]);
            node.pools = subnets(&["10.2.0.0/24", "fd00:1::/64"]);
            on(&node).add("c1");
            let owner = "node-1/net/c1/eth0";
            assert_books(old, etcd, &[&format!("10.2.0.2 {owner}"), &format!("fd00:1::2 {owner}")]);
            on(&node).del("c1");
            assert_empty(old, etcd);
            etcd.etcdctl(&["del", "--prefix", "/"]);
        }
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
