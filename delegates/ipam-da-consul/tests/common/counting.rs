//! Counting what a server is asked for.

use ipam_testkit::consul::{Consul, Relay};

use super::{Node, define};

/// A node that talks to a server through a relay.
pub fn behind(relay: &Relay) -> Node {
    Node::at(&[format!("http://{}", relay.endpoint())])
}

/// Defines a pool with the folders that passcod wants, which are made once for all.
#[track_caller]
pub fn define_with_folders(consul: &Consul, pool: &str, subnet: &str) {
    define(consul, pool, subnet);
    consul.put("ipam/", "");
    consul.put(&format!("ipam/{pool}/"), "");
}

/// How many requests come while something is done.
pub fn requests(relay: &Relay, done: impl FnOnce()) -> usize {
    let lines = relay.during(done);
    let known =
        |line: &String| line.starts_with("PUT /v1/txn") || line.starts_with("GET /v1/kv/ipam/");
    assert!(lines.iter().all(known), "{lines:?}");
    lines.len()
}
