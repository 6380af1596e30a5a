use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cni::{ContainerId, IfName, NetworkName};

/// The owner of a lease: an attachment on a network of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The node and the network.
    pub scope: Scope,
    /// The container.
    pub container: ContainerId,
    /// The interface inside it.
    pub ifname: IfName,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.container, self.ifname, self.scope)
    }
}

/// One node's part of a network: the scope of its GC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The node's identity. Empty on DEL and CHECK if the allocator's reach is
    /// [`Node`](super::Reach::Node) and the state folder has no identity.
    pub node: String,
    /// The network.
    pub network: NetworkName,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.node {
            // A verb that releases from this node's own ledger needs no name of the node.
            "" => self.network.fmt(f),
            node => write!(f, "{} of node {node}", self.network),
        }
    }
}

/// An address held by an owner.
///
/// It travels as an entry of `leases` through the attachment record, so that a DEL finds it again
/// without a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The pool's name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The address with the prefix length of its subnet. `IpNet` is a type of the crate `ipnet`;
    /// `"10.1.2.3/24".parse()` reads one.
    pub address: IpNet,
    /// The sticky name that the address stays with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
    /// The gateway of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The store's mark of this state of the lease, which guards changes: a revision or an id.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub revision: Value,
    /// The id of the store, if the ledger tells it with a claim: a call that does not find the lease
    /// asks whether the store is still the same. The lease is in the same state without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Whether the owner held it before the ADD that answered it. The undo of that ADD leaves it.
    #[serde(rename = "kept", default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// Whether an earlier attempt of the same ADD got no reply from the store, and may still
    /// commit.
    #[serde(skip)]
    pub unsure: bool,
    /// When the owner took it, if the ledger knows. A confirmation does not change it.
    #[serde(skip)]
    pub taken: Option<SystemTime>,
    /// When an ADD confirmed it last, if the ledger knows. If two states of a lease have the same
    /// time, no ADD came between them.
    #[serde(skip)]
    pub confirmed: Option<SystemTime>,
}

impl Lease {
    /// A lease of which nothing but the address and its state is known.
    pub fn bare(address: IpNet, revision: Value) -> Self {
        Self {
            pool: None,
            address,
            sticky: None,
            gateway: None,
            revision,
            store: None,
            preexisting: false,
            unsure: false,
            taken: None,
            confirmed: None,
        }
    }

    /// Whether both are the same state of the same lease: address and revision.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.address.addr() == other.address.addr() && self.revision == other.revision
    }
}

/// The leases that a DEL of the chain's own may release.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialRelease {
    /// These very leases.
    pub(super) leases: Vec<Lease>,
    /// The window of leases by the time they were taken, both ends included.
    pub(super) taken: Option<(SystemTime, SystemTime)>,
}

impl PartialRelease {
    /// Whether it covers no lease at all.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.taken.is_none()
    }

    /// Whether the DEL releases a lease that is held.
    pub(super) fn covers(&self, held: &Lease) -> bool {
        self.leases.iter().any(|lease| lease.is_same(held)) || self.was_taken_between(held)
    }

    fn was_taken_between(&self, held: &Lease) -> bool {
        match (self.taken, held.taken) {
            (Some((from, to)), Some(taken)) => (from..=to).contains(&taken),
            _ => false,
        }
    }
}
