//! The delegate `ipam-da-local`: leases on the local disk, in host-local's own layout.
//!
//! `main` runs [`delegate`]; the other public items are for tests and benches.

#![warn(unreachable_pub)]

mod claim;
mod config;
mod disk_commit;
mod folder;
mod folder_view;
mod freed;
mod index;
mod lease_file;
mod ledger;
mod owner_lookup;
mod owner_table;

use ipam_kit::Allocate;
pub use ledger::Local;

/// Returns the delegate, with its verbs for people.
pub fn delegate() -> Allocate<Local> {
    Allocate::answering(ipam_cli::answer::<Local>)
}
