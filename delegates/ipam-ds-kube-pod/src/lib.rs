//! The delegate `ipam-ds-kube-pod`: what a Kubernetes pod chooses by its annotations, as far as the
//! network allows it: one of several pools, addresses, and the name that an address stays with.
//!
//! `main` runs [`delegate`].
//!
//! ```text
//! selector → choice    → wishes → networks → pod → rules
//!            requests
//! ```

#![warn(unreachable_pub)]

mod choice;
mod networks;
mod pod;
mod requests;
mod rules;
mod selector;
mod wishes;

use ipam_kit::Select;
use selector::KubePod;

/// The delegate.
pub fn delegate() -> Select<impl ipam_kit::Selector> {
    Select(KubePod)
}
