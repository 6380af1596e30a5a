//! The delegate `ipam-da-consul`: leases of a whole cluster in Consul's key-value store.
//!
//! `main` runs [`delegate`]; the other public items are for tests and benches.

#![warn(unreachable_pub)]

mod cache;
mod cache_file;
mod call;
mod change;
mod change_txn;
mod config;
mod current_servers;
mod definition;
mod errors;
#[doc(hidden)]
pub mod fill;
mod keys;
mod ledger;
mod memory;
mod owner_view;
mod pool_scan;
mod pools;
mod ready;
mod refusal;
mod removal;
mod scan;
mod session;
mod store;
mod txn;
mod values;
mod view;
mod view_token;
mod window;

use ipam_kit::Allocate;
pub use ledger::Consul;

/// Returns the delegate, with its verbs for people.
pub fn delegate() -> Allocate<Consul> {
    Allocate::answering(ipam_cli::answer::<Consul>)
}
