//! kube-node's own cache, `kube-node.json`: when it is read, and when it is written.

use std::fs;
use std::path::Path;

use ipam_testkit::kube::Kubeconfig;
use ipam_testkit::node_site::{by, subnets};
use ipam_testkit::world::{Host, names, with, without};
use serde_json::{Value, json};

use crate::common::Site;

/// What kube-node leaves of a node that had 10.77.0.0/24.
fn write_left(site: &Site, folder: &Path) {
    let content = json!({
        "type": "host-local", "dataDir": site.world.path("data"),
        "ranges": [[{"subnet": "10.77.0.0/24"}]],
    });
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("kube-node.json"), content.to_string()).unwrap();
}

#[test]
fn it_serves_while_the_server_is_away_and_nothing_is_remembered() {
    let site = Site::new("left-away", &["11.0.1.0/24"]);
    let network = site.network();
    write_left(&site, &site.world.path("data"));
    site.calls_nobody();
    let outcome = site.call_briefly("ADD", "c1", &network);
    let file = site.world.path("data/kube-node.json").display().to_string();
    for part in ["[WARN]", "using kube-node's file", &file, "does not answer"] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
    assert_eq!(outcome.ips(), ["10.77.0.2/24"]);
    let told = site.select_briefly(&network).json();
    assert_eq!(told["remembered"], format!("spec.podCIDRs, from kube-node's file {file}"));
    // It is not taken for what the server has said.
    assert!(!site.memory("k8snet").exists());
    site.calls_home();
    assert_eq!(site.call("ADD", "c2", &network).ips(), ["11.0.1.2/24"]);
    assert_eq!(site.requests().len(), 1);
}

#[test]
fn it_is_not_read_where_the_server_answers_or_refuses() {
    let site = Site::new("left-unread", &["11.0.1.0/24"]);
    write_left(&site, &site.world.path("data"));
    Kubeconfig::of(site.kube, &site.kube.user()).write(&site.kubeconfig_path());
    let (code, text) = site.select(&site.network()).failure();
    assert!(code == 103 && text.contains("(403)"), "{code}: {text}");
    site.calls_home();
    assert_eq!(subnets(&site.select(&site.network()).success()), ["11.0.1.0/24"]);
}

#[test]
fn what_we_remember_comes_before_it() {
    let site = Site::new("left-later", &["11.0.1.0/24"]);
    site.select(&site.network()).success();
    write_left(&site, &site.world.path("data"));
    site.age_out("k8snet");
    site.calls_nobody();
    let outcome = site.select(&site.network());
    assert!(!outcome.stderr.contains("kube-node.json"), "{}", outcome.stderr);
    assert_eq!(subnets(&outcome.success()), ["11.0.1.0/24"]);
}

#[test]
fn it_is_written_as_kube_node_would_for_whoever_goes_back() {
    let site = Site::dual("left-written");
    site.call("ADD", "c1", &site.network()).success();
    let data = site.world.path("data").display().to_string();
    let expected = format!(
        r#"{{"type":"host-local","dataDir":"{data}","ranges":[[{{"subnet":"11.0.1.0/24"}}],[{{"subnet":"1100:0:0:1::/64"}}]]}}"#
    );
    assert_eq!(site.data()["kube-node.json"], expected);
    // Both families stand in it whatever a pod gets.
    let listing = with(&site.network(), "ipv4-namespaces", json!([]));
    site.age_out("k8snet");
    assert_eq!(site.call("ADD", "c2", &listing).ips(), ["1100:0:0:1::3/64"]);
    assert_eq!(site.data()["kube-node.json"], expected);
    let names: Vec<String> = site.data().into_keys().filter(|name| !name.contains('/')).collect();
    assert_eq!(names, ["kube-node.json"]);
}

#[test]
fn it_is_nobodys_where_networks_share_the_folder() {
    let site = Site::new("left-shared", &["11.0.1.0/24"]);
    fs::create_dir(site.world.path("data/other")).unwrap();
    write_left(&site, &site.world.path("data"));
    let before = site.data();
    site.calls_nobody();
    let (code, text) = site.call_briefly("ADD", "c1", &site.network()).failure();
    assert_eq!(code, 105, "{text}");
    site.calls_home();
    assert_eq!(site.call("ADD", "c1", &site.network()).ips(), ["11.0.1.2/24"]);
    assert_eq!(site.data()["kube-node.json"], before["kube-node.json"]);
}

#[test]
fn what_is_none_of_kube_nodes_is_not_read() {
    let site = Site::new("left-garbage", &["11.0.1.0/24"]);
    site.calls_nobody();
    let texts = [
        "",
        "{",
        "[]",
        r#"{"type":"other","ranges":[[{"subnet":"10.77.0.0/24"}]]}"#,
        r#"{"type":"host-local"}"#,
        r#"{"type":"host-local","ranges":[]}"#,
        r#"{"type":"host-local","ranges":[[{"subnet":"blah"}]]}"#,
        r#"{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"},{"subnet":"10.78.0.0/24"}]]}"#,
    ];
    let add = &|(number, text): (usize, &str)| {
        let name = format!("net{number}");
        let folder = site.world.path("data").join(&name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("kube-node.json"), text).unwrap();
        let mut network = with(&site.network(), "dataDir", json!(folder));
        network["name"] = name.into();
        let (code, found) = site.call_briefly("ADD", "c1", &network).failure();
        assert_eq!(code, 105, "{text}: {found}");
        assert_eq!(names(&folder), ["kube-node.json"], "{text}");
    };
    std::thread::scope(|scope| {
        texts.into_iter().enumerate().for_each(|text| drop(scope.spawn(move || add(text))));
    });
}

/// Calls the preset without `dataDir` in a namespace with a `/var/lib/cni` of its own.
fn add_by_default(host: &Host, site: &Site, container: &str) -> ipam_testkit::world::Outcome {
    let network: Value = without(&site.network(), &["dataDir", "stateDir"]);
    let network = with(&network, "timeout", "4s");
    let call = site.command("ADD", container);
    site.run(by(host.enter("env"), &call), &network)
}

#[test]
fn the_folder_of_leases_itself_is_read_but_not_written() {
    let site = Site::new("left-default", &["11.0.1.0/24"]);
    let host = Host::new();
    let leases = host.path("/var/lib/cni/networks/k8snet");
    // kube-node's place where no dataDir is named: among host-local's leases.
    write_left(&site, &leases);
    let before = fs::read_to_string(leases.join("kube-node.json")).unwrap();
    site.calls_nobody();
    assert_eq!(add_by_default(&host, &site, "c1").ips(), ["10.77.0.2/24"]);
    site.calls_home();
    assert_eq!(add_by_default(&host, &site, "c2").ips(), ["11.0.1.2/24"]);
    assert_eq!(fs::read_to_string(leases.join("kube-node.json")).unwrap(), before);
    fs::remove_file(leases.join("kube-node.json")).unwrap();
    fs::remove_dir_all(host.path("/var/lib/cni/ipam-delegated/kubernetes")).unwrap();
    assert_eq!(add_by_default(&host, &site, "c3").ips(), ["11.0.1.3/24"]);
    assert!(!leases.join("kube-node.json").exists());
    assert!(!host.path("/var/lib/cni/networks/kube-node.json").exists());
}
