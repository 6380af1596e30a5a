//! The layouts of the replaced plugins.

use super::key_format::TextAddresses;
use crate::keys::KeyPaths;

/// The keys and habits of a replaced plugin.
#[derive(Debug)]
pub(crate) struct ReplacedPlugin {
    pub(crate) key_paths: KeyPaths,
    /// The ranges as JSON, which no program reads.
    pub(super) ranges: Option<&'static str>,
    /// The address last given out of a range set, whose number follows.
    pub(super) cursor: &'static str,
    /// Its lock, which it holds while it looks for an address.
    pub(super) lock: LockPath,
    /// Whether one folder holds the addresses of all networks.
    pub(super) flat: bool,
    /// Whether it takes the address after its cursor, even if a container holds it.
    pub(super) overwrites: bool,
}

/// How a replaced plugin keeps its processes apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum LockPath {
    /// By one key.
    Key(&'static str),
    /// By keys below this one, of which the oldest has it.
    Queue(&'static str),
}

/// The keys of jeremyxu2010/cni-ipam-etcd.
pub(crate) const CNI_IPAM_ETCD: ReplacedPlugin = ReplacedPlugin {
    key_paths: KeyPaths {
        leases: "/networks/NETWORK/used/",
        owners: "/networks/NETWORK/ipam-delegated/owners/",
        latest: "/networks/NETWORK/ipam-delegated/latest",
        format: &TextAddresses { trimmed: false, flat: false },
    },
    ranges: Some("/networks/NETWORK"),
    cursor: "/networks/NETWORK/lastReserved/",
    lock: LockPath::Key("/networks/NETWORK/lock"),
    flat: false,
    overwrites: false,
};

/// Our keys in the layout of whereabouts, below one that no pool has. The keys of pools are
/// elsewhere.
pub(crate) const BESIDE_WHEREABOUTS: KeyPaths = KeyPaths {
    leases: "/",
    owners: "/ipam-delegated/owners/",
    latest: "/ipam-delegated/latest/NETWORK",
    format: &TextAddresses { trimmed: false, flat: true },
};

/// The keys of host-etcd, which has one space of addresses for all networks.
pub(crate) const HOST_ETCD: ReplacedPlugin = ReplacedPlugin {
    key_paths: KeyPaths {
        leases: "/ips/",
        owners: "/ipam-delegated/owners/",
        latest: "/ipam-delegated/latest/NETWORK",
        format: &TextAddresses { trimmed: true, flat: true },
    },
    ranges: None,
    cursor: "/last_reserved_ip",
    lock: LockPath::Queue("/lock/"),
    flat: true,
    overwrites: true,
};
