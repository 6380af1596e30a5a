use std::fmt;
use std::time::SystemTime;

use super::Lease;

/// A recorded lease as a scan shows it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The lease.
    pub lease: Lease,
    /// The holder; `None` for an entry that cannot be read.
    pub holder: Option<Holder>,
    /// When it was taken or last confirmed.
    pub since: Option<SystemTime>,
    /// The fault of the entry, if it has one.
    pub fault: Option<Fault>,
}

/// An owner as the store records it. Other systems may have recorded less of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The node; `None` where the store does not say.
    pub node: Option<String>,
    /// The container id.
    pub container: String,
    /// The interface; `None` in entries of systems that did not write it.
    pub ifname: Option<String>,
    /// The network, where it is another one: a store may have pools that networks share.
    pub network: Option<String>,
    /// The pod, as NAMESPACE/NAME; `None` where the store does not say.
    pub pod: Option<String>,
}

/// Why an entry has no owner, or is not what it should be. Its address counts as taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The leftover of a killed plugin: it holds nothing, and may be removed.
    Leftover,
    /// It cannot be read, for this reason.
    Unreadable(String),
    /// No container holds it: it is kept for a sticky name, in words.
    Kept(String),
}

impl Entry {
    /// Describes the holder of the address, for a message.
    pub fn held_by(&self) -> String {
        match (&self.holder, &self.fault) {
            (Some(holder), _) => holder.to_string(),
            (None, Some(Fault::Unreadable(reason))) => {
                format!("an unreadable entry ({reason})")
            }
            (None, Some(Fault::Kept(name))) => format!("no container, but it is kept for {name}"),
            (None, _) => "no container".to_owned(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ifname {
            Some(ifname) => write!(f, "{}/{ifname}", self.container)?,
            None => f.write_str(&self.container)?,
        }
        if let Some(pod) = &self.pod {
            write!(f, " of pod {pod}")?;
        }
        if let Some(network) = &self.network {
            write!(f, " on network {network}")?;
        }
        self.node.as_ref().map_or(Ok(()), |node| write!(f, " of node {node}"))
    }
}
