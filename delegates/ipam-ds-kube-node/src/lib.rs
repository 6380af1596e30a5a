//! The delegate `ipam-ds-kube-node`: the ranges that the Kubernetes node object names.
//!
//! `main` runs [`delegate`].

#![warn(unreachable_pub)]

mod config;
mod legacy_cache;
mod selector;
mod subnets;

use ipam_kit::Select;
use selector::KubeNode;

/// The delegate.
pub fn delegate() -> Select<impl ipam_kit::Selector> {
    Select(KubeNode)
}
