//! The delegate `ipam-da-etcd`: leases of a whole cluster in etcd, one round trip each.

mod change;
mod claim;
mod client;
mod codec;
mod config;
mod connection;
mod document;
mod endpoint;
mod greeting;
mod held;
mod hints;
mod keys;
mod layout;
mod ledger;
mod lock;
mod memory;
mod page;
mod present;
mod refusal;
mod removal;
mod scan;
mod tls;
mod token;
mod view;
mod written;

use std::process::ExitCode;

use ipam_delegated::Allocate;
use ipam_delegated::allocate::Bookkeeper;
use ledger::Etcd;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-da-etcd", Allocate::<Bookkeeper<Etcd>>::default())
}
