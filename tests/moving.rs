//! `docs/moving/host-local.md`, command by command, with host-local itself.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;

use ipam_testkit::pages::{Node, Page, copy};
use ipam_testkit::world::{binary, host_local, names};
use serde_json::{Value, json};

fn node() -> Node {
    let page = Page::read("docs/moving/host-local.md");
    let programs = ["ipam-delegated", "ipam-ds-static", "ipam-da-local"];
    Node::new(page, "host-local", &host_local(), &programs)
}

fn leases(node: &Node) -> Vec<String> {
    let mut names = names(&node.host.path("/var/lib/cni/networks/racknet"));
    names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
    names
}

/// From host-local to the preset and back, by one of the two ways the page shows.
fn there_and_back(kind: &str) {
    let node = node();
    let before = node.add("before");

    node.follow("Moving", kind);
    assert!(!node.is_original());
    node.check("before", &before);
    let after = node.add("after");
    node.check("after", &after);
    node.follow("Check", "console");
    node.del("before");
    assert_eq!(leases(&node), ["10.210.0.3", "fd00:210::3"]);
    let third = node.add("third");

    let back = &node.page.commands("Going back", kind)[..1];
    back.iter().for_each(|(command, expected)| node.run(command, expected));
    assert!(node.is_original());
    for (container, result) in [("after", after), ("third", third)] {
        node.check(container, &result);
        node.del(container);
    }
    assert!(leases(&node).is_empty());
    assert_eq!(node.add("fourth")["ips"][0]["address"], "10.210.0.5/16");
    node.del("fourth");
}

#[test]
fn there_and_back_by_the_script() {
    there_and_back("console");
}

#[test]
fn there_and_back_by_hand() {
    there_and_back("console by hand");
}

#[test]
fn lint_shows_before_the_move_what_would_run() {
    let node = node();
    node.in_archive("./install.sh");
    assert!(node.is_original());
    let text = node.ask(&["lint", "racknet"]);
    for part in ["ipam-ds-static", "ipam-da-local", "the real host-local runs, not its preset"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_record_of_a_container_that_host_local_released_can_be_dropped() {
    let node = node();
    node.add("before");
    node.follow("Moving", "console");
    node.add("after");
    let going_back = node.page.commands("Going back", "console");
    node.run(&going_back[0].0, &going_back[0].1);
    node.del("after");
    // Moved again.
    node.in_archive(&node.page.commands("Moving", "console")[0].0);
    node.follow("Going back", "console again");
    assert_eq!(leases(&node), ["10.210.0.2", "fd00:210::2"]);
}

#[test]
fn a_container_has_its_addresses_again_after_a_reboot() {
    let node = node();
    let theirs = node.add("from-before");
    node.follow("Moving", "console");
    let ours = node.add("since");
    // A reboot takes the namespaces; podman calls ADD without a DEL, with a new one.
    assert_eq!(node.add("since"), ours);
    let again = node.add("from-before");
    assert_eq!(again["ips"], theirs["ips"]);
    // With the section `ipam` stripped of all but its type, as Multus does it.
    let mut stripped = node.network.clone();
    stripped["ipam"] = json!({"type": "host-local"});
    for container in ["since", "from-before"] {
        node.call("DEL", container, &stripped).success();
    }
    assert!(leases(&node).is_empty());
}

#[test]
fn a_container_from_before_is_released_by_a_stripped_del() {
    let node = node();
    node.add("before");
    node.follow("Moving", "console");
    let mut stripped = node.network.clone();
    stripped["ipam"] = json!({"type": "host-local"});
    node.call("DEL", "before", &stripped).success();
    assert!(leases(&node).is_empty());
}

#[test]
fn both_at_once_give_different_addresses_and_release_each_others() {
    let node = node();
    node.follow("Moving", "console");
    let original = "/opt/cni/bin/host-local.orig";
    let preset = "/opt/cni/bin/host-local";
    for number in 0..6 {
        let program = if number % 2 == 0 { original } else { preset };
        node.call_of(program, "ADD", &format!("c{number}"), &node.network).success();
    }
    assert_eq!(leases(&node).len(), 12);
    for number in 0..6 {
        let program = if number % 2 == 0 { preset } else { original };
        node.call_of(program, "DEL", &format!("c{number}"), &node.network).success();
    }
    assert!(leases(&node).is_empty());
    let mut chain = node.network.clone();
    let delegates = node.page.blocks("Differences", "json")[0];
    let delegates: Value = serde_json::from_str(&format!("{{{delegates}}}")).unwrap();
    chain["ipam"]["delegates"] = delegates["delegates"].clone();
    chain["ipam"]["type"] = json!("ipam-delegated");
    node.call_of("/opt/cni/bin/ipam-delegated", "ADD", "c7", &chain).success();
    let records = node.host.path("/var/lib/cni/ipam-delegated/attachments/racknet/c7:eth0");
    assert!(std::fs::read_to_string(records).unwrap().contains("host-local.orig"));
    node.call_of("/opt/cni/bin/ipam-delegated", "DEL", "c7", &chain).success();
    assert!(leases(&node).is_empty());
}

#[test]
fn the_page_lists_what_the_preset_says_that_changes() {
    let page = Page::read("docs/moving/host-local.md");
    let items = page.items("Differences");
    assert_eq!(items, ipam_delegated::presets::HOST_LOCAL_DIFFERENCES);
}

/// As in the table under "Trouble".
#[test]
fn a_link_without_its_delegates_says_what_is_missing() {
    let node = node();
    let bin: PathBuf = node.host.path("/opt/cni/bin");
    copy(&binary("ipam-delegated"), &bin.join("ipam-delegated"));
    node.host.shell("ln -sfT ipam-delegated /opt/cni/bin/host-local");
    let (code, text) = node.call("ADD", "c1", &node.network).failure();
    assert!(code < 200 && text.contains("ipam-ds-static"), "{code}: {text}");
}
