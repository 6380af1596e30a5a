//! The commands and networks of the README, with the program and an API server.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::etcd::ClusterId;
use ipam_testkit::kube::{self, Kube, Kubeconfig, Login};
use ipam_testkit::pages::{CONFLIST, Page, Shell};
use ipam_testkit::whereabouts::{Crds, Objects, RESERVATIONS, collection};
use ipam_testkit::world::{Outcome, start, until, wait, with, without};
use serde_json::{Value, json};

use crate::common::changing;

const KUBECONFIG: &str = "/etc/cni/net.d/ipam-delegated.d/kubeconfig";
const NAMESPACE: &str = "kube-system";

fn readme() -> Page {
    Page::read("delegates/ipam-da-kube/README.md")
}

/// A shell in which `kubectl` may do everything in a cluster.
struct Site<'a> {
    kube: &'a Kube,
    shell: Shell,
}

impl<'a> Site<'a> {
    fn of(kube: &'a Kube) -> Self {
        let mut shell = Shell::new("ipam-da-kube");
        symlink(kube::kubectl(), shell.world.path("bin/kubectl")).unwrap();
        let admin = Kubeconfig::of(kube, &kube.admin()).write(&shell.world.path("admin"));
        shell.set("KUBECONFIG", admin.to_str().unwrap());
        shell.set("HOME", shell.world.path("").to_str().unwrap());
        shell.keep(KUBECONFIG);
        let site = Self { kube, shell };
        site.log_in(&kube.admin());
        site
    }

    /// Writes the kubeconfig that the page names.
    fn log_in(&self, login: &Login) {
        Kubeconfig::of(self.kube, login).write(Path::new(&self.shell.file(KUBECONFIG)));
    }

    fn objects(&self) -> Objects {
        Objects::of(self.kube, NAMESPACE)
    }

    /// A network of the page, on a node.
    fn network(&self, json: &str, node: &str) -> Value {
        let json = json.replace(KUBECONFIG, &self.shell.file(KUBECONFIG));
        let network: Value = serde_json::from_str(&json).unwrap();
        let network = with(&network, "stateDir", self.shell.world.path(node).to_str().unwrap());
        with(&network, "node", node)
    }

    /// A call for a pod of the namespace `shop`.
    fn call(&self, verb: &str, container: &str, pod: &str, network: &Value) -> Outcome {
        let program = network["ipam"]["type"].as_str().unwrap();
        let world = &self.shell.world;
        let mut command = world.command_of(&world.path("bin").join(program), verb, container);
        command.env("CNI_ARGS", format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}"));
        wait(start(command, network))
    }
}

#[test]
fn the_commands_print_what_is_shown() {
    let site = Site::of(Crds::shipped().served());
    let page = readme();
    let network = page.blocks("Example", "json")[0];
    for (container, pod, node) in [("3f9c1e", "web-0", "rack1-7"), ("c0ffee", "db-0", "rack2-1")] {
        let network = with(&site.network(network, node), "type", "ipam-da-kube");
        site.call("ADD", container, pod, &without(&network, &["delegates"])).success();
    }
    let mut plugin = with(&site.network(network, "rack1-7"), "type", "ipam-da-kube");
    plugin.as_object_mut().unwrap().remove("name");
    let conflist = json!({"cniVersion": "1.0.0", "name": "podnet", "plugins": [plugin]});
    fs::write(site.shell.file(CONFLIST), conflist.to_string()).unwrap();

    site.shell.try_all(&page.commands_of("State", "kubectl"));
    site.shell.try_all(&page.commands_of("Verbs", "/opt/cni/bin/ipam-da-kube "));
    assert_eq!(site.objects().held().len(), 2);
}

#[test]
fn the_networks_work() {
    let site = Site::of(Crds::shipped().served());
    let page = readme();
    let networks = page.blocks("Example", "json");
    assert_eq!(networks.len(), 2, "in a chain, and without one");
    let namespace = site.kube.create_namespace();
    for (i, network) in (2..).zip(networks) {
        let mut network = site.network(network, "rack1-7");
        network["ipam"]["kube"]["namespace"] = json!(namespace);
        let given = site.call("ADD", &format!("c{i}"), "web-0", &network).success();
        assert_eq!(given["ips"][0]["address"], format!("10.225.0.{i}/20"), "{network}");
    }
}

#[test]
fn the_example_works_with_the_rights_of_the_page_and_uses_each() {
    let kube = changing();
    let site = Site::of(&kube);
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    symlink(deploy, site.shell.world.path("deploy")).unwrap();
    for (command, _) in readme().commands_of("Deploying", "kubectl apply") {
        site.shell.try_all(&[(format!("{command} >applied"), String::new())]);
    }
    let account = site.kube.existing_service_account(NAMESPACE, "ipam-delegated").login();
    site.log_in(&account);
    until("the rights count, and the kinds are served", || {
        let path = collection(NAMESPACE, RESERVATIONS);
        site.kube.client(&account).ask("GET", &path, b"").status == 200
    });
    let before = site.kube.requests_of(&account.user).len();

    let example = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/75-ipam-delegated-kube.conflist");
    let conflist: Value = serde_json::from_slice(&fs::read(example).unwrap()).unwrap();
    let mut network = conflist["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        network[key] = conflist[key].clone();
    }
    let network = site.network(&network.to_string(), "rack1-7");
    let call = |verb: &str, network: &Value| site.call(verb, "3f9c1e", "web-0", network);
    let given = call("ADD", &network).success();
    let address = |i: usize| given["ips"][i]["address"].as_str().unwrap();
    assert_eq!([address(0), address(1)], ["10.225.0.2/20", "fd00:225::2/64"]);
    assert_eq!(call("ADD", &network).success(), given);
    let mut checked = network.clone();
    checked["prevResult"] = given;
    call("CHECK", &checked).success();
    let mut newest = network.clone();
    newest["cniVersion"] = json!("1.1.0");
    site.call("STATUS", "", "", &newest).success();
    // The record names the store.
    call("DEL", &without(&network, &["ranges", "kube", "delegates"])).success();
    assert!(site.objects().held().is_empty() && site.objects().reservations().is_empty());
    call("ADD", &network).success();
    let mut asking = network.clone();
    asking["args"] = json!({"cni": {"ips": ["10.225.0.2"]}});
    let (code, text) = site.call("ADD", "c0ffee", "db-0", &asking).failure();
    assert!(
        code == 102 && text.contains("held by 3f9c1e/eth0 of pod shop/web-0 of node "),
        "{code}: {text}"
    );
    newest["cni.dev/valid-attachments"] = json!([]);
    site.call("GC", "", "", &newest).success();
    let alone = with(&without(&network, &["delegates"]), "type", "ipam-da-kube");
    assert!(site.shell.list(&alone).status.success());

    let used: BTreeSet<(String, String)> = site.kube.requests_of(&account.user)[before..]
        .iter()
        .map(|request| {
            assert!(request.code < 500 && request.code != 403, "{request:?}");
            let path = request.path.split('?').next().unwrap();
            let mut parts = path.split('/').skip_while(|part| *part != NAMESPACE);
            let is_namespace = path.ends_with(&format!("/namespaces/{NAMESPACE}"));
            let own = if is_namespace { Some("namespaces") } else { parts.nth(1) };
            (own.unwrap_or(path).to_owned(), request.verb.clone())
        })
        .collect();
    assert_eq!(used, granted());
}

/// The kinds of objects and verbs in the table of rights.
fn granted() -> BTreeSet<(String, String)> {
    let page = readme();
    let rows = page.section("Rights").lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| {
        let mut cells = row.trim_matches(['|', ' ']).split(" | ");
        let kind = cells.next().unwrap().trim_matches('`');
        let verbs = cells.next().unwrap().split(", ");
        verbs.map(|verb| (kind.to_owned(), verb.to_owned())).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn after_a_restore_the_commands_give_nothing_away_that_is_held() {
    let kube = changing();
    Crds::shipped().install(&kube);
    let (site, namespace) = (Site::of(&kube), kube.create_namespace());
    let objects = Objects::of(&kube, &namespace);
    let network = json!({"cniVersion": "1.0.0", "name": "racknet", "type": "bridge", "ipam": {
        "ranges": [[{"subnet": "10.225.0.0/16"}]],
        "kube": {"kubeconfig": site.shell.file(KUBECONFIG), "namespace": namespace}}});
    let given = site.shell.assert_reasserted(
        &network,
        &readme().commands_of("A restored server", "/opt/cni/bin/ipam-delegated reassert"),
        || site.kube.etcd().snapshot(),
        |snapshot| {
            site.kube.etcd().restore(snapshot, ClusterId::Other);
            site.kube.restart();
        },
        || objects.held().iter().map(|held| held.address.to_string()).collect(),
    );
    assert!(!["10.225.0.2/16", "10.225.0.3/16"].contains(&given[0].as_str()), "{given:?}");
}

#[test]
fn every_key_of_the_section_is_in_the_table() {
    readme().assert_table_is_of("Keys", "ipam-da-kube", "kube");
}
