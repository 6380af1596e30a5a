//! What the tests of this workspace stand on: worlds of processes, real servers, pages that are
//! run.
//!
//! Tests of every package depend on it, by `[dev-dependencies]`. It knows programs and their
//! output, and stands on no package of this workspace, so that a test sees a program as its users
//! do. Its clients of servers are its own, as witnesses that share no code with the programs under
//! test.
//!
//! ```no_run
//! use ipam_testkit::world::World;
//! use serde_json::json;
//!
//! let world = World::new();
//! world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("ipam-da-x", "10.1.2.3/24");
//! let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
//! assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.1.2.3/24"]);
//! ```

#![allow(missing_docs, clippy::new_without_default, clippy::unwrap_used, reason = "test support")]
#![warn(unreachable_pub)]

pub mod bridge;
pub mod certificates;
pub mod consul;
pub mod contention;
pub mod deployed;
pub mod doorway;
pub mod errors;
pub mod etcd;
pub mod fake_grpc;
pub mod fake_http;
pub mod fields;
pub mod fleet;
pub mod history;
pub mod inodes;
pub mod kills;
pub mod kube;
pub mod kube_site;
pub mod leftovers;
pub mod machine;
pub mod node;
pub mod node_site;
pub mod old;
pub mod openwisp;
pub mod outlasting;
pub mod pages;
pub mod phpipam;
pub mod record_site;
pub mod servers;
pub mod typed;
pub mod vectors;
pub mod whereabouts;
pub mod world;
