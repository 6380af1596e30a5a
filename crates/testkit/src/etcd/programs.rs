//! The programs of etcd.

use std::path::PathBuf;

use crate::servers::process::program;

/// The server: the one that `IPAM_DELEGATED_ETCD` names, else the one in `PATH`.
pub(super) fn etcd() -> PathBuf {
    std::env::var_os("IPAM_DELEGATED_ETCD").map_or_else(|| program("etcd"), PathBuf::from)
}

/// The client beside the server that `IPAM_DELEGATED_ETCD` names, else the one in `PATH`.
pub(super) fn etcdctl() -> PathBuf {
    beside("etcdctl").unwrap_or_else(|| program("etcdctl"))
}

/// What restores snapshots: newer servers have a program of its own for it.
pub(super) fn restorer() -> PathBuf {
    beside("etcdutl").unwrap_or_else(etcdctl)
}

fn beside(name: &str) -> Option<PathBuf> {
    let etcd = PathBuf::from(std::env::var_os("IPAM_DELEGATED_ETCD")?);
    Some(etcd.with_file_name(name)).filter(|path| path.is_file())
}
