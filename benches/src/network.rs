//! The network that all systems serve, and its pool.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

pub const NETWORK: &str = "bench";
pub const SUBNET: &str = "10.77.0.0/16";

/// How many addresses can be given out of the subnet.
pub const SIZE: u32 = (1 << 16) - 3;

/// The first of them: the one before is the gateway.
const FIRST: u32 = 0x0A4D_0002;

/// A configuration of the network, with the keys of two objects in `ipam`.
pub fn network(ipam: Value, more: Value) -> Value {
    let mut network =
        json!({"cniVersion": "1.0.0", "name": NETWORK, "type": "bridge", "ipam": ipam});
    extend(&mut network["ipam"], more);
    network
}

/// Adds the keys of another object.
pub fn extend(object: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more}") };
    object.as_object_mut().unwrap().extend(more);
}

/// The keys of `ipam` that give the pool.
pub fn pool() -> Value {
    json!({"ranges": [[{"subnet": SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}]})
}

/// What a chain gives its first delegate.
pub fn first(mut network: Value) -> Value {
    let version = &network["cniVersion"];
    network["prevResult"] = json!({"cniVersion": version, "ips": []});
    network
}

/// What a chain gives a delegate after one that answered with these pools.
pub fn after(network: Value, pools: Value) -> Value {
    let mut network = first(network);
    network["prevResult"]["pools"] = pools;
    network
}

/// The pool as a selector hands it on.
pub fn pools() -> Value {
    json!([{"ranges": [{"subnet": SUBNET}], "index": 0}])
}

/// The address of this number in the pool.
pub fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(FIRST + n)
}

/// As many addresses as if drawn by lot; the same at every call.
pub fn spread(count: usize) -> Vec<Ipv4Addr> {
    let mut numbers: Vec<u32> = (0..SIZE).collect();
    let mut state = 1_u64;
    for i in (1..numbers.len()).rev() {
        // Knuth's MMIX generator: its high bits are good enough.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(i, (state >> 33) as usize % (i + 1));
    }
    numbers[..count].iter().map(|n| address(*n)).collect()
}
