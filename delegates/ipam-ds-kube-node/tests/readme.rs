//! The README says what the program does: its networks are used, its commands are run.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::net::IpAddr;

use ipam_testkit::kube::Node;
use ipam_testkit::kube_site::Site;
use ipam_testkit::pages::Page;
use ipam_testkit::world::with;
use serde_json::{Value, json};

const NODE: &str = "vm-002";

fn readme() -> Page {
    Page::read("delegates/ipam-ds-kube-node/README.md")
}

fn moving() -> Page {
    Page::read("docs/moving/kube-node.md")
}

#[test]
fn the_networks_and_commands_do_what_is_shown() {
    let page = readme();
    let site = Site::new(NODE, &["kube-node"]);
    let subnets = ["11.0.1.0/24", "1100:0:0:1::/64"];
    site.kube.create_node(&Node::named(NODE).cidrs(&subnets).machine_id("another"));
    site.follow(&page.commands("When to choose it", "console"));

    let networks = page.blocks("The network of the cluster", "json");
    let [preset, chain] = networks.map_to(|json| site.network(json));
    for (network, host) in [(&preset, "2"), (&chain, "3")] {
        let expected = [format!("11.0.1.{host}/24"), format!("1100:0:0:1::{host}/64")];
        assert_eq!(site.call("ADD", host, "", network).ips(), expected);
    }
    let leases = site.host.path("/run/container-ipam-state/k8snet/k8snet");
    let leases = ipam_testkit::world::names(&leases);
    assert_eq!(leases[..4], ["11.0.1.2", "11.0.1.3", "1100:0:0:1::2", "1100:0:0:1::3"]);
    // Either releases what the other gave.
    site.call("DEL", "2", "", &chain).success();
    site.call("DEL", "3", "", &preset).success();

    let network = site.network(page.blocks("IPv4 for some namespaces", "json")[0]);
    let families = |args: &str| site.call("ADD", "4", args, &network).ips().len();
    assert_eq!(families("IgnoreUnknown=1;K8S_POD_NAMESPACE=new-application"), 1);
    assert_eq!(families("IgnoreUnknown=1;K8S_POD_NAMESPACE=old-application"), 2);

    site.follow(&page.commands("A secondary network", "console"));
    let network = site.network(page.blocks("A secondary network", "json")[0]);
    let addresses = ["172.20.2.2/24", "fd00::2:0:2/96"];
    assert_eq!(site.call("ADD", "5", "", &network).ips(), addresses);

    let selector = with(&preset, "type", "ipam-ds-kube-node");
    let answer = site.call("ADD", "6", "", &selector).success();
    let shown: Value = serde_json::from_str(page.blocks("What it answers", "json")[0]).unwrap();
    assert_eq!(answer["pools"], shown["pools"]);

    let file = site.host.path("/etc/cni/net.d/10-k8snet.conf");
    let mut plugin = chain.clone();
    plugin["type"] = "bridge".into();
    fs::write(file, plugin.to_string()).unwrap();
    let commands = page.commands("Trying it", "console");
    let script: Vec<&str> = commands.iter().map(|(command, _)| &**command).collect();
    let printed: Value = serde_json::from_str(&site.shell(&script.join("\n"))).unwrap();
    assert_eq!(printed, shown["pools"]);
    assert!(site.shell("ipam-delegated explain k8snet").contains("11.0.1.0/24"));
    assert!(site.shell("ipam-delegated lint k8snet").contains("ipam-ds-kube-node"));
}

#[test]
fn the_kubelets_credentials_may_read_its_own_node() {
    const NODE: &str = "of-a-kubelet";
    let page = readme();
    let site = Site::new(NODE, &[]);
    site.kube.create_node(&Node::named(NODE).cidrs(&["11.0.2.0/24"]));
    let network = site.example("75-ipam-delegated-kube-node.conflist");
    let key = format!("{{{}}}", site.here(page.blocks("The API server", "json")[0]));
    let key: Value = serde_json::from_str(&key).unwrap();
    assert_eq!(network["ipam"]["kubeconfig"], key["kubeconfig"]);
    let requests = site.kube.requests_of(&format!("system:node:{NODE}")).len();
    assert_eq!(site.call("ADD", "c1", "", &network).ips(), ["11.0.2.2/24"]);
    assert_eq!(site.call("ADD", "c2", "", &network).ips(), ["11.0.2.3/24"]);
    assert_eq!(site.kube.requests_of(&format!("system:node:{NODE}")).len(), requests + 1);
    for container in ["c1", "c2"] {
        site.call("DEL", container, "", &network).success();
    }
    assert_eq!(network["ipam"]["dataDir"], json!("/run/container-ipam-state/k8snet"));
}

#[test]
fn the_preset_takes_the_place_of_kube_node_and_gives_it_back() {
    const NODE: &str = "moved";
    let page = readme();
    let site = Site::new(NODE, &[]);
    site.kube.create_node(&Node::named(NODE).cidrs(&["11.0.3.0/24"]));
    let mut network = site.network(page.blocks("The network of the cluster", "json")[0]);
    network["type"] = "bridge".into();
    // As kube-node hands it on.
    let mut theirs = network.clone();
    theirs["ipam"] = json!({
        "type": "host-local", "dataDir": network["ipam"]["dataDir"],
        "ranges": [[{"subnet": "11.0.3.0/24"}]],
    });
    let file = site.host.path("/etc/cni/net.d/10-k8snet.conf");
    fs::write(file, network.to_string()).unwrap();
    site.assert_there_and_back(
        "kube-node",
        &moving(),
        ipam_delegated::presets::KUBE_NODE_DIFFERENCES[1],
        [&network, &theirs],
        ["11.0.3.2/24", "11.0.3.3/24", "11.0.3.4/24"],
    );
    let leases =
        ipam_testkit::world::names(&site.host.path("/run/container-ipam-state/k8snet/k8snet"));
    assert!(!leases.iter().any(|name| name.parse::<IpAddr>().is_ok()), "{leases:?}");
}

#[test]
fn the_page_lists_what_the_preset_says_that_changes() {
    assert_eq!(moving().items("Differences"), ipam_delegated::presets::KUBE_NODE_DIFFERENCES);
}

/// A page that shows as many as a test expects.
trait Shown {
    fn map_to<T, const N: usize>(&self, map: impl Fn(&str) -> T) -> [T; N];
}

impl Shown for Vec<&str> {
    #[track_caller]
    fn map_to<T, const N: usize>(&self, map: impl Fn(&str) -> T) -> [T; N] {
        assert_eq!(self.len(), N);
        std::array::from_fn(|i| map(self[i]))
    }
}
