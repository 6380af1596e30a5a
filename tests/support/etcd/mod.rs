//! Real etcd servers for tests: one alone, or a cluster whose network can be cut.
//!
//! Needs nothing of the other test support, so that a delegate's tests can include it by `#[path]`.
//! What is missing fails the test and says what to install; `tests/run.sh` installs it.

#![allow(
    dead_code,
    missing_docs,
    clippy::duplicate_mod,
    unused_imports,
    clippy::unwrap_used,
    reason = "test support; each test file uses a part of it"
)]

mod client;
mod cluster;
mod programs;
mod requests;
mod server;
#[path = "../servers/mod.rs"]
pub mod servers;
mod store;

pub use cluster::Cluster;
pub use requests::{Answer, Entry, Requests};
pub use server::{Account, Builder, Etcd, Tls};
pub use servers::network::Cut;
pub use servers::passage::Passage;
pub use servers::process::{find, leftovers};
pub use servers::silent::Silent;
pub use store::{ClusterId, Snapshot};
