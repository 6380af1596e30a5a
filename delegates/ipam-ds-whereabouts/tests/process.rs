//! The program in a chain on a host of its own, as the README shows it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use ipam_testkit::pages::Page;
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait};
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
        self.call_of(&binary("ipam-delegated"), verb, container, network)
    }

    /// A call of the chain under a name.
    fn call_of(&self, program: &Path, verb: &str, container: &str, network: &Value) -> Outcome {
        let mut network = network.clone();
        network["ipam"]["stateDir"] = self.world.path("state").to_str().unwrap().into();
        let outside = self.world.command_of(program, verb, container);
        let mut command = self.host.enter(program);
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, &network))
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

const PROVIDER_FILE: &str = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";

/// The network in the definition of the README under the name of the preset, with a pool.
fn named() -> Value {
    let mut network = defined();
    network["args"] = json!({"pool": "pool1"});
    let ipam = network["ipam"].as_object_mut().unwrap();
    ipam.remove("delegates");
    ipam.insert("type".to_owned(), "whereabouts".into());
    network
}

#[test]
fn the_provider_file_chooses_the_chain_of_the_preset_at_every_call() {
    let site = Site::new();
    site.world
        .allocator("ipam-da-phpipam", "10.5.0.2/24")
        .allocator("ipam-da-openwisp", "10.6.0.2/24");
    site.world.delegate("ipam-ds-kube-pod", "printf '{\"cniVersion\":\"1.0.0\"}'");
    site.world.install_as(&binary("ipam-delegated"), "whereabouts");
    let whereabouts = site.world.path("bin/whereabouts");
    let call = |verb: &str, container: &str, network: &Value| {
        site.call_of(&whereabouts, verb, container, network)
    };
    site.file(FLAT, &readme().json("The flat file"));
    for (provider, address) in
        [("phpipam", "10.5.0.2/24"), ("openwisp", "10.6.0.2/24"), ("", "192.168.2.225/28")]
    {
        site.file(PROVIDER_FILE, &json!({"ipamtype": provider, "ipampwd": "pa55"}));
        let outcome = call("ADD", &format!("c-{provider}"), &named());
        assert!(!format!("{outcome:?}").contains("pa55"), "{outcome:?}");
        let warns = outcome.stderr.contains("ipam.range is ignored: the pool \"pool1\" of ");
        assert_eq!(warns, !provider.is_empty(), "{outcome:?}");
        assert_eq!(outcome.ips(), [address]);
        if provider.is_empty() {
            continue;
        }
        let input = site.input();
        assert_eq!(input["prevResult"]["pools"], json!([{"name": "pool1"}]));
        let file = json!({"providerFile": PROVIDER_FILE});
        assert_eq!(input["ipam"][provider], file);
        let login = &readme().json("The flat file")["kubernetes"]["kubeconfig"];
        let pod = json!({"sticky": "name", "nameScope": "cluster", "kubeconfig": login});
        assert_eq!(input["ipam"]["pod"], pod);
        assert!(site.world.take_calls().contains(&"ipam-ds-kube-pod ADD".to_owned()));
    }
    // Each is released where it was taken, whatever the file says now.
    for provider in ["", "openwisp", "phpipam"] {
        call("DEL", &format!("c-{provider}"), &named()).ended_well();
    }
    assert_eq!(site.world.held(), [""; 0]);
}

#[test]
fn a_provider_without_a_pool_or_without_an_allocator_is_refused_before_any_allocator_runs() {
    let site = Site::new();
    site.file(PROVIDER_FILE, &json!({"ipamtype": "phpipam", "ipampwd": "pa55"}));
    let mut network = readme().json("Example");
    for (args, expected) in [
        (json!({}), "args.pool: missing"),
        (json!({"pool": "pool1"}), "its answer sets ipam.phpipam: ipam-da-kube accepts it only"),
    ] {
        network["args"] = args;
        let (_, text) = site.call("ADD", "c1", &network).failure();
        assert!(text.contains(expected) && !text.contains("pa55"), "{text}");
        assert_eq!(site.world.calls().len(), 0);
    }
    site.file(PROVIDER_FILE, &json!({"ipamtype": ""}));
    site.call("ADD", "c1", &network).success();
}

#[test]
fn a_provider_file_that_others_may_write_ends_each_call_without_a_record() {
    let site = Site::new();
    site.world.install_as(&binary("ipam-delegated"), "whereabouts");
    let whereabouts = site.world.path("bin/whereabouts");
    site.file(FLAT, &readme().json("The flat file"));
    site.call_of(&whereabouts, "ADD", "with-record", &named()).success();
    site.world.take_calls();
    site.file(PROVIDER_FILE, &json!({"ipamtype": ""}));
    for (spoil, advice) in [
        (format!("chmod 666 {PROVIDER_FILE}"), format!("chmod go-w {PROVIDER_FILE}")),
        (
            format!("chmod 600 {PROVIDER_FILE}; chown 1 {PROVIDER_FILE}"),
            format!("chown root {PROVIDER_FILE}"),
        ),
    ] {
        site.host.shell(&spoil);
        for verb in ["ADD", "DEL"] {
            // The file decides which store may have something.
            let (code, text) = site.call_of(&whereabouts, verb, "before", &named()).failure();
            assert!(code == 7 && text.contains(&advice), "{verb}: {text}");
            assert_eq!(site.world.calls().len(), 0);
        }
    }
    site.call_of(&whereabouts, "DEL", "with-record", &named()).ended_well();
    assert_eq!(site.world.held(), [""; 0]);
}
