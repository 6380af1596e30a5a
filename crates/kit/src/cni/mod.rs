//! The protocol of the Container Network Interface, without any I/O.
//!
//! The words come from the [specification]: a runtime asks a plugin, with a *verb* and a
//! *network configuration*, to add, check or delete an *attachment* (a container id and an
//! interface name), and gets a *result* or an error back.
//!
//! [specification]: https://github.com/containernetworking/cni/blob/spec-v1.1.0/SPEC.md

pub mod address;
mod args;
mod attachment;
mod environment;
mod network;
mod result;
mod strict_value;
mod verb;
mod version;

pub use args::{Args, RequestedAddress};
pub use attachment::{Attachment, ContainerId, IfName, NetworkName};
pub use environment::Environment;
pub use network::{
    Network, ValidAttachments, kind, parse_object, parse_value, shown, shown_url, to_text,
};
pub(crate) use result::POOLS;
pub use result::{Dns, IpConfig, IpamResult, Route};
pub use verb::Verb;
pub use version::Version;
