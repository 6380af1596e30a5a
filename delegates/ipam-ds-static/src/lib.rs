//! The delegate `ipam-ds-static`: pools and ranges as the network configuration gives them.
//!
//! `main` runs [`delegate`].

#![warn(unreachable_pub)]

mod selector;
#[cfg(test)]
mod testing;

use ipam_kit::Select;
use selector::Static;

/// The delegate.
pub fn delegate() -> Select<impl ipam_kit::Selector> {
    Select(Static)
}
