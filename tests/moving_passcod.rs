//! `docs/moving/passcod.md`, command by command, on a real Consul. passcod's
//! ipam-da-consul is played request by request.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use ipam_testkit::consul::Consul;
use ipam_testkit::old::passcod::{Passcod, given};
use ipam_testkit::pages::{Node, Page};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-consul"];

/// A node of the page with its store, and passcod's programs at work on it.
struct Site {
    consul: Consul,
    node: Node,
    old: Passcod,
    _originals: TempDir,
}

fn page() -> Page {
    Page::read("docs/moving/passcod.md")
}

impl Site {
    fn new() -> Self {
        let consul = Consul::start();
        for key in ["ipam/", "ipam/web/"] {
            consul.put(key, "");
        }
        consul.put("ipam/web", r#"[{"subnet": "10.210.0.0/16", "gateway": "10.210.0.1"}]"#);
        // What stands under the old names runs nothing here: the player does what it would do.
        let originals = TempDir::new().unwrap();
        let original = |name: &str| {
            let path = originals.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n# passcod's {name}\nexit 1\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let program = ipam_testkit::consul::program();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.parent().unwrap().display());
        let variables = [("CONSUL_HTTP_ADDR", &*consul.endpoint()), ("PATH", &*path)];
        let node = Node::new(page(), PROGRAMS[0], &original(PROGRAMS[0]), &PROGRAMS).with_server(
            "http://10.20.30.40:8500",
            &consul.url(),
            &variables,
        );
        for name in &PROGRAMS[1..] {
            ipam_testkit::pages::copy(
                &original(name),
                &node.host.path(&format!("/opt/cni/bin/{name}")),
            );
        }
        let old = Passcod::new(&[consul.endpoint()], "web");
        Self { consul, node, old, _originals: originals }
    }

    /// As on the page, when the first node has been moved.
    fn moved() -> Self {
        let site = Self::new();
        site.add_before("before");
        site.node.follow("Moving", "console");
        site
    }

    /// An ADD of passcod's: its address.
    #[track_caller]
    fn add_before(&self, container: &str) -> String {
        given(&self.old.add(container).run().unwrap()).to_string()
    }

    /// The addresses that are held, each with its container.
    fn leases(&self) -> Vec<(String, String)> {
        let entries = self.consul.list("ipam/web/");
        let lease = |entry: ipam_testkit::consul::Entry| {
            let address = entry.key.strip_prefix("ipam/web/").unwrap().to_owned();
            let value: Value = serde_json::from_str(&entry.value).ok()?;
            Some((address, value["target"].as_str().unwrap().to_owned()))
        };
        entries.into_iter().filter_map(lease).collect()
    }

    fn installed(&self, name: &str) -> PathBuf {
        self.node.host.path(&format!("/opt/cni/bin/{name}"))
    }

    fn are_original(&self) -> bool {
        let is_original = |name: &str| {
            let text = fs::read(self.installed(name)).unwrap();
            String::from_utf8_lossy(&text).contains(&format!("passcod's {name}\n"))
        };
        PROGRAMS.into_iter().all(is_original)
    }

    /// What the runtime keeps of an ADD.
    fn cache(&self, container: &str, address: &str) {
        let cached = json!({"kind": "cniCacheV1", "containerId": container, "ifName": "eth0",
            "networkName": "racknet",
            "result": {"cniVersion": "1.0.0", "ips": [{"address": address}]}});
        let folder = self.node.host.path("/var/lib/cni/results");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("racknet-{container}-eth0")), cached.to_string()).unwrap();
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(a, c)| ((*a).to_owned(), (*c).to_owned())).collect()
}

fn address(result: &Value) -> &str {
    result["ips"][0]["address"].as_str().unwrap()
}

#[test]
fn there_and_back() {
    let site = Site::new();
    let node = &site.node;
    assert_eq!(site.add_before("before"), "10.210.0.0");
    node.follow("Is it for you", "console");

    node.follow("Moving", "console");
    assert!(!site.are_original());
    let before = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.210.0.0/16"}]});
    node.check("before", &before);
    let after = node.add("after");
    node.check("after", &after);
    node.follow("Check", "console");
    node.del("before");
    assert_eq!(site.leases(), pairs(&[("10.210.0.2", "after")]));
    node.add("third");

    node.follow("Going back", "console");
    assert!(site.are_original());
    assert!(!site.installed(".ipam-delegated.installed").exists());
    // passcod's goes on beside ours, and releases what ours gave.
    assert_eq!(site.add_before("fourth"), "10.210.0.0");
    for container in ["after", "third", "fourth"] {
        site.old.del(container).run().unwrap();
    }
    assert_eq!(site.leases(), []);
}

#[test]
fn a_requested_address_is_taken_over_as_before() {
    let site = Site::moved();
    let mut network = site.node.network.clone();
    network["ipam"]["pools"][0]["requested_ip"] = json!("10.210.0.9");
    for container in ["first", "second"] {
        let given = site.node.call("ADD", container, &network).success();
        assert_eq!(address(&given), "10.210.0.9/16", "{container}");
    }
    site.node.call("DEL", "first", &network).success();
    assert_eq!(site.leases(), pairs(&[("10.210.0.0", "before"), ("10.210.0.9", "second")]));

    fs::remove_file(site.node.host.path("/etc/cni/ipam-delegated.json")).unwrap();
    let (code, text) = site.node.call("ADD", "third", &network).failure();
    assert!(code == 102 && text.contains("is held by second/eth0"), "{code}: {text}");
}

#[test]
fn a_container_that_podman_starts_again_has_its_address_whoever_gave_it() {
    let site = Site::moved();
    // The lowest address is not given out any more.
    let early: Vec<_> = ["c1", "c2"].map(|container| site.add_before(container)).into();
    assert_eq!(early, ["10.210.0.2", "10.210.0.3"]);
    site.cache("c2", "10.210.0.3/16");
    assert_eq!(address(&site.node.add("c2")), "10.210.0.3/16");
    site.cache("before", "10.210.0.0/16");
    assert_eq!(address(&site.node.add("before")), "10.210.0.4/16");
    let ours = site.node.add("since");
    assert_eq!(address(&site.node.add("since")), address(&ours));
    for container in ["before", "c1", "c2", "since"] {
        site.node.del(container);
    }
    assert_eq!(site.leases(), []);
}

/// As it may happen while nodes of both kinds are at work.
#[test]
fn an_address_that_passcod_has_taken_from_ours_is_noticed_and_left_to_it() {
    let site = Site::moved();
    let after = site.node.add("after");
    let pools = json!([{"name": "web", "requested_ip": "10.210.0.2"}]);
    Passcod::with_pools(&[site.consul.endpoint()], &pools).add("taker").run().unwrap();
    let network = ipam_testkit::world::with(&site.node.network, "type", "ipam-delegated");
    let mut checked = network.clone();
    checked["prevResult"] = after;
    let (code, text) = site.node.call("CHECK", "after", &checked).failure();
    assert_eq!(code, 104, "{text}");
    site.node.del("after");
    assert_eq!(site.leases(), pairs(&[("10.210.0.0", "before"), ("10.210.0.2", "taker")]));
}

/// Moved, back, and moved again: what passcod has given in between, to others or to the same container,
/// is told by its keys, not by our record.
#[test]
fn a_record_from_before_going_back_frees_what_its_container_holds_now_and_nothing_else() {
    let site = Site::moved();
    site.node.add("again");
    site.node.add("gone");
    site.node.follow("Going back", "console");
    for container in ["again", "gone"] {
        site.old.del(container).run().unwrap();
    }
    for address in ["10.210.0.2", "10.210.0.3"] {
        site.consul.put(&format!("ipam/web/{address}"), r#"{"target": "other"}"#);
    }
    assert_eq!(site.add_before("again"), "10.210.0.4");
    site.node.in_archive("./install.sh");
    site.node.del("again");
    site.node.del("gone");
    let held = [("10.210.0.0", "before"), ("10.210.0.2", "other"), ("10.210.0.3", "other")];
    assert_eq!(site.leases(), pairs(&held));
}

#[test]
fn a_record_of_a_container_that_passcod_released_can_be_dropped() {
    let site = Site::moved();
    site.node.add("after");
    site.node.follow("Going back", "console");
    site.old.del("after").run().unwrap();
    // Its address is another's by now; moved again.
    site.consul.put("ipam/web/10.210.0.2", r#"{"target": "other"}"#);
    site.node.in_archive("./install.sh");
    site.node.follow("Going back", "console again");
    assert_eq!(site.leases(), pairs(&[("10.210.0.0", "before"), ("10.210.0.2", "other")]));
}

#[test]
fn what_is_left_for_good_is_removed_in_consul_and_on_the_node() {
    let site = Site::moved();
    let node = &site.node;
    node.add("after");
    let [(delete, deleted), (forget, _)] =
        node.page.commands("Going back", "console for good").try_into().unwrap();
    node.run(&delete, &deleted);
    assert_eq!(site.consul.keys("ipam/.owners/"), [""; 0]);
    // The node remembers what is not there any more.
    let (code, text) = node.call("ADD", "next", &node.network).failure();
    let said = "the store does not have this node's latest claim";
    assert!(code == 11 && text.contains(said), "{code}: {text}");
    assert!(node.page.section("Trouble").contains(said));
    node.run(&forget, "");
    assert_eq!(address(&node.add("next")), "10.210.0.3/16");
    node.del("after");
    node.del("next");
    assert_eq!(site.leases(), pairs(&[("10.210.0.0", "before")]));
}

/// What systems did, and why we differ.
#[derive(Deserialize)]
struct Fixture {
    reasons: BTreeMap<String, String>,
}

/// The recordings are compared elsewhere. Each reason to differ from one is a row of the page or, for
/// authors of delegates, an item of the design.
#[test]
fn the_page_gives_every_reason_to_differ_from_a_recording() {
    let page = page();
    let rows: Vec<&str> = page.section("Differences").lines().collect();
    let design = Page::read("delegates/ipam-da-consul/DESIGN.md");
    let items = design.items("Differences from passcod");
    let recordings =
        [include_str!("vectors/passcod.json"), include_str!("vectors/passcod-consul.json")];
    for fixture in recordings.map(|text| serde_json::from_str::<Fixture>(text).unwrap()) {
        for reason in fixture.reasons.values() {
            let row = reason.trim_end_matches('.').replace("; passcod ", " | ");
            let is_given = rows.contains(&&*format!("| {row} |")) || items.contains(reason);
            assert!(is_given, "neither on the page nor in the design: {reason}");
        }
    }
}
