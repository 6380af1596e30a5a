//! The program in a chain: what an attachment's life does to the records.

use std::fs;
use std::path::Path;
use std::process::Command;

use ipam_testkit::node::addresses;
use ipam_testkit::openwisp::{ORGANIZATION, TOKEN};
use ipam_testkit::world::{World, binary, wait};
use serde_json::{Value, json};

use crate::site::{PROGRAM, Site};

#[test]
fn a_chain_gives_checks_and_releases() {
    let site = Site::new();
    let (world, network) = site.chain();
    let result = world.call("ADD", "c1", &network).success();
    let records = site.records();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].address, addresses(&result)[0]);
    assert!(records[0].description.contains("c1"), "{records:?}");
    assert_eq!(world.call("ADD", "c1", &network).success(), result);
    let mut with_result = network.clone();
    with_result["prevResult"] = result;
    world.call("CHECK", "c1", &with_result).success();
    world.status(&network).success();
    // By the record: a DEL that was told nothing.
    let mut stripped = network.clone();
    stripped["ipam"] = json!({"type": "ipam-delegated", "stateDir": world.path("state")});
    world.call("DEL", "c1", &stripped).success();
    site.assert_empty();
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.call("CHECK", "c1", &with_result).failure().0, 104);
}

#[test]
fn a_delegate_that_fails_later_takes_the_address_back() {
    let site = Site::new();
    let (world, mut network) = site.chain();
    world.delegate(
        "ipam-da-zz",
        "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }",
    );
    network["ipam"]["delegates"].as_array_mut().unwrap().push("ipam-da-zz".into());
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 100);
    site.assert_empty();
}

#[test]
fn the_name_of_a_pod_is_in_its_record_and_no_secret_is_in_any_file() {
    let site = Site::new();
    let (world, network) = site.chain();
    let mut command = world.command("ADD", "c1");
    command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
    wait(ipam_testkit::world::start(command, &network)).success();
    let records = site.records();
    assert!(records[0].description.contains("web-0"), "{records:?}");
    assert!(records[0].description.len() <= 100, "{records:?}");
    let memory = world.path("state/openwisp");
    let found = Command::new("grep").args(["-r", "-l", TOKEN]).arg(&memory).output().unwrap();
    assert!(memory.is_dir() && found.stdout.is_empty(), "{found:?}");
}

#[test]
fn a_container_id_of_a_runtime_fits_into_a_record_and_comes_back() {
    let site = Site::new();
    let (world, network) = site.chain();
    let id = "0123456789abcdef".repeat(4);
    world.call("ADD", &id, &network).success();
    let node = site.node();
    let listed = node.listed();
    assert!(listed.iter().any(|(_, holder)| *holder == id), "{listed:?}");
    world.call("DEL", &id, &network).success();
    site.assert_empty();
}

/// The only plugin with `ipam` of the example, at this server without TLS.
#[test]
fn the_example_gives_an_address_of_the_subnet_by_its_name() {
    let site = Site::new();
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let example = "../../examples/68-ipam-delegated-openwisp.conflist";
    let conflist: Value = serde_json::from_slice(&fs::read(example).unwrap()).unwrap();
    let mut network = conflist["plugins"][0].clone();
    network["cniVersion"] = conflist["cniVersion"].clone();
    network["name"] = conflist["name"].clone();
    let ipam = &mut network["ipam"];
    ipam["stateDir"] = json!(world.path("state"));
    ipam["pools"][0]["name"] = format!("of {}", site.cidr).into();
    assert_eq!(ipam["openwisp"]["organization"], ORGANIZATION);
    fs::write(world.path("token"), TOKEN).unwrap();
    ipam["openwisp"]["tokenFile"] = json!(world.path("token"));
    ipam["openwisp"]["url"] = site.server.url().into();
    ipam["openwisp"].as_object_mut().unwrap().remove("caFile");
    let given = world.call("ADD", "c1", &network).ips();
    assert_eq!(
        site.addresses().into_keys().collect::<Vec<_>>(),
        [given[0].trim_end_matches("/24")]
    );
    world.call("DEL", "c1", &network).success();
    site.assert_empty();
}
