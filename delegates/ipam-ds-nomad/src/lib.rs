//! The delegate `ipam-ds-nomad`: the pool that the group of a Nomad allocation names.
//!
//! `main` runs [`delegate`].

#![warn(unreachable_pub)]

mod allocation;
mod config;
mod query;
mod selector;

use ipam_kit::Select;
use selector::Nomad;

/// The delegate.
pub fn delegate() -> Select<impl ipam_kit::Selector> {
    Select(Nomad)
}
