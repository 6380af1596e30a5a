//! The delegate `ipam-da-phpipam`: leases of a whole cluster as address records of a central phpIPAM.
//!
//! `main` runs [`delegate`]; the other public items are for tests and benches.

#![warn(unreachable_pub)]

mod answers;
mod client;
mod columns;
mod config;
mod login;
mod refusal;
mod server;

use ipam_kit::Allocate;
use ipam_records::RecordLedger;
pub use server::PhpIpam;

/// The ledger of this delegate.
pub type PhpIpamLedger = RecordLedger<PhpIpam>;

/// Returns the delegate, with its verbs for people.
pub fn delegate() -> Allocate<PhpIpamLedger> {
    Allocate::answering(ipam_cli::answer::<PhpIpamLedger>)
}
