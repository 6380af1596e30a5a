//! The keys of the two replaced plugins, as ADD and DEL read and leave them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::cni::address;
use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, subnets};
use serde_json::{Value, json};

use common::Node;
use common::layouts::{BOTH, Old, all, on, shown, told};

fn keys<const N: usize>(expected: [(&str, &str); N]) -> BTreeMap<String, String> {
    expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// What cni-ipam-etcd writes for the pool 10.1.0.0/24.
const RANGES: &str = r#"[[{"rangeStart":"10.1.0.1","rangeEnd":"10.1.0.254","subnet":"10.1.0.0/24","gateway":"10.1.0.1"}]]"#;

const NETWORK: &str = "/etcd-cni/networks/net";

#[test]
fn add_and_del_leave_the_keys_of_cni_ipam_etcd_and_a_few_beside_them() {
    let etcd = Etcd::start();
    let node = Old::CniIpamEtcd.node(&etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
    node.add("c1");
    let six = r#"[{"rangeStart":"fd00:1::1","rangeEnd":"fd00:1::ffff:ffff:ffff:ffff","subnet":"fd00:1::/64","gateway":"fd00:1::1"}]"#;
    let ranges = format!("{},{six}]", RANGES.strip_suffix(']').unwrap());
    let after = [
        ("/etcd-cni/networks/net", ranges.as_str()),
        ("/etcd-cni/networks/net/ipam-delegated/latest", ""),
        ("/etcd-cni/networks/net/lastReserved/0", "10.1.0.2"),
        ("/etcd-cni/networks/net/lastReserved/1", "fd00:1::2"),
    ];
    let mut held = keys(after);
    held.extend(keys([
        ("/etcd-cni/networks/net/ipam-delegated/owners/c1/node-1/eth0", ""),
        ("/etcd-cni/networks/net/used/10.1.0.2", "c1"),
        ("/etcd-cni/networks/net/used/fd00:1::2", "c1"),
    ]));
    assert_eq!(shown(&etcd), held);
    node.del("c1");
    assert_eq!(shown(&etcd), keys(after));
}

#[test]
fn add_and_del_leave_the_keys_of_host_etcd_and_a_few_beside_them() {
    let etcd = Etcd::start();
    let node = Old::HostEtcd.node(&etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
    node.add("c1");
    let after = [
        ("/ipam/ipam-delegated/latest/net", ""),
        ("/ipam/last_reserved_ip0", "10.1.0.2"),
        ("/ipam/last_reserved_ip1", "fd00:1::2"),
    ];
    let mut held = keys(after);
    held.extend(keys([
        ("/ipam/ipam-delegated/owners/c1/node-1/net/eth0", ""),
        ("/ipam/ips/10.1.0.2", "c1"),
        ("/ipam/ips/fd00:1::2", "c1"),
    ]));
    assert_eq!(shown(&etcd), held);
    node.del("c1");
    assert_eq!(shown(&etcd), keys(after));
}

#[test]
fn a_prefix_of_ones_own_moves_all_keys() {
    let etcd = Etcd::start();
    for old in BOTH {
        old.node(&etcd).with("prefix", "/elsewhere/of/all/").add(old.name());
        let found = etcd.keys("");
        assert!(found.iter().all(|key| key.starts_with("/elsewhere/of/all/")), "{found:?}");
        etcd.etcdctl(&["del", "--prefix", "/elsewhere/"]);
    }
}

#[test]
fn the_ranges_are_written_once_and_again_when_they_change() {
    let etcd = Etcd::start();
    let mut node = Old::CniIpamEtcd.node(&etcd);
    // As cni-ipam-etcd has left them.
    etcd.put(NETWORK, RANGES);
    let at = || all(&etcd)[NETWORK].clone();
    let before = at();
    for container in ["c1", "c2"] {
        node.add(container);
        node.add(container);
        node.del(container);
    }
    assert_eq!(at(), before);
    node.pools[0]["ranges"][0]["rangeStart"] = "10.1.0.100".into();
    node.add("c3");
    let changed = at();
    assert_eq!(changed.value, RANGES.replace("10.1.0.1\",\"rangeEnd", "10.1.0.100\",\"rangeEnd"));
    node.add("c4");
    assert_eq!(at(), changed);
    // Whatever others write there, and what is missing.
    etcd.put(NETWORK, "garbage");
    node.add("c5");
    assert_eq!(at().value, changed.value);
    etcd.del(NETWORK);
    node.add("c6");
    assert_eq!(at().value, changed.value);
}

#[test]
fn a_delegate_that_is_shown_some_pools_alone_leaves_the_ranges() {
    let etcd = Etcd::start();
    let mut node = Old::CniIpamEtcd.node(&etcd);
    node.ipam = json!({"serves": ["blue"]});
    node.pools[0]["name"] = "blue".into();
    node.pools[0]["index"] = 3.into();
    etcd.put(NETWORK, "theirs");
    node.add("c1");
    assert_eq!(etcd.get(NETWORK).unwrap(), "theirs");
    assert_eq!(etcd.get(&Old::CniIpamEtcd.cursor(3)).unwrap(), "10.1.0.2");
}

#[test]
fn a_node_without_a_cursor_goes_on_from_the_old_one() {
    let etcd = Etcd::start();
    for old in BOTH {
        for (seen, given) in [
            ("10.1.0.9", "10.1.0.10"),
            // The last, and those that are in no range or are none.
            ("10.1.0.254", "10.1.0.2"),
            ("10.1.0.255", "10.1.0.2"),
            ("10.2.0.9", "10.1.0.2"),
            ("fd00::9", "10.1.0.2"),
            ("10.1.0.9\n", "10.1.0.2"),
            ("garbage", "10.1.0.2"),
            ("", "10.1.0.2"),
        ] {
            etcd.put(&old.cursor(0), seen);
            let node = old.node(&etcd);
            assert_eq!(node.address("c1"), given, "{old:?} {seen:?}");
            node.del("c1");
        }
    }
}

#[test]
fn the_claim_writes_the_cursor_and_a_repeated_add_does_not() {
    let etcd = Etcd::start();
    for old in BOTH {
        let node = old.node(&etcd);
        etcd.put(&old.cursor(0), "10.1.0.9");
        for (container, cursor) in
            [("c1", "10.1.0.10"), ("c2", "10.1.0.11"), ("c1", "10.1.0.11"), ("c3", "10.1.0.12")]
        {
            node.add(container);
            assert_eq!(etcd.get(&old.cursor(0)).unwrap(), cursor, "{old:?} {container}");
        }
        node.del("c3");
        assert_eq!(etcd.get(&old.cursor(0)).unwrap(), "10.1.0.12", "{old:?}");
        // Of another strategy, too: a replaced plugin goes round.
        let lowest = old.node(&etcd).with_in_pools("strategy", "lowest").named("node-2");
        assert_eq!(lowest.address("c4"), "10.1.0.2");
        let expected = if old == Old::CniIpamEtcd { "10.1.0.2" } else { "10.1.0.12" };
        assert_eq!(etcd.get(&old.cursor(0)).unwrap(), expected, "{old:?}");
    }
}

#[test]
fn each_range_set_has_its_cursor() {
    let etcd = Etcd::start();
    for old in BOTH {
        let node = old.node(&etcd).with_subnets(&["10.1.0.0/24", "10.2.0.0/24", "fd00:1::/64"]);
        etcd.put(&old.cursor(1), "10.2.0.99");
        etcd.put(&old.cursor(2), "fd00:1::ffff");
        let result = node.add("c1");
        assert_eq!(addresses(&result), ["10.1.0.2", "10.2.0.100", "fd00:1::1:0"], "{old:?}");
        let cursors = [0, 1, 2].map(|index| etcd.get(&old.cursor(index)).unwrap());
        assert_eq!(cursors.to_vec(), addresses(&result), "{old:?}");
    }
}

#[test]
fn a_cursor_that_host_etcd_has_moved_is_gone_on_from() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    let node = old.node(&etcd);
    assert_eq!(node.address("c1"), "10.1.0.2");
    // It has given .3 to .7 meanwhile.
    etcd.put(&old.cursor(0), "10.1.0.7");
    assert_eq!(node.address("c2"), "10.1.0.8");
    assert_eq!(etcd.get(&old.cursor(0)).unwrap(), "10.1.0.8");
    assert_eq!(node.address("c3"), "10.1.0.9");
    assert_eq!(etcd.get(&old.cursor(0)).unwrap(), "10.1.0.9");
    // Deleted by hand: this node has its own.
    etcd.del(&old.cursor(0));
    assert_eq!(node.address("c4"), "10.1.0.10");
    assert_eq!(node.address("c5"), "10.1.0.11");
    assert_eq!(etcd.get(&old.cursor(0)).unwrap(), "10.1.0.11");
}

#[test]
fn two_nodes_on_host_etcds_cursor_give_the_addresses_one_after_the_other() {
    let etcd = Etcd::start();
    let nodes = Old::HostEtcd.nodes(&etcd);
    for round in 0..10 {
        nodes[round % 2].add(&format!("c{round}"));
    }
    let expected: Vec<String> = (0..10).map(|n| format!("10.1.0.{} ", n + 2)).collect();
    let told = told(&Old::HostEtcd.books(&etcd));
    assert!(told.iter().zip(&expected).all(|(line, start)| line.starts_with(start)), "{told:?}");
}

#[test]
fn networks_that_share_a_cursor_go_round_each_for_itself() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    let mut node = old.node(&etcd);
    let mut add = |network: &str, subnet: &str, container: &str| {
        node.pools = subnets(&[subnet]);
        on(&node).network(network).address(container)
    };
    let mut given = Vec::new();
    for round in 0..4 {
        given.push(add("a", "10.1.0.0/24", &format!("a{round}")));
        given.push(add("b", "10.2.0.0/24", &format!("b{round}")));
    }
    let expected =
        (2..6).flat_map(|n| [format!("10.1.0.{n}"), format!("10.2.0.{n}")]).collect::<Vec<_>>();
    assert_eq!(given, expected);
    // An address that was given back is not the next to be given.
    node.pools = subnets(&["10.1.0.0/24"]);
    on(&node).network("a").del("a0");
    assert_eq!(on(&node).network("a").address("a4"), "10.1.0.6");
    assert_eq!(on(&node).network("a").address("a5"), "10.1.0.7");
}

#[test]
fn white_space_around_a_container_means_nothing_to_host_etcd_alone() {
    let etcd = Etcd::start();
    for old in BOTH {
        let node = old.node(&etcd);
        for value in ["c1\n", " c1", "\tc1 \r\n"] {
            old.give(&etcd, "10.1.0.7", value);
            let trimmed = old == Old::HostEtcd;
            let check = on(&node).check_of("c1", &["10.1.0.7"]);
            assert_eq!(check.exit == Some(0), trimmed, "{old:?} {value:?}");
            node.del("c1");
            assert_eq!(etcd.get(&old.lease("10.1.0.7")).is_none(), trimmed, "{old:?} {value:?}");
        }
        // A whole container id that says nothing.
        for value in ["", " \n"] {
            old.give(&etcd, "10.1.0.7", value);
            node.del("c1");
            assert!(etcd.get(&old.lease("10.1.0.7")).is_some(), "{old:?} {value:?}");
        }
        etcd.del(&old.lease("10.1.0.7"));
    }
    // What is given again is written as we do.
    let old = Old::HostEtcd;
    let node = old.node(&etcd);
    old.give(&etcd, "10.1.0.7", " c1\n");
    on(&node).remember("c1", &["10.1.0.7"]);
    assert_eq!(node.address("c1"), "10.1.0.7");
    assert_eq!(etcd.get(&old.lease("10.1.0.7")).unwrap(), "c1");
    old.books(&etcd);
}

#[test]
fn old_addresses_written_otherwise_are_foreign_and_in_nobodys_way() {
    let etcd = Etcd::start();
    for old in BOTH {
        let foreign = ["garbage", "", "10.1.0.02", "10.1.0.2/24", "net/10.1.0.2", "10.1.0", "::FF"];
        for name in foreign {
            etcd.put(&old.lease(name), "c1");
        }
        let node = old.node(&etcd);
        on(&node).remember("c1", &["10.1.0.2"]);
        let list = node.typed(&["list", "--json"]);
        for name in foreign {
            let warning = format!("foreign key {}: it counts as taken", old.lease(name));
            assert!(list.stderr.contains(&warning), "{old:?} {name}: {}", list.stderr);
        }
        assert_eq!(list.success(), json!([]));
        let result = node.add("c1");
        assert_eq!(addresses(&result), ["10.1.0.2"]);
        node.check("c1", &result).success();
        node.del("c1");
        node.del("c1");
        node.gc(&[]).success();
        let released = node.typed(&["release", "--owner", "c1", "--yes"]);
        assert_eq!(released.exit, Some(1), "{released:?}");
        for name in foreign {
            assert_eq!(etcd.get(&old.lease(name)).as_deref(), Some("c1"), "{old:?} {name}");
        }
        etcd.etcdctl(&["del", "--prefix", old.prefix()]);
    }
}

/// An ADD of a pool that hardly has a free address takes that one.
#[track_caller]
fn assert_last_is_found(old: Old, etcd: &Etcd, range: &Value, free: &str, strategy: &str) {
    let mut node: Node = old.node(etcd).with_in_pools("strategy", strategy);
    node.pools[0]["ranges"] = json!([range]);
    assert_eq!(node.address("last"), free, "{old:?} {range} {strategy}");
    let (code, text) = node.call("ADD", "one-more").failure();
    assert_eq!(code, 100, "{text}");
    node.del("last");
}

#[test]
fn the_last_free_address_is_found_however_addresses_are_written() {
    let etcd = common::store::roomy();
    let strategies = ["round-robin", "lowest", "random"];
    for (number, (from, to, free)) in [
        ("10.1.0.2", "10.1.3.254", "10.1.2.200"),
        ("10.9.255.2", "10.10.1.9", "10.10.0.0"),
        ("10.99.98.2", "10.99.101.9", "10.99.100.100"),
        ("fd00::2", "fd00::3ff", "fd00::100"),
        ("fd00::fff0", "fd00::1:f", "fd00::1:0"),
        ("fd00::fff0", "fd00::1:f", "fd00::ffff"),
        ("fd00::1:0:0:fff0", "fd00::1:0:1:20", "fd00::1:0:1:0"),
        ("1:0:0:2:1:0:0:2", "1:0:0:2:1:0:0:200", "1:0:0:2:1::1ff"),
        ("1:0:0:2::fff0", "1:0:0:2::1:20", "1:0:0:2::1:0"),
        ("2001:db8:0:1:1:1:1:fff0", "2001:db8:0:1:1:1:2:20", "2001:db8:0:1:1:1:2:0"),
        ("2001:db8:0:1:1:0:0:2", "2001:db8:0:1:1:0:0:200", "2001:db8:0:1:1::fe"),
        ("0:0:1::fff0", "0:0:1::1:20", "0:0:1::1:0"),
        ("::fff0", "::1:20", "::1:0"),
        ("fe80::ffff:fff0", "fe80::1:0:20", "fe80::1:0:0"),
    ]
    .into_iter()
    .enumerate()
    {
        let [from, to, free]: [IpAddr; 3] = [from, to, free].map(|a| a.parse().unwrap());
        let mut next = Some(from);
        let all = std::iter::from_fn(|| {
            let this = next.filter(|address| *address <= to)?;
            next = address::next(this);
            Some(this)
        });
        let all: Vec<_> = all.filter(|address| *address != free).collect();
        let subnet = if from.is_ipv4() { "10.0.0.0/8".to_owned() } else { format!("{from}/48") };
        let range = json!({
            "subnet": subnet, "rangeStart": from.to_string(), "rangeEnd": to.to_string(), "gateway": null,
        });
        let old = BOTH[number % 2];
        old.give_all(&etcd, &all);
        assert_last_is_found(old, &etcd, &range, &free.to_string(), strategies[number % 3]);
        assert_last_is_found(old, &etcd, &range, &free.to_string(), strategies[(number + 1) % 3]);
        etcd.etcdctl(&["del", "--prefix", old.prefix()]);
    }
}
