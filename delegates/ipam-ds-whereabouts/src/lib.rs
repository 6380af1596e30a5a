//! The delegate `ipam-ds-whereabouts`: pools, routes and the login from the configuration of
//! whereabouts.
//!
//! `main` runs [`delegate`].

#![warn(unreachable_pub)]

mod config;
mod etcd_section;
mod flat_file;
mod kube_section;
mod merged_keys;
mod offer;
mod other_stores;
mod pools;
mod provider;
mod range;
mod remarks;
mod requests;
mod selector;
#[cfg(test)]
mod testing;
mod tolerance;
mod written;

use ipam_kit::Select;
use selector::FromWhereabouts;

/// The delegate.
pub fn delegate() -> Select<impl ipam_kit::Selector> {
    Select(FromWhereabouts::default())
}
