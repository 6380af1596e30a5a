//! A place for the process tests of `ipam-da-consul`: nodes that call the program, and real servers.

#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    clippy::unwrap_used,
    reason = "test support; each test file uses a part of it"
)]

#[path = "../../../../tests/support/certificates.rs"]
pub mod certificates;
pub mod chains;
#[path = "../../../../tests/support/consul/mod.rs"]
pub mod consul;
pub mod counting;
pub mod filling;
#[path = "../../../../tests/support/node.rs"]
pub mod node;
pub mod rights;
pub mod store;
#[path = "../../../../tests/support/mod.rs"]
pub mod support;
pub mod unsaid;

use consul::{Client, Consul};
pub use node::{Node, VERBS, addresses, at_once, given, subnets, within};
use serde_json::{Value, json};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-consul");

/// Its section of `ipam`.
pub const STORE: &str = "consul";

/// The pool that nodes use where nothing else is said, as [`define`] writes it.
pub const POOL: &str = "blue";
pub const SUBNET: &str = "10.1.0.0/16";

/// Writes a pool of one subnet.
#[track_caller]
pub fn define(client: &Client, pool: &str, subnet: &str) {
    client.put(&format!("ipam/{pool}"), &json!([{"subnet": subnet}]).to_string());
}

/// A server with [`POOL`].
#[track_caller]
pub fn stocked() -> Consul {
    let consul = Consul::start();
    define(&consul, POOL, SUBNET);
    consul
}

impl Node {
    /// `node-1` with the store of a server and the pool [`POOL`].
    pub fn of(consul: &Consul) -> Self {
        Self::at(&[consul.url()])
    }

    /// The same with these servers.
    pub fn at(servers: &[String]) -> Self {
        Self::with_store(json!({"consul_servers": servers, "consul": {}}), named(&[POOL]))
    }

    /// With pools of these names.
    pub fn with_pools(mut self, names: &[&str]) -> Self {
        self.pools = named(names);
        self
    }
}

/// Pools that are known by their names.
pub fn named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}
