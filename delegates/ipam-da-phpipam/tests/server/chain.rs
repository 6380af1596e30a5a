//! The program in a chain: the example, with the life of an attachment.

use std::fs;
use std::path::Path;

use ipam_testkit::node::addresses;
use ipam_testkit::world::{World, binary};
use serde_json::{Value, json};

use crate::site::Site;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-phpipam");

/// The only plugin with `ipam` of the example, at this server without TLS.
#[test]
fn the_example_gives_checks_and_releases_an_address_of_the_subnet_by_its_description() {
    let site = Site::new();
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let example = "../../examples/69-ipam-delegated-phpipam.conflist";
    let conflist: Value = serde_json::from_slice(&fs::read(example).unwrap()).unwrap();
    let mut network = conflist["plugins"][0].clone();
    network["cniVersion"] = "1.1.0".into();
    network["name"] = conflist["name"].clone();
    let ipam = &mut network["ipam"];
    ipam["stateDir"] = json!(world.path("state"));
    ipam["pools"][0]["name"] = format!("of {}", site.cidr).into();
    let (app, code) = site.server.app();
    assert_eq!(ipam["phpipam"]["appId"], app);
    fs::write(world.path("token"), code).unwrap();
    ipam["phpipam"]["section"] = site.server.section(1).into();
    ipam["phpipam"]["tokenFile"] = json!(world.path("token"));
    ipam["phpipam"]["url"] = site.server.url().into();
    ipam["phpipam"].as_object_mut().unwrap().remove("caFile");
    let result = world.call("ADD", "c1", &network).success();
    let held: Vec<String> = site.addresses().into_keys().collect();
    assert_eq!(held, addresses(&result));
    world.status(&network).ended_well();
    let mut with_result = network.clone();
    with_result["prevResult"] = result;
    world.call("CHECK", "c1", &with_result).ended_well();
    // By the record: a DEL that was told nothing.
    let mut stripped = network.clone();
    stripped["ipam"] = json!({"type": "ipam-delegated", "stateDir": world.path("state")});
    world.call("DEL", "c1", &stripped).ended_well();
    site.assert_empty();
}
