//! Real Consul servers for tests: one alone, or a cluster whose network can be cut.
//!
//! Needs nothing of the other test support, so that a delegate's tests can include it by `#[path]`.
//! What is missing fails the test and says what to do; `tests/run.sh` installs it.

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
mod http;
mod program;
mod server;
#[path = "../servers/mod.rs"]
mod servers;

pub use client::{Client, Entry, Token};
pub use cluster::Cluster;
pub use program::{consul as program, locate};
pub use server::{Builder, Consul, Snapshot, Tls};
pub use servers::base64::{decode, encode};
pub use servers::http::Answer;
pub use servers::network::Cut;
pub use servers::passage::Passage;
pub use servers::relay::{Fate, Relay, Request};
pub use servers::silent::Silent;
