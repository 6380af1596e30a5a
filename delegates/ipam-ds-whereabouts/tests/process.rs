//! The program in a chain on a host of its own, as the README shows it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipam_testkit::pages::Page;
use ipam_testkit::world::{Host, Outcome, World, binary};
use serde_json::{Value, json};

/// A host with the selector, and with an allocator that gives one address and notes its input.
struct Site {
    world: World,
    host: Host,
}

const FLAT: &str = "/etc/cni/net.d/whereabouts.d/whereabouts.conf";

impl Site {
    fn new() -> Self {
        let (world, host) = (World::new(), Host::new());
        world.install(&binary("ipam-ds-whereabouts")).allocator("ipam-da-kube", "192.168.2.225/28");
        let site = Self { world, host };
        let login = &readme().json("The flat file")["kubernetes"]["kubeconfig"];
        site.file(login.as_str().unwrap(), &json!({}));
        site
    }

    fn file(&self, path: &str, content: &Value) {
        let path = self.host.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content.to_string()).unwrap();
    }

    fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        let mut network = network.clone();
        network["ipam"]["stateDir"] = self.world.path("state").to_str().unwrap().into();
        self.host.call(&self.world, verb, container, &network)
    }

    /// The last input of the allocator.
    fn input(&self) -> Value {
        self.world.calls().pop().unwrap()["stdin"].clone()
    }
}

fn readme() -> Page {
    Page::read("delegates/ipam-ds-whereabouts/README.md")
}

/// The network in the definition of the README, for the chain of the README.
fn defined() -> Value {
    let definition = readme().blocks("Example", "yaml")[0].to_owned();
    let (_, config) = definition.split_once("config: '").unwrap();
    let mut network: Value =
        serde_json::from_str(config.trim_end().trim_end_matches('\'')).unwrap();
    assert_eq!(network["ipam"]["type"], "whereabouts");
    for key in ["type", "delegates"] {
        network["ipam"][key] = readme().json("Example")["ipam"][key].clone();
    }
    network
}

#[test]
fn a_definition_as_it_is_gets_the_login_of_the_flat_file() {
    let site = Site::new();
    let (code, text) = site.call("ADD", "c1", &defined()).failure();
    assert!(code == 7 && text.contains("ipam.kubernetes.kubeconfig: missing"), "{text}");
    site.file(FLAT, &readme().json("The flat file"));
    assert_eq!(site.call("ADD", "c1", &defined()).ips(), ["192.168.2.225/28"]);
    let input = site.input();
    let login = json!({"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"});
    assert_eq!(input["ipam"]["kube"], login);
    let range = json!({
        "subnet": "192.168.2.224/28", "rangeStart": "192.168.2.225",
        "rangeEnd": "192.168.2.238", "rules": "whereabouts",
    });
    assert_eq!(input["prevResult"]["pools"], json!([{"ranges": [range], "strategy": "lowest"}]));
    // An attachment from before the move, whose configuration a runtime has stripped.
    let mut stripped = defined();
    stripped["ipam"].as_object_mut().unwrap().remove("range");
    site.call("DEL", "before", &stripped).ended_well();
    assert_eq!(site.input()["ipam"]["kube"], login);
}

#[test]
fn a_network_in_etcd_beside_the_flat_file_as_it_is_installed_must_name_its_datastore() {
    let site = Site::new();
    let flat = &json!({"kubernetes": readme().json("The flat file")["kubernetes"]});
    site.file(FLAT, flat);
    let mut network = defined();
    network["ipam"]["etcd_host"] = "etcd:2379".into();
    let (code, text) = site.call("ADD", "c1", &network).failure();
    let expected = "ipam.etcd_host: a kubeconfig is named, too: the store is ambiguous";
    assert!(code == 7 && text.contains(expected) && text.contains("set datastore"), "{text}");
    assert_eq!(site.world.calls().len(), 0);
    network["ipam"]["datastore"] = "kubernetes".into();
    site.call("ADD", "c1", &network).success();
    assert_eq!(site.input()["ipam"]["kube"], flat["kubernetes"]);
}

#[test]
fn the_chain_by_hand_needs_no_file() {
    let site = Site::new();
    let network = readme().json("Example");
    assert_eq!(site.call("ADD", "c1", &network).ips(), ["192.168.2.225/28"]);
    let input = site.input();
    let range = &input["prevResult"]["pools"][0]["ranges"][0];
    assert_eq!(range["exclude"], json!(["192.168.2.228/30", "192.168.2.236/32"]));
    assert_eq!(input["ipam"]["kube"], readme().json("Example")["ipam"]["kubernetes"]);
}

#[test]
fn the_first_flat_file_counts_and_root_alone_may_have_written_it() {
    let site = Site::new();
    site.host.shell("mkdir -p /etc/kubernetes && mount -t tmpfs tmpfs /etc/kubernetes");
    let login = |file: &str| json!({"kubernetes": {"kubeconfig": file}});
    let named = site.host.path("/etc/cni/own.conf");
    site.file(FLAT, &login("/etc/cni/third"));
    let mut network = defined();
    network["ipam"]["configuration_path"] = "/etc/cni/own.conf".into();
    for (file, kubeconfig) in [
        (FLAT, "/etc/cni/third"),
        ("/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf", "/etc/cni/second"),
        ("/etc/cni/own.conf", "/etc/cni/first"),
    ] {
        site.file(kubeconfig, &json!({}));
        site.file(file, &login(kubeconfig));
        site.call("ADD", "c1", &network).success();
        assert_eq!(site.input()["ipam"]["kube"]["kubeconfig"], kubeconfig);
    }
    fs::set_permissions(&named, fs::Permissions::from_mode(0o666)).unwrap();
    let (code, text) = site.call("ADD", "c1", &network).failure();
    assert!(
        code == 7 && text.contains("ipam.configuration_path: /etc/cni/own.conf is wr"),
        "{text}"
    );
    assert!(text.contains("chmod go-w /etc/cni/own.conf"), "{text}");
    network["ipam"]["configuration_path"] = "/etc/cni/net.d/whereabouts.d".into();
    let (_, text) = site.call("ADD", "c1", &network).failure();
    assert!(text.contains("ipam.configuration_path: cannot read /etc/cni/net.d/"), "{text}");
}

#[test]
fn a_provider_of_the_fork_is_refused_before_any_allocator_runs() {
    let site = Site::new();
    let file = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";
    site.file(file, &json!({"ipamtype": "phpipam", "ipampwd": "pa55"}));
    let (code, text) = site.call("ADD", "c1", &readme().json("Example")).failure();
    let expected = format!("{file}.ipamtype: the provider phpipam is not supported yet");
    assert!(code == 7 && text.contains(&expected) && !text.contains("pa55"), "{text}");
    assert_eq!(site.world.calls().len(), 0);
    site.file(file, &json!({"ipamtype": ""}));
    site.call("ADD", "c1", &readme().json("Example")).success();
}

#[test]
fn a_provider_file_that_others_may_write_is_not_trusted_and_no_release_needs_it() {
    let site = Site::new();
    let file = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";
    site.file(file, &json!({"ipamtype": "phpipam"}));
    for (spoil, advice) in [
        (format!("chmod 666 {file}"), format!("chmod go-w {file}")),
        (format!("chmod 600 {file}; chown 1 {file}"), format!("chown root {file}")),
    ] {
        site.host.shell(&spoil);
        let (code, text) = site.call("ADD", "c1", &readme().json("Example")).failure();
        assert!(code == 7 && text.contains(&advice), "{text}");
        assert_eq!(site.world.calls().len(), 0);
    }
    site.call("DEL", "before", &readme().json("Example")).ended_well();
    assert_eq!(site.input()["ipam"]["kube"], readme().json("Example")["ipam"]["kubernetes"]);
}
