//! Real etcd servers for tests: one alone, or a cluster whose network can be cut.
//!
//! What is missing fails the test and says what to install; `tests/run.sh` installs it.

mod client;
mod cluster;
mod programs;
mod requests;
mod server;
mod store;

pub use crate::servers::network::Cut;
pub use crate::servers::passage::Passage;
pub use crate::servers::silent::{Silent, saying};
pub use requests::{Answer, Entry, Requests};
pub use server::{Account, Builder, Etcd, Tls};
pub use store::{ClusterId, Snapshot};

/// A cluster of it.
pub type Cluster = crate::servers::cluster::Cluster<server::EtcdServer>;
