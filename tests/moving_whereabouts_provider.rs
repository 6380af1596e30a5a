//! `docs/moving/whereabouts-provider.md`, command by command, with an imitation of phpIPAM.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipam_testkit::pages::{Node, Page};
use ipam_testkit::phpipam::{APP, PASSWORD, PhpIpam, Security, USER};
use serde_json::json;

const PROVIDER_FILE: &str = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";

const PROGRAMS: [&str; 5] = [
    "ipam-delegated",
    "ipam-ds-whereabouts",
    "ipam-ds-kube-pod",
    "ipam-da-phpipam",
    "ipam-da-openwisp",
];

/// A node of the page whose provider file names this server. No API server has its pods.
fn node(server: &PhpIpam) -> Node {
    let temp = tempfile::TempDir::new().unwrap();
    let original = temp.path().join("whereabouts");
    fs::write(&original, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&original, fs::Permissions::from_mode(0o755)).unwrap();
    let page = Page::read("docs/moving/whereabouts-provider.md");
    let node = Node::new(page, "whereabouts", &original, &PROGRAMS).with_server(
        "\"type\": \"whereabouts\",",
        "\"type\": \"whereabouts\", \"pod\": {\"sticky\": \"off\"},",
        &[],
    );
    node.host.shell("mkdir /etc/cni/net.d/whereabouts.d");
    let file = json!({"ipamtype": "phpipam", "ipamuser": USER, "ipampwd": PASSWORD,
        "ipamurl": server.endpoint(), "appid": APP});
    fs::write(node.host.path(PROVIDER_FILE), file.to_string()).unwrap();
    node
}

#[test]
fn a_node_of_the_fork_moves_and_goes_back() {
    let server = PhpIpam::builder().security(Security::Token).start();
    let subnet = server.subnet("10.5.0.0/24", "pool1");
    server.gateway(&subnet, "10.5.0.1");
    server.record(&subnet, "10.5.0.2", &[("hostname", "default/before")]);
    let node = node(&server);
    node.follow("Moving", "console");
    assert!(!node.is_original());
    let warned = node.call("ADD", "warned", &node.network);
    let advice = format!("others may read it: chmod 600 {PROVIDER_FILE}");
    assert!(warned.stderr.contains(&advice), "{warned:?}");
    node.del("warned");
    node.follow("Before", "console");
    let outcome = node.call("ADD", "after", &node.network);
    assert!(!outcome.stderr.contains("others may read it"), "{outcome:?}");
    let after = outcome.success();
    node.check("after", &after);
    node.follow("Check", "console");
    node.del("after");
    node.follow("Going back", "console");
    assert!(node.is_original());
    let left: Vec<String> = server.records(&subnet).into_iter().map(|it| it.hostname).collect();
    assert_eq!(left, ["router", "default/before"]);
}
