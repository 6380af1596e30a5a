//! The delegate `ipam-da-etcd`: leases of a whole cluster in etcd, one round trip each.

mod claim;
mod client;
mod config;
mod connection;
mod document;
mod endpoint;
mod keys;
mod ledger;
mod memory;
mod page;
mod refusal;
mod removal;
mod tls;
mod token;

use std::process::ExitCode;

use ipam_delegated::Allocate;
use ipam_delegated::allocate::Bookkeeper;
use ledger::Etcd;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-da-etcd", Allocate::<Bookkeeper<Etcd>>::default())
}
