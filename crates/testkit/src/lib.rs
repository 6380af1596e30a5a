//! What the tests of this workspace stand on: worlds of processes, real servers, pages that are run.
//!
//! It knows programs and their output; of the workspace's libraries it takes `ipam-kit` at most, so
//! that a test sees a program as its users do. Its clients of servers are its own, as witnesses that
//! share no code with the programs under test.

#![allow(missing_docs, clippy::new_without_default, clippy::unwrap_used, reason = "test support")]

pub mod bridge;
pub mod certificates;
pub mod consul;
pub mod doorway;
pub mod errors;
pub mod etcd;
pub mod fake_http;
pub mod history;
pub mod kills;
pub mod kube;
pub mod kube_site;
pub mod leftovers;
pub mod machine;
pub mod node;
pub mod old;
pub mod pages;
pub mod servers;
pub mod typed;
pub mod vectors;
pub mod waiting;
pub mod world;
