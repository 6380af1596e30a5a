//! `docs/moving/cni-ipam-etcd.md` and `host-etcd.md`, command by command, on a real etcd. The replaced plugins are
//! played request by request.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::old::Old;
use ipam_testkit::pages::{Node, Page};
use serde_json::{Value, json};

/// A replaced plugin.
#[derive(Clone, Copy)]
enum System {
    CniIpamEtcd,
    HostEtcd,
}

use System::{CniIpamEtcd, HostEtcd};

impl System {
    fn page(self) -> Page {
        Page::read(match self {
            CniIpamEtcd => "docs/moving/cni-ipam-etcd.md",
            HostEtcd => "docs/moving/host-etcd.md",
        })
    }

    fn plugin(self) -> &'static str {
        match self {
            CniIpamEtcd => "etcd",
            HostEtcd => "host-etcd",
        }
    }

    /// The commands of a section, each with what it prints. Those by hand are on one page for both.
    fn steps(self, heading: &str, kind: &str) -> Vec<(String, String)> {
        let mut steps = match kind {
            "console" => self.page().commands(heading, kind),
            _ => CniIpamEtcd.page().commands(heading, kind),
        };
        if matches!(self, HostEtcd) && kind != "console" {
            for (command, _) in &mut steps {
                *command = command.replace("/bin/etcd", "/bin/host-etcd");
            }
        }
        steps
    }

    fn leases(self) -> &'static str {
        match self {
            CniIpamEtcd => "/etcd-cni/networks/racknet/used/",
            HostEtcd => "/ipam/ips/",
        }
    }

    fn ours(self) -> &'static str {
        match self {
            CniIpamEtcd => "/etcd-cni/networks/racknet/ipam-delegated/",
            HostEtcd => "/ipam/ipam-delegated/",
        }
    }

    fn differences(self) -> &'static [&'static str] {
        match self {
            CniIpamEtcd => ipam_delegated::presets::CNI_IPAM_ETCD_DIFFERENCES,
            HostEtcd => ipam_delegated::presets::HOST_ETCD_DIFFERENCES,
        }
    }
}

/// A node of the page with its store, and the replaced plugin at work on it.
struct Site {
    system: System,
    etcd: Etcd,
    node: Node,
    old: Old,
}

impl Site {
    fn new(system: System) -> Self {
        let etcd = Etcd::start();
        // What stands under the old name runs nothing here: the player does what it would do.
        let temp = tempfile::TempDir::new().unwrap();
        let original = temp.path().join(system.plugin());
        fs::write(&original, "#!/bin/sh\nexit 1\n").unwrap();
        fs::set_permissions(&original, fs::Permissions::from_mode(0o755)).unwrap();
        let programs = ["ipam-delegated", "ipam-ds-static", "ipam-da-etcd"];
        let variables = [("ETCDCTL_API", "3"), ("ETCDCTL_ENDPOINTS", &*etcd.url())];
        let node = Node::new(system.page(), system.plugin(), &original, &programs)
            .with_server("http://10.0.0.1:2379", &etcd.url(), &variables)
            .with("timeout 600", "timeout 1");
        let ranges = &node.network["ipam"]["ranges"];
        let old = match system {
            CniIpamEtcd => Old::cni_ipam_etcd(&etcd, "racknet", ranges),
            HostEtcd => Old::host_etcd(&etcd, ranges),
        };
        Self { system, etcd, node, old }
    }

    /// As on the page, when the first node has been moved.
    fn moved(system: System) -> Self {
        let site = Self::new(system);
        site.add_before("before");
        site.install();
        site
    }

    fn install(&self) {
        self.node.in_archive(&format!("./install.sh --preset {}", self.system.plugin()));
    }

    /// An ADD of the replaced plugin: its addresses.
    #[track_caller]
    fn add_before(&self, container: &str) -> Vec<String> {
        let addresses = self.old.add(container).run().unwrap();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// The addresses that are held, each with its container.
    fn leases(&self) -> Vec<(String, String)> {
        let prefix = self.system.leases();
        let keys = self.etcd.keys(prefix);
        let lease = |key: &String| (key[prefix.len()..].to_owned(), self.etcd.get(key).unwrap());
        keys.iter().map(lease).collect()
    }

    /// The addresses of one container.
    fn of(&self, container: &str) -> Vec<String> {
        let leases = self.leases().into_iter().filter(|(_, holder)| holder == container);
        leases.map(|(address, _)| address).collect()
    }

    /// What the runtime keeps of an ADD.
    fn cache(&self, container: &str, addresses: &[&str]) {
        let ips: Vec<Value> = addresses.iter().map(|a| json!({"address": a})).collect();
        let cached = json!({"kind": "cniCacheV1", "containerId": container, "ifName": "eth0",
            "networkName": "racknet", "result": {"cniVersion": "0.3.1", "ips": ips}});
        let folder = self.node.host.path("/var/lib/cni/results");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("racknet-{container}-eth0")), cached.to_string()).unwrap();
    }
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    let bare = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    ips.map(bare).collect()
}

/// From the replaced plugin to the preset and back, by one of the two ways the page shows.
fn there_and_back(system: System, kind: &str) {
    let site = Site::new(system);
    let Site { node, old, .. } = &site;
    assert_eq!(site.add_before("before"), ["10.210.0.2", "fd00:210::2"]);
    let expected = ["10.210.0.2", "fd00:210::2"].map(|a| (a.to_owned(), "before".to_owned()));
    assert_eq!(site.leases(), expected);

    for (command, expected) in system.steps("Moving", kind) {
        node.run(&command, &expected);
    }
    assert!(!node.is_original());
    let before = json!({"cniVersion": "0.4.0", "ips": [
        {"version": "4", "address": "10.210.0.2/16"}, {"version": "6", "address": "fd00:210::2/64"}]});
    node.check("before", &before);
    let after = node.add("after");
    node.check("after", &after);
    node.follow("Check", "console");
    node.del("before");
    assert_eq!(site.of("before"), [""; 0]);
    assert_eq!(site.leases().len(), 2);
    node.add("third");

    let (command, expected) = &system.steps("Going back", kind)[0];
    node.run(command, expected);
    assert!(node.is_original());
    // The replaced plugin goes on behind ours, and releases what ours gave.
    assert_eq!(site.add_before("fourth"), ["10.210.0.5", "fd00:210::5"]);
    for container in ["after", "third", "fourth"] {
        assert_eq!(site.of(container).len(), 2, "{container}");
        old.del(container).run().unwrap();
    }
    assert_eq!(site.leases(), []);
}

#[test]
fn from_cni_ipam_etcd_and_back_by_the_script() {
    there_and_back(CniIpamEtcd, "console");
}

#[test]
fn from_cni_ipam_etcd_and_back_by_hand() {
    there_and_back(CniIpamEtcd, "console by hand");
}

#[test]
fn from_host_etcd_and_back_by_the_script() {
    there_and_back(HostEtcd, "console");
}

#[test]
fn from_host_etcd_and_back_by_hand() {
    there_and_back(HostEtcd, "console by hand");
}

#[test]
fn each_page_lists_what_its_preset_says_that_changes() {
    for system in [CniIpamEtcd, HostEtcd] {
        let page = system.page();
        let rows = page.section("Differences").lines().filter(|line| line.starts_with("| "));
        let differences = rows.skip(1).map(|row| {
            let (ours, theirs) = row[1..].trim_end_matches('|').split_once(" | ").unwrap();
            match (ours.trim(), theirs.trim()) {
                (ours, "") => format!("{ours}."),
                (ours, theirs) if theirs.starts_with("The ") => format!("{ours}. {theirs}."),
                (ours, theirs) => format!("{ours}; {theirs}."),
            }
        });
        assert_eq!(differences.collect::<Vec<_>>(), system.differences());
    }
}

/// host-etcd has given two addresses that were in use, before the move.
#[test]
fn two_containers_with_one_address_are_found_before_the_move_and_mended_after_it() {
    let site = Site::new(HostEtcd);
    let node = &site.node;
    for (address, holder) in [("10.210.0.2", "zeroth"), ("10.210.0.3", "second")] {
        site.etcd.put(&format!("/ipam/ips/{address}"), holder);
    }
    site.etcd.put("/ipam/last_reserved_ip0", "10.210.0.4");
    site.cache("zeroth", &["10.210.0.2/16"]);
    site.cache("first", &["10.210.0.3/16"]);
    site.cache("third", &["10.210.0.4/16"]);
    node.in_archive("./install.sh");
    node.follow("Two containers with one address", "console");

    site.install();
    node.del("first");
    assert_eq!(site.of("second"), ["10.210.0.3"]);
    assert_eq!(addresses(&node.add("first"))[0], "10.210.0.5");
}

#[test]
fn a_call_of_host_etcd_is_seen_in_its_queue_and_warned_of() {
    let site = Site::moved(HostEtcd);
    let mut call = site.old.add("late");
    // Its lease, and its place in the queue.
    while site.etcd.keys("/ipam/lock/").is_empty() {
        call.step().unwrap();
    }
    let mut lint = site.node.host.enter("/opt/cni/bin/ipam-delegated");
    let warned =
        String::from_utf8(lint.args(["lint", "racknet"]).output().unwrap().stderr).unwrap();
    assert!(warned.contains("host-etcd still runs on this store"), "{warned}");
    call.run().unwrap();
    assert_eq!(site.etcd.keys("/ipam/lock/"), [""; 0]);
}

#[test]
fn a_container_that_podman_starts_again_has_its_addresses_whoever_gave_them() {
    for system in [CniIpamEtcd, HostEtcd] {
        let site = Site::moved(system);
        site.cache("before", &["10.210.0.2/16", "fd00:210::2/64"]);
        assert_eq!(addresses(&site.node.add("before")), ["10.210.0.2", "fd00:210::2"]);
        let ours = site.node.add("since");
        assert_eq!(addresses(&site.node.add("since")), addresses(&ours));
        for container in ["before", "since"] {
            site.node.del(container);
        }
        assert_eq!(site.leases(), []);
    }
}

#[test]
fn a_record_of_a_container_that_the_replaced_plugin_released_can_be_dropped() {
    for system in [CniIpamEtcd, HostEtcd] {
        let site = Site::moved(system);
        site.node.add("after");
        let back = site.node.page.commands("Going back", "console");
        site.node.run(&back[0].0, &back[0].1);
        site.old.del("after").run().unwrap();
        // Its addresses are another's by now; moved again.
        site.etcd.put(&format!("{}10.210.0.3", system.leases()), "other");
        site.install();
        assert!(site.node.page.section("Trouble").contains("forget racknet CONTAINER --yes"));
        let forgot = "forgot after/eth0 on racknet; ipam-da-etcd may still hold 10.210.0.3/16, \
                      fd00:210::3/64\n";
        assert_eq!(site.node.ask(&["forget", "racknet", "after", "--yes"]), forgot);
        assert_eq!(site.of("other"), ["10.210.0.3"]);
    }
}

/// Moved, back, and moved again: what the replaced plugin has given in between, to others or to the same
/// container, is told by its keys, not by our record.
#[test]
fn a_record_from_before_going_back_frees_what_its_container_holds_now_and_nothing_else() {
    for system in [CniIpamEtcd, HostEtcd] {
        let site = Site::moved(system);
        site.node.add("again");
        site.node.add("gone");
        let (command, expected) = &site.node.page.commands("Going back", "console")[0];
        site.node.run(command, expected);
        for container in ["again", "gone"] {
            site.old.del(container).run().unwrap();
        }
        for address in ["10.210.0.3", "10.210.0.4"] {
            site.etcd.put(&format!("{}{address}", system.leases()), "other");
        }
        assert_eq!(site.add_before("again"), ["10.210.0.5", "fd00:210::5"]);
        site.install();
        site.node.del("again");
        site.node.del("gone");
        assert_eq!(site.of("again"), [""; 0]);
        assert_eq!(site.of("other"), ["10.210.0.3", "10.210.0.4"]);
        assert_eq!(site.of("before").len(), 2);
    }
}

#[test]
fn what_is_left_for_good_is_removed_in_etcd_and_on_the_node() {
    for system in [CniIpamEtcd, HostEtcd] {
        let site = Site::moved(system);
        let node = &site.node;
        node.add("after");
        let [(delete, deleted), (forget, _)] =
            node.page.commands("Going back", "console for good").try_into().unwrap();
        node.run(&delete, &deleted);
        assert_eq!(site.etcd.keys(system.ours()), [""; 0]);
        // The node remembers what is not there any more.
        let (code, text) = node.call("ADD", "next", &node.network).failure();
        assert!(code == 11 && text.contains("older than its revision"), "{code}: {text}");
        node.run(&forget, "");
        assert_eq!(addresses(&node.add("next"))[0], "10.210.0.4");
        node.del("after");
        node.del("next");
        assert_eq!(site.of("before"), ["10.210.0.2", "fd00:210::2"]);
        assert_eq!(site.leases().len(), 2);
    }
}

/// What stands in the tables under "Trouble" is what is said.
#[test]
fn a_stripped_del_of_a_container_from_before_says_that_it_releases_nothing() {
    for system in [CniIpamEtcd, HostEtcd] {
        let site = Site::moved(system);
        let mut stripped = site.node.network.clone();
        stripped["ipam"] = json!({"type": system.plugin()});
        let outcome = site.node.call("DEL", "before", &stripped);
        let said = "no record of this attachment, and the configuration names no delegates";
        assert!(outcome.exit == Some(0) && outcome.stderr.contains(said), "{outcome:?}");
        assert!(system.page().section("Trouble").contains(said));
        site.node.ask(&["release", "racknet", "10.210.0.2", "fd00:210::2", "--yes"]);
        assert_eq!(site.leases(), []);
    }
}

#[test]
fn a_lock_that_nobody_lets_go_of_is_named() {
    let site = Site::moved(CniIpamEtcd);
    let lock = "/etcd-cni/networks/racknet/lock";
    site.etcd.put(lock, "77");
    let network = ipam_testkit::world::with(&site.node.network, "timeout", "4s");
    let (code, text) = site.node.call("ADD", "late", &network).failure();
    assert!(code == 11 && text.contains(lock), "{code}: {text}");
    site.etcd.del(lock);
    site.node.add("late");
}
