/// Whose keys hold the leases: where each kind of key stands, and how the value of an address's key is
/// read. `NETWORK` stands for the network's name.
#[derive(Debug)]
pub struct Layout {
    /// `ipam.etcd.layout`.
    pub name: &'static str,
    /// What every key begins with, where `ipam.etcd.prefix` does not say.
    pub(crate) prefix: &'static str,
    /// What the key of an address begins with.
    pub(crate) leases: &'static str,
    /// What our own keys of owners begin with.
    pub(crate) owners: &'static str,
    /// Our own key of the latest claim.
    pub(crate) latest: &'static str,
    /// How addresses and values are written.
    pub(crate) codec: Codec,
    /// The keys that the plugin which made this layout reads besides; none in our own.
    pub(crate) old: Option<OldKeys>,
}

/// How the keys and values of addresses are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// Addresses of fixed width, and all that is known of the lease.
    Document,
    /// Addresses as people write them, and the bare container id.
    ContainerId {
        /// Whether white space around it means nothing.
        trimmed: bool,
    },
}

/// What a replaced plugin keeps beside its leases.
#[derive(Debug)]
pub(crate) struct OldKeys {
    /// The ranges as JSON, which nobody reads.
    pub(crate) ranges: Option<&'static str>,
    /// The address last given out of a range set, whose number follows.
    pub(crate) cursor: &'static str,
    /// What it holds while it looks for an address.
    pub(crate) lock: OldLock,
    /// Whether the addresses of all networks stand side by side.
    pub(crate) flat: bool,
    /// Whether it takes the address after its cursor whoever holds it.
    pub(crate) overwrites: bool,
}

/// How a replaced plugin keeps its processes apart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OldLock {
    /// By one key.
    Key(&'static str),
    /// By keys below this one, of which the oldest has it.
    Queue(&'static str),
}

/// Our own.
pub(crate) const NATIVE: Layout = Layout {
    name: "native",
    prefix: "/ipam-delegated",
    leases: "/networks/NETWORK/leases/",
    owners: "/networks/NETWORK/owners/",
    latest: "/networks/NETWORK/latest",
    codec: Codec::Document,
    old: None,
};

/// That of jeremyxu2010/cni-ipam-etcd.
pub(crate) const CNI_IPAM_ETCD: Layout = Layout {
    name: "cni-ipam-etcd",
    prefix: "/etcd-cni",
    leases: "/networks/NETWORK/used/",
    owners: "/networks/NETWORK/ipam-delegated/owners/",
    latest: "/networks/NETWORK/ipam-delegated/latest",
    codec: Codec::ContainerId { trimmed: false },
    old: Some(OldKeys {
        ranges: Some("/networks/NETWORK"),
        cursor: "/networks/NETWORK/lastReserved/",
        lock: OldLock::Key("/networks/NETWORK/lock"),
        flat: false,
        overwrites: false,
    }),
};

/// That of host-etcd, which has one space of addresses for all networks.
pub(crate) const HOST_ETCD: Layout = Layout {
    name: "host-etcd",
    prefix: "/ipam",
    leases: "/ips/",
    owners: "/ipam-delegated/owners/",
    latest: "/ipam-delegated/latest/NETWORK",
    codec: Codec::ContainerId { trimmed: true },
    old: Some(OldKeys {
        ranges: None,
        cursor: "/last_reserved_ip",
        lock: OldLock::Queue("/lock/"),
        flat: true,
        overwrites: true,
    }),
};

/// Every layout.
pub const LAYOUTS: [&Layout; 3] = [&NATIVE, &CNI_IPAM_ETCD, &HOST_ETCD];

impl Layout {
    /// The layout of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        LAYOUTS.into_iter().find(|layout| layout.name == name)
    }
}
