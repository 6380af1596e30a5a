//! The README says what the program does: its networks are used, its commands are run.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::net::IpAddr;

use ipam_testkit::kube::Node;
use ipam_testkit::kube_site::Site;
use ipam_testkit::pages::Page;
use serde_json::{Value, json};

const NODE: &str = "vm-002";
const ANNOTATION: &str = "example.com/ipvlan-ranges";

fn readme() -> Page {
    Page::read("delegates/ipam-ds-node-annotation/README.md")
}

fn moving() -> Page {
    Page::read("docs/moving/node-annotation.md")
}

#[test]
fn the_networks_and_commands_do_what_is_shown() {
    let page = readme();
    let site = Site::new(NODE, &["node-annotation"]);
    site.kube.create_node(&Node::named(NODE));
    site.follow(&page.commands("Example", "console"));

    let networks = page.blocks("Example", "json");
    let [preset, chain] = [0, 1].map(|i| site.network(networks[i]));
    let conf = page.blocks("The host's file", "json")[0];
    let conf = site.here(&conf.replace("/opt/cni/bin/", "/usr/lib/cni/"));
    let mut conf: Value = serde_json::from_str(&conf).unwrap();
    let write = |conf: &Value| {
        fs::write(site.host.path("/etc/cni/node-annotation.conf"), conf.to_string()).unwrap();
    };
    // A network without cniVersion gets its one address of a family as CNI 0.1.0 has it.
    let add = |container: &str, network: &Value| {
        site.call("ADD", container, "", network).success()["ip4"]["ip"].clone()
    };
    write(&conf);
    assert_eq!(add("c1", &preset), "172.16.5.2/24");
    let leases = site.host.path("/var/lib/cni/networks/mynet");
    assert!(leases.join("172.16.5.2").exists());
    let record = "/var/lib/cni/ipam-delegated/attachments/mynet/c1:eth0";
    let record = fs::read_to_string(site.host.path(record)).unwrap();
    assert!(record.contains("/usr/lib/cni/host-local"), "{record}");
    conf.as_object_mut().unwrap().remove("nextipam");
    write(&conf);
    assert_eq!(add("c2", &preset), "172.16.5.3/24");
    fs::remove_file(site.host.path("/etc/cni/node-annotation.conf")).unwrap();
    assert_eq!(add("c3", &chain), "172.16.5.4/24");
    for container in ["c1", "c2", "c3"] {
        site.call("DEL", container, "", &preset).success();
    }
    assert!(!ipam_testkit::world::names(&leases).iter().any(|name| name.starts_with("172.")));

    site.follow(&page.commands("Trying it", "console"));
    let help = site.shell("ipam-ds-node-annotation -h");
    let rows = page.section("Trying it").lines().filter_map(|line| line.strip_prefix("| `"));
    let commands: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    assert_eq!(commands.len(), 5);
    for command in commands {
        assert!(help.contains(&format!("\n  {command}")), "{command}");
    }
    for form in page.blocks("The annotation", "json forms")[0].lines() {
        site.kube.annotate_node(NODE, ANNOTATION, Some(form));
        let input = chain.to_string();
        let composed = site.shell(&format!("printf %s '{input}' | ipam-ds-node-annotation ipam"));
        let composed: Value = serde_json::from_str(&composed).unwrap();
        assert_eq!(composed["ipam"]["ranges"], json!([[{"subnet": "172.16.5.0/24"}]]), "{form}");
    }
}

#[test]
fn the_example_works_with_the_kubelets_credentials() {
    const NODE: &str = "of-a-kubelet";
    let page = readme();
    let site = Site::new(NODE, &[]);
    site.kube.create_node(&Node::named(NODE));
    // The last block but one of the section annotates a worker.
    let blocks = page.blocks("On kind", "console untested");
    let annotate = blocks.iter().find(|block| block.starts_with("$ kubectl annotate")).unwrap();
    let (annotate, _) = annotate.rsplit_once("\n$ ").unwrap();
    site.shell(&annotate.trim_start_matches("$ ").replace("kind-worker", NODE));
    let network = site.example("80-ipam-delegated-node-annotation.conflist");
    let addresses = ["4000::1000:0/120", "16.0.0.0/24"];
    assert_eq!(site.call("ADD", "c1", "", &network).ips(), addresses);
    site.call("DEL", "c1", "", &network).success();
}

#[test]
fn the_preset_takes_the_place_of_node_annotation_and_gives_it_back() {
    const NODE: &str = "moved";
    let page = readme();
    let site = Site::new(NODE, &[]);
    let annotation = r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#;
    site.kube.create_node(&Node::named(NODE).annotation(ANNOTATION, annotation));
    fs::write(
        site.host.path("/etc/cni/node-annotation.conf"),
        site.here(r#"{"kubeconfig": "/etc/kubernetes/kubeconfig"}"#),
    )
    .unwrap();
    let mut network = site.network(page.blocks("Example", "json")[0]);
    network["cniVersion"] = "1.0.0".into();
    // As node-annotation hands it on.
    let mut theirs = network.clone();
    theirs["ipam"] = json!({"type": "host-local", "ranges": [[{"subnet": "172.16.5.0/24"}]]});
    let file = site.host.path("/etc/cni/net.d/10-mynet.conf");
    fs::write(file, network.to_string()).unwrap();
    site.assert_there_and_back(
        "node-annotation",
        &moving(),
        ipam_delegated::presets::NODE_ANNOTATION_DIFFERENCES[1],
        [&network, &theirs],
        ["172.16.5.2/24", "172.16.5.3/24", "172.16.5.4/24"],
    );
    let leases = ipam_testkit::world::names(&site.host.path("/var/lib/cni/networks/mynet"));
    assert!(!leases.iter().any(|name| name.parse::<IpAddr>().is_ok()), "{leases:?}");
}

#[test]
fn the_page_lists_what_the_preset_says_that_changes() {
    let items = moving().items("Differences");
    assert_eq!(items, ipam_delegated::presets::NODE_ANNOTATION_DIFFERENCES);
}
