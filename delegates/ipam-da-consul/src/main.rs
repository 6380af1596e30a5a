//! The delegate `ipam-da-consul`: leases of a whole cluster in Consul's key-value store.

mod allocation;
mod cache;
mod change;
mod claim;
mod config;
mod elements;
mod held;
mod keys;
mod ledger;
mod memory;
mod pool;
mod present;
mod removal;
mod scan;
mod store;
mod txn;
mod view;
mod window;

use std::process::ExitCode;

use ipam_delegated::Allocate;
use ipam_delegated::allocate::Bookkeeper;
use ledger::Consul;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-da-consul", Allocate::<Bookkeeper<Consul>>::default())
}
