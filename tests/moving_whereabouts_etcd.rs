//! `docs/moving/whereabouts-etcd.md`, command by command, on a real etcd. Whereabouts is played
//! request by request.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::old::whereabouts::InEtcd;
use ipam_testkit::pages::{Node, Page};
use serde_json::json;

const POOL: &str = "/whereabouts/192.168.2.224/28";

/// A node of the page with its store.
fn node(etcd: &Etcd) -> Node {
    let temp = tempfile::TempDir::new().unwrap();
    let original = temp.path().join("whereabouts");
    fs::write(&original, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&original, fs::Permissions::from_mode(0o755)).unwrap();
    let programs = [
        "ipam-delegated",
        "ipam-ds-whereabouts",
        "ipam-ds-kube-pod",
        "ipam-da-etcd",
        "ipam-da-kube",
    ];
    let variables = [("ETCDCTL_API", "3"), ("ETCDCTL_ENDPOINTS", &*etcd.url())];
    let page = Page::read("docs/moving/whereabouts-etcd.md");
    Node::new(page, "whereabouts", &original, &programs).with_server(
        "10.0.0.1:2379",
        &etcd.endpoint(),
        &variables,
    )
}

#[test]
fn from_whereabouts_on_etcd_and_back() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    let ranges = json!({"range": "192.168.2.225/28", "exclude": ["192.168.2.229/30"]});
    let old = InEtcd::new(&etcd, &ranges);
    old.add("before").run().unwrap();
    node.follow("Before", "console");
    etcd.put("/whereabouts/10.1.0.0/24", "10.1.0.2 c1\ngarbage");
    let (find, _) = &node.page.commands("Before", "console")[1];
    node.run(find, "garbage\n");
    etcd.del("/whereabouts/10.1.0.0/24");

    node.follow("Moving", "console");
    assert!(!node.is_original());
    let after = node.add("after");
    node.check("after", &after);
    node.follow("Check", "console");
    node.del("before");
    assert_eq!(etcd.get(POOL).as_deref(), Some("192.168.2.226 after"));
    node.add("third");

    node.follow("Going back", "console");
    assert!(node.is_original());
    old.add("fourth").run().unwrap();
    for container in ["after", "third", "fourth"] {
        old.del(container).run().unwrap();
    }
    assert_eq!(etcd.get(POOL).as_deref(), Some(""));

    // For good, and then moved again.
    node.follow("Going back", "console for good");
    assert_eq!(etcd.keys("/"), [POOL]);
    node.in_archive("./install.sh --preset whereabouts");
    node.add("again");
}

/// `log_file` and `log_level` have no effect, and the gateway is outside of the range.
#[test]
fn the_example_of_the_first_releases_runs_unchanged() {
    let etcd = Etcd::start();
    let node = node(&etcd);
    node.in_archive("./install.sh --preset whereabouts");
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/whereabouts-etcd.yaml");
    let text = fs::read_to_string(file).unwrap();
    let config = text.split('\'').nth(1).unwrap().replace("127.0.0.1:2379", &etcd.endpoint());
    let network = serde_json::from_str(&config).unwrap();
    let result = node.call("ADD", "c1", &network).success();
    assert_eq!(result["ips"][0]["address"], "192.168.2.225/28");
    assert_eq!(result["ips"][0]["gateway"], "192.168.2.1");
    assert_eq!(etcd.get(POOL).as_deref(), Some("192.168.2.225 c1"));
    node.call("DEL", "c1", &network).success();
    assert_eq!(etcd.get(POOL).as_deref(), Some(""));
}
