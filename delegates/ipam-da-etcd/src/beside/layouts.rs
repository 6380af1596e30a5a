//! The layouts of the replaced plugins.

use super::spelling::Written;
use crate::keys::Places;

/// What a replaced plugin keeps.
#[derive(Debug)]
pub(crate) struct Old {
    pub(crate) places: Places,
    /// The ranges as JSON, which nobody reads.
    pub(super) ranges: Option<&'static str>,
    /// The address last given out of a range set, whose number follows.
    pub(super) cursor: &'static str,
    /// What it holds while it looks for an address.
    pub(super) lock: OldLock,
    /// Whether the addresses of all networks stand side by side.
    pub(super) flat: bool,
    /// Whether it takes the address after its cursor whoever holds it.
    pub(super) overwrites: bool,
}

/// How a replaced plugin keeps its processes apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum OldLock {
    /// By one key.
    Key(&'static str),
    /// By keys below this one, of which the oldest has it.
    Queue(&'static str),
}

/// That of jeremyxu2010/cni-ipam-etcd.
pub(crate) const CNI_IPAM_ETCD: Old = Old {
    places: Places {
        leases: "/networks/NETWORK/used/",
        owners: "/networks/NETWORK/ipam-delegated/owners/",
        latest: "/networks/NETWORK/ipam-delegated/latest",
        spelling: &Written { trimmed: false, flat: false },
    },
    ranges: Some("/networks/NETWORK"),
    cursor: "/networks/NETWORK/lastReserved/",
    lock: OldLock::Key("/networks/NETWORK/lock"),
    flat: false,
    overwrites: false,
};

/// That of host-etcd, which has one space of addresses for all networks.
pub(crate) const HOST_ETCD: Old = Old {
    places: Places {
        leases: "/ips/",
        owners: "/ipam-delegated/owners/",
        latest: "/ipam-delegated/latest/NETWORK",
        spelling: &Written { trimmed: true, flat: true },
    },
    ranges: None,
    cursor: "/last_reserved_ip",
    lock: OldLock::Queue("/lock/"),
    flat: true,
    overwrites: true,
};
