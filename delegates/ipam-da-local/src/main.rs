//! The delegate `ipam-da-local`: leases on the local disk, in host-local's own layout.

mod claim;
mod config;
mod folder;
mod index;
mod lease_file;
mod ledger;
mod step;

use std::process::ExitCode;

use ipam_delegated::Allocate;
use ipam_delegated::allocate::Bookkeeper;
use ledger::Local;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-da-local", Allocate::<Bookkeeper<Local>>::default())
}
