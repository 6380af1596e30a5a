//! The delegate `ipam-da-etcd`: leases of a whole cluster in etcd, one round trip each.
//!
//! `main` runs [`delegate`]; what else is public is for tests and benches.

#![warn(unreachable_pub)]

mod client;
mod commit_txn;
mod compat;
mod config;
mod connection;
mod credentials;
mod current_servers;
mod endpoint;
mod entries;
mod etcd_ledger;
#[doc(hidden)]
pub mod fill;
mod first_frame;
mod grpc_failure;
mod keys;
mod layout;
mod ledger;
mod memory;
mod native;
mod outcome;
mod owner_leases;
mod page;
mod pool_value;
mod removal;
mod session;
mod tls;
mod transport;
mod values;
mod view_reads;
mod view_token;

use ipam_kit::Allocate;
pub use layout::{LAYOUTS, Layout};
pub use ledger::Etcd;

/// Returns the delegate, with its verbs for people.
pub fn delegate() -> Allocate<Etcd> {
    Allocate::answering(ipam_cli::answer::<Etcd>)
}
