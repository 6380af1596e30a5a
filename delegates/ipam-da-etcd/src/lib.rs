//! The delegate `ipam-da-etcd`: leases of a whole cluster in etcd, one round trip each.
//!
//! `main` runs [`delegate`]; what else is public is for tests and benches.

#![warn(unreachable_pub)]

mod beside;
mod caller;
mod claim;
mod client;
mod config;
mod connection;
mod document;
mod endpoint;
mod entries;
#[doc(hidden)]
pub mod fill;
mod greeting;
mod held;
mod house;
mod keys;
mod layout;
mod ledger;
mod memory;
mod native;
mod outcome;
mod page;
mod present;
mod refusal;
mod removal;
mod session;
mod sight;
mod tls;
mod token;
mod transport;

use ipam_kit::Allocate;
pub use layout::{LAYOUTS, Layout};
pub use ledger::Etcd;

/// The delegate, with its verbs for people.
pub fn delegate() -> Allocate<Etcd> {
    Allocate::answering(ipam_cli::answer::<Etcd>)
}
