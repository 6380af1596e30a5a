//! Containers that node-annotation gave addresses, before this delegate took its place: there is no record of
//! them, and the annotation says where their leases lie.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::doorway::Doorway;
use ipam_testkit::kube::Kubeconfig;
use ipam_testkit::world::{binary, host_local, names};
use serde_json::{Value, json};

use crate::common::Site;

/// An annotation with this folder.
fn annotation(folder: &Path) -> String {
    format!(r#"ranges: [[{{subnet: "16.0.0.0/24"}}]], dataDir: "{}""#, folder.display())
}

/// What host-local leaves of containers of the network `net`, each with one address.
fn leave(data_dir: &Path, containers: &[&str]) {
    let folder = data_dir.join("net");
    fs::create_dir_all(&folder).unwrap();
    for (number, container) in (2..).zip(containers) {
        fs::write(folder.join(format!("16.0.0.{number}")), format!("{container}\r\neth0")).unwrap();
    }
    fs::write(folder.join("last_reserved_ip.0"), "16.0.0.9").unwrap();
}

/// The addresses that are held there.
fn held(data_dir: &Path) -> Vec<String> {
    let mut names = names(&data_dir.join("net"));
    names.retain(|name| name.starts_with("16."));
    names
}

fn with_result(network: &Value, address: &str) -> Value {
    let mut network = network.clone();
    network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": address}]});
    network
}

/// A host that finds no API server, where nothing is remembered; and the ways to the addresses.
fn alone(site: &Site) -> [(&'static str, Value, Value); 3] {
    site.world.install(&host_local());
    let mut door = Doorway::to(site.kube.address());
    Kubeconfig::of(site.kube, &site.login)
        .server(&door.url())
        .write(&site.world.path("kubeconfig"));
    door.shut();
    [
        ("the preset", site.network(), json!({})),
        ("host-local by name", site.chain("host-local"), json!({})),
        ("host-local of the host", site.network(), json!({"nextipam": host_local()})),
    ]
}

#[test]
fn a_folder_that_is_not_allowed_fails_del_and_check_until_it_is() {
    let site = Site::bare();
    let folder = site.world.path("data");
    leave(&folder, &["c1", "c2", "c3"]);
    let node = ipam_testkit::kube::Node::named(&site.node);
    site.kube.create_node(&node.annotation(crate::common::ANNOTATION, &annotation(&folder)));
    site.conf(&json!({}));
    let network = site.network();
    let checked = with_result(&network, "16.0.0.2/24");
    for (verb, network) in [("DEL", &network), ("DEL", &checked), ("CHECK", &checked)] {
        let (code, text) = site.call_with(verb, "c1", network).failure();
        assert_eq!(code, 113, "{verb}: {text}");
        let parts = [
            "dataDir",
            folder.to_str().unwrap(),
            "dataDirs in /etc/cni/ipam-delegated.json",
            "ipam-delegated forget net c1 eth0 --yes",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{verb}: {text}");
    }
    assert_eq!(held(&folder).len(), 3);
    // An ADD took nothing, and its DEL says so.
    site.call("ADD", "new").failure();
    site.call("DEL", "new").success();

    // Who gives it up says so.
    let forget = |words: &[&str]| {
        site.typed(&binary("ipam-delegated"), &[&["forget", "net", "c2"], words].concat(), "")
    };
    assert_eq!(forget(&["--yes"]).exit, Some(1), "it names no interface");
    assert!(forget(&["eth0"]).stdout.contains("would forget c2/eth0"));
    assert_eq!(site.call("DEL", "c2").failure().0, 113);
    assert!(forget(&["eth0", "--yes"]).stdout.contains("forgot c2/eth0"));
    let told = site.call("DEL", "c2");
    assert!(told.stderr.contains("forgotten"), "{told:?}");
    told.success();
    assert_eq!(held(&folder).len(), 3);

    site.host.settings(&json!({"stateDir": site.world.path("state"), "dataDirs": [&folder]}));
    site.call_with("CHECK", "c1", &checked).success();
    site.call("DEL", "c1").success();
    assert_eq!(held(&folder), ["16.0.0.3", "16.0.0.4"]);
}

#[test]
fn what_was_read_last_counts_whatever_its_age() {
    let site = Site::bare();
    let folder = Path::new("/var/lib/cni/elsewhere");
    let node = ipam_testkit::kube::Node::named(&site.node);
    site.kube.create_node(&node.annotation(crate::common::ANNOTATION, &annotation(folder)));
    site.conf(&json!({}));
    let network = site.network();
    site.call("ADD", "new").success();
    leave(&site.host.path("/var/lib/cni/elsewhere"), &["new", "c1"]);
    // Neither an API server nor a way to it.
    fs::remove_file(site.world.path("kubeconfig")).unwrap();
    let memory = site.world.path("state/kubernetes/networks/net");
    let mut noted: Value = serde_json::from_slice(&fs::read(&memory).unwrap()).unwrap();
    noted["read"] = 1.into();
    fs::write(&memory, noted.to_string()).unwrap();
    site.call_with("CHECK", "c1", &with_result(&network, "16.0.0.3/24")).success();
    let outcome = site.call("DEL", "c1");
    assert!(outcome.stderr.contains("using the last value read"), "{outcome:?}");
    outcome.success();
    assert_eq!(held(&site.host.path("/var/lib/cni/elsewhere")), ["16.0.0.2"]);
    // What was read last is judged by the folders of now.
    site.host.settings(&json!({"stateDir": site.world.path("state"), "dataDirs": ["/srv"]}));
    for (verb, network) in [("DEL", &network), ("CHECK", &with_result(&network, "16.0.0.4/24"))] {
        let (code, text) = site.call_with(verb, "c2", network).failure();
        assert!(code == 113 && text.contains("dataDirs"), "{verb}: {code} {text}");
    }
}

#[test]
fn without_annotation_the_owner_is_looked_for_in_the_allowed_folders() {
    let site = Site::new("ranges: []");
    for (name, network, conf) in alone(&site) {
        site.conf(&conf);
        let folder = site.host.path("/var/lib/cni/some/where");
        leave(&folder, &["c1", "c2"]);
        site.call_with("CHECK", "c1", &with_result(&network, "16.0.0.2/24")).success();
        let outcome = site.call_with("DEL", "c1", &network);
        assert!(outcome.stderr.contains("/var/lib/cni/some/where"), "{name}: {outcome:?}");
        outcome.success();
        assert_eq!(held(&folder), ["16.0.0.3"], "{name}");
        // Again, and of a container that nobody knows.
        for container in ["c1", "c9"] {
            let outcome = site.call_with("DEL", container, &network);
            assert!(outcome.stderr.contains("no folder of dataDirs has a lease"), "{outcome:?}");
            outcome.success();
        }
        assert_eq!(held(&folder), ["16.0.0.3"], "{name}");
        let gone = site.call_with("CHECK", "c1", &with_result(&network, "16.0.0.2/24"));
        assert_eq!(gone.exit, Some(1), "{name}");
    }
    // Another address than the one that is held, which host-local does not mind.
    site.conf(&json!({}));
    let wrong = site.call_with("CHECK", "c2", &with_result(&site.network(), "16.0.0.9/24"));
    assert_eq!(wrong.failure().0, 104);
}

#[test]
fn a_folder_that_cannot_be_looked_into_is_an_error() {
    let site = Site::new("ranges: []");
    let (_, network, _) = alone(&site)[0].clone();
    // A disk that is not mounted.
    let link = site.host.path("/var/lib/cni/disk");
    symlink("/nowhere/at/all", &link).unwrap();
    let (code, text) = site.call_with("DEL", "c1", &network).failure();
    assert!(code == 113 && text.contains("/var/lib/cni/disk"), "{code}: {text}");
    assert!(text.contains("ipam-delegated forget net c1 eth0 --yes"), "{text}");
    fs::remove_file(&link).unwrap();
    // The same attachment in two folders: an allocator is sent to one.
    for folder in ["/var/lib/cni/one", "/var/lib/cni/two"] {
        leave(&site.host.path(folder), &["c1"]);
    }
    let (code, text) = site.call_with("DEL", "c1", &network).failure();
    assert!(code == 113 && text.contains("/one") && text.contains("/two"), "{code}: {text}");
    fs::remove_file(site.host.path("/var/lib/cni/two/net/16.0.0.2")).unwrap();
    site.call_with("DEL", "c1", &network).success();
    assert_eq!(held(&site.host.path("/var/lib/cni/one")), [""; 0]);
}

#[test]
fn a_folder_with_two_names_is_looked_into_by_the_one_of_the_network() {
    let site = Site::new("ranges: []");
    let (_, network, _) = alone(&site)[0].clone();
    // Whichever name comes first.
    for (name, other) in [("one", "a"), ("two", "z")] {
        let folder = site.host.path("/var/lib/cni").join(name);
        leave(&folder, &["c1"]);
        fs::rename(folder.join("net"), folder.join(other)).unwrap();
        symlink(other, folder.join("net")).unwrap();
        let outcome = site.call_with("DEL", "c1", &network);
        assert!(outcome.stderr.contains(&format!("/var/lib/cni/{name}")), "{outcome:?}");
        outcome.success();
        assert_eq!(held(&folder), [""; 0]);
    }
}
