//! The behaviour of cni-ipam-etcd and host-etcd, case by case: `tests/vectors/cni-ipam-etcd.json` and
//! `tests/vectors/host-etcd.json` say what they did and where the presets `etcd` and `host-etcd`
//! differ, with the reason. All else is equal, down to the keys in the store.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use ipam_testkit::etcd::{Etcd, Silent};
use ipam_testkit::vectors::{Fixture, Stage, Vector};
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// A system that a preset replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Old {
    CniIpamEtcd,
    HostEtcd,
}

impl Old {
    const BOTH: [Self; 2] = [Self::CniIpamEtcd, Self::HostEtcd];

    /// What its program is called.
    fn name(self) -> &'static str {
        match self {
            Self::CniIpamEtcd => "etcd",
            Self::HostEtcd => "host-etcd",
        }
    }

    fn fixture(self) -> Fixture {
        Fixture::parse(match self {
            Self::CniIpamEtcd => include_str!("vectors/cni-ipam-etcd.json"),
            Self::HostEtcd => include_str!("vectors/host-etcd.json"),
        })
    }

    /// What `lint` tells of its preset.
    fn differences(self) -> &'static [&'static str] {
        match self {
            Self::CniIpamEtcd => ipam_delegated::presets::CNI_IPAM_ETCD_DIFFERENCES,
            Self::HostEtcd => ipam_delegated::presets::HOST_ETCD_DIFFERENCES,
        }
    }

    /// Its key for an address of the network `mynet`.
    fn used(self, address: &str) -> String {
        match self {
            Self::CniIpamEtcd => format!("/etcd-cni/networks/mynet/used/{address}"),
            Self::HostEtcd => format!("/ipam/ips/{address}"),
        }
    }

    /// Its key for the cursor of a range set of `mynet`.
    fn cursor(self, set: usize) -> String {
        match self {
            Self::CniIpamEtcd => format!("/etcd-cni/networks/mynet/lastReserved/{set}"),
            Self::HostEtcd => format!("/ipam/last_reserved_ip{set}"),
        }
    }

    /// Whether a key is one that this system never reads or writes.
    fn is_ours(self, key: &str) -> bool {
        let below = match self {
            Self::CniIpamEtcd => {
                let networks = key.strip_prefix("/etcd-cni/networks/");
                networks.and_then(|rest| Some(rest.split_once('/')?.1))
            }
            Self::HostEtcd => key.strip_prefix("/ipam/"),
        };
        below.is_some_and(|rest| rest.starts_with("ipam-delegated/"))
    }

    /// The part of `ipam` that names a store.
    fn store(self, endpoint: &str) -> Value {
        match self {
            Self::CniIpamEtcd => json!({"etcdConfig": {"etcdURL": endpoint}}),
            Self::HostEtcd => json!({"endpoints": [endpoint]}),
        }
    }
}

/// A node with the preset: our program under the replaced one's name.
struct Node<'a> {
    old: Old,
    etcd: &'a Etcd,
    world: World,
}

impl<'a> Node<'a> {
    fn new(old: Old, etcd: &'a Etcd) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-etcd"));
        symlink(binary("ipam-delegated"), world.path("bin").join(old.name())).unwrap();
        Self { old, etcd, world }
    }

    /// The network `mynet` with these range sets.
    fn network(&self, ranges: Value) -> Value {
        let mut network = json!({
            "cniVersion": "0.3.1",
            "name": "mynet",
            "type": "bridge",
            "ipam": self.old.store(&self.etcd.url()),
        });
        network["ipam"]["type"] = self.old.name().into();
        network["ipam"]["ranges"] = ranges;
        network["ipam"]["stateDir"] = json!(self.world.path("state"));
        network
    }

    fn command(&self, verb: &str, container: &str) -> Command {
        let program = self.world.path("bin").join(self.old.name());
        self.world.command_of(&program, verb, container)
    }

    fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.command(verb, container), network))
    }

    fn call_on(&self, ifname: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let mut command = self.command(verb, container);
        command.env("CNI_IFNAME", ifname);
        wait(start(command, network))
    }

    /// All keys but ours, with their values.
    fn theirs(&self) -> BTreeMap<String, String> {
        let mut keys = self.etcd.keys("");
        keys.retain(|key| !self.old.is_ours(key));
        let value = |key: &String| self.etcd.get(key).unwrap_or_else(|| panic!("{key} has gone"));
        keys.iter().map(|key| (key.clone(), value(key))).collect()
    }

    /// Who holds which address, in the old system's words.
    fn leases(&self) -> Vec<(String, String)> {
        let folder = self.old.used("");
        let lease =
            |(key, value): (String, String)| Some((key.strip_prefix(&folder)?.to_owned(), value));
        self.theirs().into_iter().filter_map(lease).collect()
    }

    #[track_caller]
    fn holds(&self, expected: &[(&str, &str)]) {
        let leases = self.leases();
        let leases: Vec<_> = leases.iter().map(|(a, id)| (a.as_str(), id.as_str())).collect();
        assert_eq!(leases, expected, "{}", self.old.name());
    }

    fn play(&self, vector: &Vector) -> (Vec<Outcome>, Value) {
        self.etcd.etcdctl(&["del", "--prefix", ""]);
        for (key, value) in &vector.before {
            self.etcd.put(key, value);
        }
        let (url, endpoint) = (self.etcd.url(), self.etcd.endpoint());
        let outcomes = vector.play(&Stage {
            world: &self.world,
            program: self.old.name(),
            places: &[("${ETCD}", &url), ("${ETCD_HOSTPORT}", &endpoint)],
        });
        (outcomes, json!(self.theirs()))
    }
}

/// The same with either preset, each with a server of its own.
fn with_both(test: impl Fn(&Node<'_>)) {
    for old in Old::BOTH {
        let etcd = Etcd::start();
        test(&Node::new(old, &etcd));
    }
}

fn one_set() -> Value {
    json!([[{"subnet": "10.1.2.0/24"}]])
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_with_cni_ipam_etcd() {
    let (fixture, etcd) = (Old::CniIpamEtcd.fixture(), Etcd::start());
    fixture.differs_only_as_listed(|vector| Node::new(Old::CniIpamEtcd, &etcd).play(vector));
    assert_eq!(fixture.vectors.len(), 14);
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_with_host_etcd() {
    let (fixture, etcd) = (Old::HostEtcd.fixture(), Etcd::start());
    fixture.differs_only_as_listed(|vector| Node::new(Old::HostEtcd, &etcd).play(vector));
    assert_eq!(fixture.vectors.len(), 15);
}

#[test]
fn every_reason_is_a_difference_that_the_preset_lists() {
    for old in Old::BOTH {
        old.fixture().every_reason_is_in(old.differences());
    }
}

#[test]
fn an_add_again_gives_the_same_addresses() {
    with_both(|node| {
        let network = node.network(json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]));
        let first = node.call("ADD", "c1", &network).success();
        assert_eq!(node.call("ADD", "c1", &network).success(), first);
        node.holds(&[("10.1.2.2", "c1"), ("fd00::2", "c1")]);
    });
}

#[test]
fn a_del_releases_what_one_interface_holds_on_one_network() {
    with_both(|node| {
        let network = node.network(one_set());
        let mut other = node.network(json!([[{"subnet": "10.3.0.0/24"}]]));
        other["name"] = "other".into();
        for ifname in ["eth0", "net1"] {
            node.call_on(ifname, "ADD", "c1", &network).success();
        }
        node.call("ADD", "c1", &other).success();
        node.call("DEL", "c1", &network).success();
        let mut left = vec![("10.1.2.3", "c1")];
        let of_other = match node.old {
            // In a folder of that network.
            Old::CniIpamEtcd => "/etcd-cni/networks/other/used/10.3.0.2",
            Old::HostEtcd => {
                left.push(("10.3.0.2", "c1"));
                "/ipam/ips/10.3.0.2"
            }
        };
        node.holds(&left);
        assert_eq!(node.theirs().get(of_other).map(String::as_str), Some("c1"));
    });
}

#[test]
fn a_del_goes_by_the_record_of_the_add() {
    with_both(|node| {
        let network = node.network(one_set());
        for (container, keys) in
            [("c1", ["ranges"].as_slice()), ("c2", &["etcdConfig", "endpoints"])]
        {
            node.call("ADD", container, &network).success();
            node.call("DEL", container, &ipam_testkit::world::without(&network, keys)).success();
        }
        node.call("ADD", "c3", &network).success();
        let broken =
            ipam_testkit::world::with(&network, "ranges", json!([[{"subnet": "10.1.2.0/33"}]]));
        node.call("DEL", "c3", &broken).success();
        node.holds(&[]);
    });
}

#[test]
fn a_del_releases_what_the_old_plugin_gave() {
    with_both(|node| {
        for (address, container) in [("10.1.2.2", "c1"), ("10.1.2.3", "c2"), ("10.1.2.4", "c1")] {
            node.etcd.put(&node.old.used(address), container);
        }
        node.call("DEL", "c1", &node.network(one_set())).success();
        node.holds(&[("10.1.2.3", "c2")]);
    });
}

#[test]
fn a_failed_add_moves_no_cursor_and_frees_nothing() {
    with_both(|node| {
        let full = json!([{"subnet": "10.9.0.0/30"}]);
        node.call("ADD", "other", &node.network(json!([full]))).success();
        node.call("ADD", "c1", &node.network(one_set())).success();
        let before = node.theirs();
        let network = node.network(json!([[{"subnet": "10.3.0.0/24"}], full]));
        for container in ["c1", "c2"] {
            assert_eq!(node.call("ADD", container, &network).failure().0, 100);
        }
        let mut elsewhere = node.network(one_set());
        elsewhere["args"] = json!({"cni": {"ips": ["10.9.0.2"]}});
        assert_eq!(node.call("ADD", "c1", &elsewhere).failure().0, 101);
        assert_eq!(node.theirs(), before);
    });
}

#[test]
fn a_full_set_of_two_ranges_is_an_error_wherever_its_cursor_stands() {
    with_both(|node| {
        let network = node.network(json!([[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30"}]]));
        for address in ["10.1.0.2", "10.2.0.2"] {
            node.etcd.put(&node.old.used(address), "other");
        }
        for cursor in ["10.1.0.2", "10.2.0.2", "10.1.0.1"] {
            node.etcd.put(&node.old.cursor(0), cursor);
            // The node's own cursor would be asked first.
            let node = Node::new(node.old, node.etcd);
            let mut network = network.clone();
            network["ipam"]["stateDir"] = json!(node.world.path("state"));
            assert_eq!(node.call("ADD", "c1", &network).failure().0, 100);
        }
        node.holds(&[("10.1.0.2", "other"), ("10.2.0.2", "other")]);
    });
}

#[test]
fn the_lock_of_cni_ipam_etcd_is_never_passed_over() {
    let (old, etcd) = (Old::CniIpamEtcd, Etcd::start());
    let node = Node::new(old, &etcd);
    let mut network = node.network(one_set());
    network["ipam"]["timeout"] = "2s".into();
    let lock = "/etcd-cni/networks/mynet/lock";
    // Without an etcd lease it stays for ever.
    etcd.put(lock, "7587");
    let (code, text) = node.call("ADD", "c1", &network).failure();
    assert!(code == 11 && text.contains(lock), "{code}: {text}");
    node.holds(&[]);
    etcd.del(lock);
    node.call("ADD", "c1", &network).success();
    node.holds(&[("10.1.2.2", "c1")]);
}

#[test]
fn networks_share_addresses_with_host_etcd_alone() {
    with_both(|node| {
        let network = node.network(one_set());
        let mut other = network.clone();
        other["name"] = "other".into();
        node.call("ADD", "c1", &network).success();
        let second = match node.old {
            Old::CniIpamEtcd => "10.1.2.2/24",
            Old::HostEtcd => "10.1.2.3/24",
        };
        assert_eq!(node.call("ADD", "c2", &other).ips(), [second]);
    });
}

#[test]
fn the_key_of_a_network_has_the_ranges_of_today() {
    let (old, etcd) = (Old::CniIpamEtcd, Etcd::start());
    let node = Node::new(old, &etcd);
    let key = "/etcd-cni/networks/mynet";
    etcd.put(key, "[[{}]]");
    let ranges = |subnets: &[&str]| {
        let set = |subnet: &&str| json!([{"subnet": subnet}]);
        Value::Array(subnets.iter().map(set).collect())
    };
    // The second ADD takes an address out of one of the two.
    for subnets in [["10.1.2.0/24"].as_slice(), &["10.1.2.0/24", "10.3.0.0/24"]] {
        node.call("ADD", "c1", &node.network(ranges(subnets))).success();
        let written: Value = serde_json::from_str(&etcd.get(key).unwrap()).unwrap();
        let written: Vec<_> =
            written.as_array().unwrap().iter().map(|set| &set[0]["subnet"]).collect();
        assert_eq!(written, subnets);
    }
    let revision = || {
        let text = etcd.etcdctl(&["get", "--write-out=json", key]);
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["kvs"][0]["mod_revision"].clone()
    };
    let before = revision();
    let network = node.network(ranges(&["10.1.2.0/24", "10.3.0.0/24"]));
    node.call("ADD", "c2", &network).success();
    node.call("DEL", "c1", &network).success();
    assert_eq!(revision(), before);
}

#[test]
fn a_server_that_is_away_is_an_error_that_names_it() {
    with_both(|node| {
        let silent = Silent::listen();
        // Without a word of the server nothing is sent to it.
        for endpoint in ["127.0.0.1:1".to_owned(), silent.endpoint()] {
            let mut network = node.network(one_set());
            let named = node.old.store(&endpoint);
            network["ipam"].as_object_mut().unwrap().extend(named.as_object().unwrap().clone());
            network["ipam"]["timeout"] = "2s".into();
            let (found, text) = node.call("ADD", "c1", &network).failure();
            assert!(found == 105 && text.contains(&endpoint), "{found}: {text}");
        }
    });
}

#[test]
fn a_certificate_that_is_not_there_is_an_error_that_names_it() {
    with_both(|node| {
        let mut network = node.network(one_set());
        let (section, certificate, key) = match node.old {
            Old::CniIpamEtcd => (&mut network["ipam"]["etcdConfig"], "etcdCertFile", "etcdKeyFile"),
            Old::HostEtcd => (&mut network["ipam"], "certfile", "keyfile"),
        };
        section[certificate] = "/nowhere/c.pem".into();
        section[key] = "/nowhere/k.pem".into();
        if node.old == Old::CniIpamEtcd {
            section["etcdURL"] = "https://127.0.0.1:1".into();
        } else {
            section["endpoints"] = json!(["127.0.0.1:1"]);
        }
        let (code, text) = node.call("ADD", "c1", &network).failure();
        assert!(code == 7 && text.contains("/nowhere/c.pem"), "{code}: {text}");
    });
}

#[test]
fn requested_addresses_of_the_runtime_are_honoured() {
    with_both(|node| {
        let mut network = node.network(one_set());
        network["runtimeConfig"] = json!({"ips": ["10.1.2.9/24"]});
        assert_eq!(node.call("ADD", "c1", &network).ips(), ["10.1.2.9/24"]);
        node.holds(&[("10.1.2.9", "c1")]);
    });
}

#[test]
fn arguments_that_were_errors_are_read() {
    with_both(|node| {
        let network = node.network(one_set());
        for (container, arguments) in [
            ("c9", "ip=10.1.2.9"),
            ("c10", "IP=10.1.2.10/24"),
            ("c11", "IP=10.1.2.11;"),
            ("c12", "K8S_POD_NAME=p;IP=10.1.2.12"),
        ] {
            let mut command = node.command("ADD", container);
            command.env("CNI_ARGS", arguments);
            wait(start(command, &network)).success();
        }
        node.holds(&[
            ("10.1.2.10", "c10"),
            ("10.1.2.11", "c11"),
            ("10.1.2.12", "c12"),
            ("10.1.2.9", "c9"),
        ]);
    });
}

#[test]
fn names_and_keys_that_were_taken_are_errors() {
    with_both(|node| {
        let network = node.network(one_set());
        let mut nested = network.clone();
        nested["name"] = "my/net".into();
        let capital = json!([[{"subnet": "10.1.2.0/24", "RANGESTART": "10.1.2.9"}]]);
        for (container, network, code) in [
            ("c1", nested, 7),
            ("c1", node.network(capital), 7),
            ("", network.clone(), 4),
            (" c1\n", network, 4),
        ] {
            let (found, text) = node.call("ADD", container, &network).failure();
            assert_eq!(found, code, "{text}");
        }
        assert_eq!(node.etcd.keys(""), [""; 0]);
    });
}

#[test]
fn a_check_looks_for_the_addresses_of_the_result() {
    with_both(|node| {
        let mut network =
            node.network(json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]));
        network["cniVersion"] = "1.0.0".into();
        network["prevResult"] = node.call("ADD", "c1", &network).success();
        node.call("CHECK", "c1", &network).success();
        node.etcd.put(&node.old.used("fd00::2"), "other");
        let (code, text) = node.call("CHECK", "c1", &network).failure();
        assert!(code == 104 && text.contains("fd00::2"), "{code}: {text}");
    });
}

#[test]
fn status_tells_that_the_store_is_away() {
    with_both(|node| {
        let mut network = node.network(one_set());
        network["cniVersion"] = "1.1.0".into();
        let status = |network: &Value| {
            let mut command = node.command("STATUS", "");
            command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
            wait(start(command, network))
        };
        status(&network).success();
        let away = node.old.store("127.0.0.1:1");
        network["ipam"].as_object_mut().unwrap().extend(away.as_object().unwrap().clone());
        network["ipam"]["timeout"] = "2s".into();
        assert_eq!(status(&network).failure().0, 50);
    });
}

#[test]
fn gc_releases_what_nobody_lists_and_leaves_what_the_old_plugin_gave() {
    let host = Host::new();
    host.settings(&json!({"gcGrace": "0s"}));
    with_both(|node| {
        node.etcd.put(&node.old.used("10.1.2.9"), "of-the-old");
        let mut network = node.network(one_set());
        network["cniVersion"] = "1.1.0".into();
        for container in ["there", "gone"] {
            node.call("ADD", container, &network).success();
        }
        network["cni.dev/valid-attachments"] = json!([{"containerID": "there", "ifname": "eth0"}]);
        let mut outside = node.command("GC", "");
        outside.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        let mut command = host.enter(outside.get_program());
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, &network)).success();
        node.holds(&[("10.1.2.2", "there"), ("10.1.2.9", "of-the-old")]);
    });
}

#[test]
fn an_add_needs_the_state_folder() {
    with_both(|node| {
        fs::remove_dir(node.world.path("state")).unwrap();
        fs::write(node.world.path("state"), "a file in the place of the folder").unwrap();
        let (code, text) = node.call("ADD", "c1", &node.network(one_set())).failure();
        assert!([5, 113].contains(&code), "{code}: {text}");
        node.holds(&[]);
    });
}

#[test]
fn further_keys_lie_beside_the_old_ones_and_tell_the_owner() {
    with_both(|node| {
        let network = node.network(one_set());
        node.call("ADD", "c1", &network).success();
        let ours = || -> Vec<String> {
            let mut keys = node.etcd.keys("");
            keys.retain(|key| node.old.is_ours(key));
            keys
        };
        let of_owner = |key: &String| key.contains("c1") && key.contains("eth0");
        assert!(ours().iter().any(of_owner), "{:?}", ours());
        node.call("DEL", "c1", &network).success();
        assert!(!ours().iter().any(of_owner), "{:?}", ours());
        node.holds(&[]);
    });
}

/// As with the documents of both, which name their network alike.
#[test]
fn one_network_name_with_both_presets_is_refused_in_one_sentence() {
    let etcd = Etcd::start();
    let [first, second] = Old::BOTH.map(|old| Node::new(old, &etcd));
    first.call("ADD", "c1", &first.network(one_set())).success();
    let mut network = second.network(one_set());
    network["ipam"]["stateDir"] = json!(first.world.path("state"));
    let (code, text) = second.call("ADD", "c2", &network).failure();
    assert_eq!(code, 11, "{text}");
    let sentence = "ipam-da-etcd: this node's leases of the network are below /etcd-cni in the \
        layout cni-ipam-etcd, but the configuration names /ipam in the layout host-etcd of the \
        same etcd cluster: give the network another name, ";
    assert!(text.starts_with(sentence) && text.matches("host-etcd").count() == 1, "{text}");
    assert!(text.contains("on every node; the undo failed with the same error"), "{text}");
}
