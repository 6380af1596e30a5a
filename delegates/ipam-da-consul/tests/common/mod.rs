//! A place for the process tests of `ipam-da-consul`: nodes that call the program, and real servers.

#![allow(dead_code, clippy::unwrap_used, reason = "test support; each test file uses a part of it")]

pub mod beside;
pub mod chains;
pub mod counting;
pub mod filling;
pub mod rights;
pub mod store;
pub mod unsaid;

use ipam_testkit::consul::{Client, Consul};
use serde_json::json;

/// A node that calls the program.
pub type Node = ipam_testkit::node::Node<Consul>;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-consul");

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
