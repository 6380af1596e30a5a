//! The delegate `ipam-da-consul`: leases of a whole cluster in Consul's key-value store.
//!
//! `main` runs [`delegate`]; what else is public is for tests and benches.

#![warn(unreachable_pub)]

mod allocation;
mod cache;
mod cached;
mod call;
mod change;
mod claim;
mod config;
mod errors;
#[doc(hidden)]
pub mod fill;
mod held;
mod keys;
mod ledger;
mod memory;
mod pool;
mod pools;
mod present;
mod refusal;
mod removal;
mod rights;
mod room;
mod scan;
mod session;
mod store;
mod token;
mod txn;
mod view;
mod window;

use ipam_kit::Allocate;
pub use ledger::Consul;

/// The delegate, with its verbs for people.
pub fn delegate() -> Allocate<Consul> {
    Allocate::answering(ipam_cli::answer::<Consul>)
}
