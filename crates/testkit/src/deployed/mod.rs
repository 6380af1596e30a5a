//! The manifests of `deploy` folders: a cluster that takes them, and a host on which the containers of
//! a pod run.

mod cluster;
mod pod_host;
mod record_server;

pub use cluster::Cluster;
pub use pod_host::{Keeper, PodHost};
pub use record_server::assert_deployed;
