//! Whose the addresses are in the layouts of the two replaced plugins, whose keys tell the container alone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, subnets};

use common::layouts::{Old, assert_books, assert_empty, each, on};

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
