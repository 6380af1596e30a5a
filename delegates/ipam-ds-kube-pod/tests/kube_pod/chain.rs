//! The selector in a chain: between another selector and an allocator.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::world::{Outcome, binary};
use serde_json::{Value, json};

use crate::site::Site;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-ds-kube-pod");

/// A machine with the programs of a chain.
fn machine() -> Site {
    let site = Site::new();
    site.world.install(Path::new(PROGRAM));
    for program in ["ipam-delegated", "ipam-ds-static", "ipam-da-local"] {
        site.world.install(&binary(program));
    }
    site
}

fn network(site: &Site, pod: &Value) -> Value {
    let mut network =
        site.world.network(json!(["ipam-ds-static", "ipam-ds-kube-pod", "ipam-da-local"]));
    let ipam = &mut network["ipam"];
    ipam["pod"] = pod.clone();
    ipam["kubeconfig"] = json!(site.world.path("kubeconfig"));
    ipam["pools"] = json!([
        {"name": "blue", "ranges": [{"subnet": "10.1.0.0/24"}]},
        {"name": "red", "ranges": [{"subnet": "10.2.0.0/24"}]},
    ]);
    network
}

fn call(site: &Site, verb: &str, args: &str, network: &Value) -> Outcome {
    let mut command = site.world.command(verb, "c1");
    command.env("CNI_ARGS", args);
    site.run(command, network)
}

#[test]
fn a_pod_gets_the_address_that_it_asks_for_and_gives_it_back_without_the_server() {
    let site = machine();
    let section = json!({"pools": ["blue", "red"], "addresses": true});
    let own = network(&site, &section);
    let args = site.annotated(
        "a",
        &json!({"ipam-delegated/pool": "red", "ipam-delegated/address": "10.2.0.9"}),
    );
    assert_eq!(call(&site, "ADD", &args, &own).ips(), ["10.2.0.9/24"]);
    // The pod has gone, and the configuration is stripped.
    site.delete_pod("a");
    let asked = site.requests().len();
    let mut stripped = own.clone();
    stripped["ipam"] = json!({"type": "ipam-delegated", "stateDir": own["ipam"]["stateDir"]});
    call(&site, "DEL", "", &stripped).success();
    assert_eq!(site.requests().len(), asked);
    let args = site.annotated("b", &json!({"ipam-delegated/address": "10.1.0.7"}));
    assert_eq!(call(&site, "ADD", &args, &own).ips(), ["10.1.0.7/24"]);
    call(&site, "DEL", &args, &own).success();
}

#[test]
fn an_allocator_that_keeps_no_names_refuses_a_sticky_name_and_takes_nothing() {
    let site = machine();
    let own = network(&site, &json!({"sticky": "name", "pools": ["blue", "red"]}));
    let args = site.annotated("a", &json!({"podname": "db"}));
    let (code, text) = call(&site, "ADD", &args, &own).failure();
    assert_eq!(code, 7, "{text}");
    let name = format!("{}/db", site.namespace);
    for part in ["ipam-da-local: prevResult.pools[0].sticky", &name, "ipam-da-kube"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let args = site.annotated("b", &json!({}));
    assert_eq!(call(&site, "ADD", &args, &own).ips().len(), 1);
    call(&site, "DEL", &args, &own).success();
    // STATUS says it before a pod comes.
    let mut status = own;
    status["cniVersion"] = json!("1.1.0");
    let (code, text) = call(&site, "STATUS", "", &status).failure();
    assert!(text.contains("this allocator keeps no address for a name"), "{code} {text}");
}

/// The JSON of the page, by its order.
fn shown(number: usize) -> Value {
    let page = include_str!("../../README.md");
    let block = page.split("```json\n").nth(number + 1).unwrap().split("```").next().unwrap();
    serde_json::from_str(block).unwrap()
}

#[test]
fn the_preset_whereabouts_gives_the_pod_of_the_page_its_name() {
    let site = machine();
    let world = &site.world;
    world.install(&binary("ipam-ds-whereabouts")).allocator("ipam-da-kube", "192.168.2.225/28");
    symlink("ipam-delegated", world.path("bin/whereabouts")).unwrap();
    let mut network = shown(0);
    let login = json!({"kubeconfig": world.path("kubeconfig")});
    network["ipam"]["kubernetes"] = login;
    network["ipam"]["stateDir"] = json!(world.path("state"));
    let add = |container: &str, args: &str, network: &Value| {
        let mut command = world.command_of(&world.path("bin/whereabouts"), "ADD", container);
        command.env("CNI_IFNAME", "net1").env("CNI_ARGS", args);
        assert_eq!(site.run(command, network).ips(), ["192.168.2.225/28"]);
        let call = world.calls().pop().unwrap();
        call["stdin"]["prevResult"]["pools"][0].clone()
    };
    let args = site.annotated(
        "test",
        &json!({
            "k8s.v1.cni.cncf.io/networks": "whereabouts-conf", "podname": "test234",
        }),
    );
    let pool = add("c1", &args, &network);
    assert_eq!((&pool["sticky"], &pool["keep"]), (&json!("test234"), &json!("1h")));
    assert_eq!(pool["ranges"][0]["subnet"], "192.168.2.224/28");
    assert_eq!(site.requests(), ["get /api/v1/namespaces/NS/pods/test 200"]);
    // An unchanged network runs without this program, and asks for nothing.
    fs::remove_file(world.path("bin/ipam-ds-kube-pod")).unwrap();
    network["ipam"].as_object_mut().unwrap().remove("pod");
    assert_eq!(add("c2", &args, &network).get("sticky"), None);
    assert_eq!(site.requests().len(), 1);
}

#[test]
fn the_tenants_of_the_page_get_their_pools() {
    let site = machine();
    site.world.install_as(&binary("ipam-da-local"), "ipam-da-kube");
    let mut own = shown(1);
    own["ipam"]["kube"]["kubeconfig"] = json!(site.world.path("kubeconfig"));
    own["ipam"]["stateDir"] = json!(site.world.path("state"));
    own["ipam"]["dataDir"] = json!(site.world.path("data"));
    let bank = json!({"ipam-delegated/pool": "bank", "ipam-delegated/address": "10.231.2.40"});
    let args = site.annotated("teller", &bank);
    assert_eq!(call(&site, "ADD", &args, &own).ips(), ["10.231.2.40/24"]);
    call(&site, "DEL", &args, &own).success();
    let args = site.annotated("clerk", &json!({}));
    assert_eq!(call(&site, "ADD", &args, &own).ips(), ["10.231.1.2/24"]);
}
