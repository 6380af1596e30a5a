//! The delegate `ipam-da-kube`: leases of a whole cluster in Kubernetes, in the objects of
//! whereabouts.
//!
//! `main` runs [`delegate`]; the other public items are for tests and benches.

#![warn(unreachable_pub)]

mod claim;
mod cluster;
mod commit;
mod config;
mod freed_notes;
mod lease_mark;
mod ledger;
mod memory;
mod names;
mod new_pool;
mod objects;
mod overlap;
mod owner_notes;
mod owner_search;
mod patch;
mod pod;
mod pool_lock;
mod pools_token;
mod present;
mod read_pool;
mod release;
mod repair;
mod reserve;
mod scan;
mod session;
mod stamp;
mod sticky_claim;
mod sticky_holder;
mod sticky_lease;
mod sticky_release;
mod sticky_search;
mod sticky_store;
mod sticky_view;
mod store;
mod takeover;
mod view;

use ipam_kit::Allocate;
pub use ledger::IpPools;

/// Returns the delegate, with its verbs for people.
pub fn delegate() -> Allocate<IpPools> {
    Allocate::answering(|call| ipam_cli::answer_with::<IpPools>(call, &[repair::REPAIR]))
}
