//! Real Consul servers for tests: one alone, or a cluster whose network can be cut.
//!
//! What is missing fails the test and says what to do; `tests/run.sh` installs it.

mod client;
mod cluster;
mod http;
mod program;
mod server;

pub use crate::servers::base64::{decode, encode};
pub use crate::servers::http::Answer;
pub use crate::servers::network::Cut;
pub use crate::servers::passage::Passage;
pub use crate::servers::relay::{Fate, Relay, Request};
pub use crate::servers::silent::{Silent, saying};
pub use client::{Client, Entry, Token};
pub use program::consul as program;
pub use server::{Builder, Consul, Snapshot, Tls};

/// A cluster of it.
pub type Cluster = crate::servers::cluster::Cluster<server::ConsulServer>;
