//! The delegate `ipam-ds-node-annotation`: host-local settings out of an annotation of the
//! Kubernetes node object.
//!
//! `main` runs [`delegate`].

#![warn(unreachable_pub)]

mod annotation;
mod cli;
mod conf;
mod fragment;
mod log_file;
mod lost;
mod selector;

use ipam_kit::Select;
use selector::Annotation;

/// The delegate.
pub fn delegate() -> Select<impl ipam_kit::Selector> {
    Select(Annotation)
}
