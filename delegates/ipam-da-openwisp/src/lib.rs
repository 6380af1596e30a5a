//! The delegate `ipam-da-openwisp`: leases of a whole cluster as address records of a central
//! OpenWISP IPAM.
//!
//! `main` runs [`delegate`]; the other public items are for tests and benches.

#![warn(unreachable_pub)]

mod answers;
mod client;
mod config;
mod export;
mod hints;
mod login;
mod pages;
mod server;

use ipam_kit::Allocate;
use ipam_records::RecordLedger;
pub use server::OpenWisp;

/// The ledger of this delegate.
pub type OpenWispLedger = RecordLedger<OpenWisp>;

/// Returns the delegate, with its verbs for people.
pub fn delegate() -> Allocate<OpenWispLedger> {
    Allocate::answering(ipam_cli::answer::<OpenWispLedger>)
}
