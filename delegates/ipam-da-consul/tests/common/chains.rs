//! `ipam-ds-static → ipam-da-consul`, as a main plugin calls it.

use std::path::Path;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::named;
use ipam_testkit::world::{World, binary};
use serde_json::{Value, json};

use super::PROGRAM;

/// A world with both programs, and a network that asks for one address of each of these pools.
pub fn chain(consul: &Consul, pools: &[&str]) -> (World, Value) {
    chain_of(consul, &named(pools))
}

/// The same with these pools.
pub fn chain_of(consul: &Consul, pools: &Value) -> (World, Value) {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-consul"]));
    network["cniVersion"] = "1.1.0".into();
    network["ipam"]["consul_servers"] = json!([consul.url()]);
    network["ipam"]["pools"] = pools.clone();
    (world, network)
}

/// A delegate whose ADD fails, for the end of a chain.
pub fn failing(world: &World, network: &Value) -> Value {
    world.delegate(
        "ipam-da-zz",
        "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }",
    );
    let mut network = network.clone();
    network["ipam"]["delegates"].as_array_mut().unwrap().push("ipam-da-zz".into());
    network
}
