//! The layouts that the configuration may name.

use crate::compat::layouts::{self as replaced, ReplacedPlugin};
use crate::keys::KeyPaths;
use crate::native::key_format;

/// The layout of the keys.
#[derive(Debug)]
pub struct Layout {
    /// `ipam.etcd.layout`.
    pub name: &'static str,
    /// The beginning of every key, unless `ipam.etcd.prefix` is set.
    pub(crate) prefix: &'static str,
    /// The plugin that made this layout, where it is not our own.
    pub(crate) replaced: Option<ReplacedPlugin>,
}

/// Our own.
pub(crate) const NATIVE: Layout =
    Layout { name: "native", prefix: "/ipam-delegated", replaced: None };

/// The keys of jeremyxu2010/cni-ipam-etcd.
pub(crate) const CNI_IPAM_ETCD: Layout =
    Layout { name: "cni-ipam-etcd", prefix: "/etcd-cni", replaced: Some(replaced::CNI_IPAM_ETCD) };

/// That of host-etcd.
pub(crate) const HOST_ETCD: Layout =
    Layout { name: "host-etcd", prefix: "/ipam", replaced: Some(replaced::HOST_ETCD) };

/// Every layout.
pub const LAYOUTS: [&Layout; 3] = [&NATIVE, &CNI_IPAM_ETCD, &HOST_ETCD];

impl Layout {
    /// Returns the layout of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        LAYOUTS.into_iter().find(|layout| layout.name == name)
    }

    /// Returns the paths of its keys.
    pub(crate) fn key_paths(&self) -> &KeyPaths {
        self.replaced.as_ref().map_or(&key_format::KEY_PATHS, |replaced| &replaced.key_paths)
    }
}
