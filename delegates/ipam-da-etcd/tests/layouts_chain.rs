//! Chains on the keys of the two replaced plugins, under these plugins' names and with their configurations.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::addresses;
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use common::PROGRAM;
use common::layouts::{BOTH, Old, on, told};
use common::rights::Rights::Theirs;
use common::rights::{calling_as, guarded};

/// A host on which a chain has a replaced plugin's place.
struct Host {
    world: World,
    old: Old,
    /// An unchanged configuration of that plugin, but for the folders of a test.
    network: Value,
}

impl Host {
    fn of(old: Old, etcd: &Etcd) -> Self {
        Self::at(old, &etcd.endpoint())
    }

    fn at(old: Old, endpoint: &str) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        let name = Self::plugin(old);
        symlink(binary("ipam-delegated"), world.path("bin").join(name)).unwrap();
        let mut ipam = json!({
            "type": name,
            "subnet": "10.1.0.0/24",
            "routes": [{"dst": "0.0.0.0/0"}],
            "stateDir": world.path("state"),
            "etcd": {"resultCache": world.path("results")},
        });
        match old {
            Old::CniIpamEtcd => {
                ipam["etcdConfig"] = json!({
                    "etcdURL": format!("http://{endpoint}"), "etcdCertFile": "", "etcdKeyFile": "",
                    "etcdTrustedCAFileFile": "",
                });
            }
            Old::HostEtcd => ipam["endpoints"] = json!([format!("http://{endpoint}")]),
        }
        let network =
            json!({"cniVersion": "0.3.1", "name": "net", "type": "macvlan", "ipam": ipam});
        Self { world, old, network }
    }

    fn plugin(old: Old) -> &'static str {
        match old {
            Old::CniIpamEtcd => "etcd",
            Old::HostEtcd => "host-etcd",
        }
    }

    fn call(&self, verb: &str, container: &str) -> Outcome {
        self.call_with(verb, container, "eth0", &self.network)
    }

    fn call_with(&self, verb: &str, container: &str, ifname: &str, network: &Value) -> Outcome {
        let program = self.world.path("bin").join(Self::plugin(self.old));
        let mut command = self.world.command_of(&program, verb, container);
        command.env("CNI_IFNAME", ifname);
        wait(start(command, network))
    }

    #[track_caller]
    fn add(&self, container: &str) -> Value {
        self.call("ADD", container).success()
    }

    #[track_caller]
    fn del(&self, container: &str) {
        self.call("DEL", container).success();
    }

    /// The configuration as Multus leaves it for a DEL.
    fn stripped(&self) -> Value {
        let mut network = self.network.clone();
        network["ipam"] =
            json!({"type": Self::plugin(self.old), "stateDir": self.world.path("state")});
        network
    }
}

#[track_caller]
fn assert_holders(old: Old, etcd: &Etcd, expected: &[&str]) {
    let books = told(&old.books(etcd));
    let short = |line: &String| {
        let (address, owner) = line.split_once(' ').unwrap();
        let owner = owner.split_once('/').map_or(owner, |(_, owner)| owner);
        format!("{address} {owner}")
    };
    assert_eq!(books.iter().map(short).collect::<Vec<_>>(), expected, "{old:?}");
}

#[test]
fn unchanged_configurations_work_on_the_keys_that_are_there() {
    let etcd = Etcd::start();
    for old in BOTH {
        let host = Host::of(old, &etcd);
        etcd.put(&old.cursor(0), "10.1.0.9");
        old.give(&etcd, "10.1.0.9", "before");
        let result = host.add("c1");
        assert_eq!(result["ips"][0]["address"], "10.1.0.10/24", "{old:?}");
        assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0"}]));
        assert_eq!(host.add("c1"), result);
        assert_eq!(etcd.get(&old.cursor(0)).unwrap(), "10.1.0.10");
        let second = host.call_with("ADD", "c1", "net1", &host.network).success();
        assert_eq!(addresses(&second), ["10.1.0.11"]);
        let all = ["10.1.0.9 before", "10.1.0.10 net/c1/eth0", "10.1.0.11 net/c1/net1"];
        assert_holders(old, &etcd, &all);
        // By the record, whatever has become of the configuration.
        host.call_with("DEL", "c1", "eth0", &host.stripped()).success();
        host.del("c1");
        assert_holders(old, &etcd, &[all[0], all[2]]);
        host.call_with("DEL", "c1", "net1", &host.network).success();
        host.del("before");
        host.del("before");
        assert_holders(old, &etcd, &[]);
        let keys = etcd.keys("");
        assert!(keys.iter().all(|key| key.starts_with(old.prefix())), "{keys:?}");
        etcd.etcdctl(&["del", "--prefix", "/"]);
    }
}

#[test]
fn what_the_replaced_plugin_gave_is_checked_given_again_and_released() {
    let etcd = Etcd::start();
    for old in BOTH {
        let mut host = Host::of(old, &etcd);
        old.give(&etcd, "10.1.0.7", "c1");
        old.give(&etcd, "10.1.0.8", "c2");
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]});
        let mut network = host.network.clone();
        network["cniVersion"] = "1.0.0".into();
        network["prevResult"] = result.clone();
        host.call_with("CHECK", "c1", "eth0", &network).success();
        assert_eq!(host.call_with("CHECK", "c3", "eth0", &network).failure().0, 104);
        let cached = json!({
            "kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "net", "result": result,
        });
        fs::create_dir(host.world.path("results")).unwrap();
        fs::write(host.world.path("results/net-c1-eth0"), cached.to_string()).unwrap();
        assert_eq!(addresses(&host.add("c1")), ["10.1.0.7"]);
        assert_holders(old, &etcd, &["10.1.0.7 net/c1/eth0", "10.1.0.8 c2"]);
        host.network["cniVersion"] = "1.0.0".into();
        host.del("c1");
        host.del("c2");
        assert_holders(old, &etcd, &[]);
    }
}

#[test]
fn a_requested_address_is_given_or_refused() {
    let etcd = Etcd::start();
    for old in BOTH {
        let mut host = Host::of(old, &etcd);
        old.give(&etcd, "10.1.0.7", "theirs");
        for (asked, expected) in [("10.1.0.7", None), ("10.1.0.8", Some("10.1.0.8"))] {
            host.network["args"] = json!({"cni": {"ips": [asked]}});
            let outcome = host.call("ADD", "c1");
            match expected {
                None => assert_eq!(outcome.failure().0, 102, "{old:?}"),
                Some(address) => assert_eq!(addresses(&outcome.success()), [address], "{old:?}"),
            }
        }
        assert_holders(old, &etcd, &["10.1.0.7 theirs", "10.1.0.8 net/c1/eth0"]);
        host.del("c1");
    }
}

#[test]
fn a_chain_that_fails_later_leaves_what_was_held_before() {
    let etcd = guarded(&BOTH.map(|old| (old, Theirs)));
    let plain = Etcd::start();
    for old in BOTH {
        for indexed in [true, false] {
            let server = if indexed { &plain } else { &etcd };
            let mut host = Host::of(old, server);
            if !indexed {
                let user = calling_as(old.node(server), old, Theirs);
                for key in ["username", "passwordFile"] {
                    host.network["ipam"]["etcd"][key] = user.store["etcd"][key].clone();
                }
                // The file is the node's.
                fs::write(host.world.path("password"), "secret-word").unwrap();
                host.network["ipam"]["etcd"]["passwordFile"] =
                    host.world.path("password").to_str().into();
            }
            host.world.full("ipam-da-zz");
            let network = |host: &Host, fails: bool| {
                let mut network = host.network.clone();
                let chain = ["ipam-ds-static", "ipam-da-etcd", "ipam-da-zz"];
                network["ipam"]["type"] = "ipam-delegated".into();
                network["ipam"]["delegates"] = json!(chain[..if fails { 3 } else { 2 }]);
                network["ipam"]["etcd"]["layout"] = old.name().into();
                network
            };
            let call = |verb: &str, container: &str, fails: bool| {
                host.world.call(verb, container, &network(&host, fails))
            };
            assert_eq!(call("ADD", "c1", true).failure().0, 100, "{old:?} {indexed}");
            assert_holders(old, server, &[]);
            call("ADD", "c1", false).success();
            let before = old.books(server);
            assert_eq!(call("ADD", "c1", true).failure().0, 100, "{old:?} {indexed}");
            assert_eq!(call("ADD", "c2", true).failure().0, 100, "{old:?} {indexed}");
            assert_eq!(
                before.keys().collect::<Vec<_>>(),
                old.books(server).keys().collect::<Vec<_>>(),
                "{old:?} {indexed}"
            );
            call("DEL", "c1", false).success();
            call("DEL", "c2", false).success();
            assert_holders(old, server, &[]);
        }
    }
}

#[test]
fn a_layout_needs_no_preset() {
    let etcd = Etcd::start();
    for old in BOTH {
        let node = old.node(&etcd);
        node.world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        let mut network = node.world.network(json!(["ipam-ds-static", "ipam-da-etcd"]));
        network["ipam"]["etcd"] = node.store["etcd"].clone();
        network["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/24"}]]);
        let result = node.world.call("ADD", "c1", &network).success();
        assert_holders(old, &etcd, &["10.1.0.2 net/c1/eth0"]);
        assert_eq!(node.world.call("ADD", "c1", &network).success(), result);
        node.world.call("DEL", "c1", &network).success();
        // And the program alone, with its own identity of the node.
        let mut alone = network.clone();
        alone["ipam"]["type"] = "ipam-da-etcd".into();
        alone["ipam"].as_object_mut().unwrap().remove("delegates");
        let call = |verb: &str| wait(start(on(&node).command(verb, "c2", &json!({})).0, &alone));
        assert_eq!(addresses(&call("ADD").success()), ["10.1.0.3"]);
        call("DEL").success();
        assert_holders(old, &etcd, &[]);
    }
}
