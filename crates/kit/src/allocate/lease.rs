use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cni::{ContainerId, IfName, NetworkName};

/// Who holds a lease: an attachment on a network of a node.
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

/// One node's part of a network: what its GC may judge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The node's identity. Empty on DEL and CHECK of an allocator whose reach is
    /// [`Node`](super::Reach::Node), where the state folder does not tell it.
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
    /// The pool's name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The address with the prefix length of its subnet. The type is that of the crate `ipnet`, and
    /// reads a text such as `10.1.2.3/24` by `parse`.
    pub address: IpNet,
    /// The gateway of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// What the store said of this very lease, to guard changes with: a revision, an id.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub revision: Value,
    /// The owner held it before the ADD that answered it, whose undo must leave it.
    #[serde(rename = "kept", default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// An earlier try for a lease, in the same ADD, may still be carried out: the store did not say.
    #[serde(skip)]
    pub unsure: bool,
    /// When the owner took it, where the ledger knows: a confirmation does not change it.
    #[serde(skip)]
    pub taken: Option<SystemTime>,
}

impl Lease {
    /// Whether it is the very lease: the same address, not written again since.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.address.addr() == other.address.addr() && self.revision == other.revision
    }
}

/// Which leases of an owner a DEL may release that the chain makes by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialRelease {
    /// These very leases.
    pub(super) leases: Vec<Lease>,
    /// What the owner took from one time to another, both included.
    pub(super) taken: Option<(SystemTime, SystemTime)>,
}

impl PartialRelease {
    /// Whether it covers no lease at all.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.taken.is_none()
    }

    /// Whether a lease that is held is to be released.
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
