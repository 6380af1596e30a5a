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
    /// The program whose keys it has.
    pub(crate) origin: LayoutOrigin,
}

/// The program whose keys a layout has.
#[derive(Debug)]
pub(crate) enum LayoutOrigin {
    /// Our own.
    Native,
    /// Those of a plugin that has a key for each address.
    Plugin(ReplacedPlugin),
    /// Those of whereabouts, which has a key for each pool.
    Whereabouts,
}

/// Our own.
pub(crate) const NATIVE: Layout =
    Layout { name: "native", prefix: "/ipam-delegated", origin: LayoutOrigin::Native };

/// The keys of jeremyxu2010/cni-ipam-etcd.
pub(crate) const CNI_IPAM_ETCD: Layout = Layout {
    name: "cni-ipam-etcd",
    prefix: "/etcd-cni",
    origin: LayoutOrigin::Plugin(replaced::CNI_IPAM_ETCD),
};

/// That of host-etcd.
pub(crate) const HOST_ETCD: Layout = Layout {
    name: "host-etcd",
    prefix: "/ipam",
    origin: LayoutOrigin::Plugin(replaced::HOST_ETCD),
};

/// That of whereabouts, up to 0.5 and in its fork.
pub(crate) const WHEREABOUTS: Layout =
    Layout { name: "whereabouts", prefix: "/whereabouts", origin: LayoutOrigin::Whereabouts };

/// Every layout.
pub const LAYOUTS: [&Layout; 4] = [&NATIVE, &CNI_IPAM_ETCD, &HOST_ETCD, &WHEREABOUTS];

impl Layout {
    /// Returns the layout of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        LAYOUTS.into_iter().find(|layout| layout.name == name)
    }

    /// Returns the paths of its keys.
    pub(crate) fn key_paths(&self) -> &KeyPaths {
        match &self.origin {
            LayoutOrigin::Native => &key_format::KEY_PATHS,
            LayoutOrigin::Plugin(replaced) => &replaced.key_paths,
            LayoutOrigin::Whereabouts => &replaced::BESIDE_WHEREABOUTS,
        }
    }

    /// Tells whether it is our own.
    pub(crate) fn is_native(&self) -> bool {
        matches!(self.origin, LayoutOrigin::Native)
    }
}
