//! Ledgers on servers of address records: central IPAM servers that keep subnets, and a record for
//! each address in use.
//!
//! [`RecordLedger`] is the ledger over any [`RecordServer`]. A server brings its requests and what
//! their answers mean. The ledger has the rest: pools by name, the owner's mark in the text of a
//! record, one call of an owner at a time, claims that are read again, and the node's memory.
//!
//! # Rooms
//!
//! From the top: ledger (the seam's methods) → view · held · commit · claim · claim_plan · confirm ·
//! release · unowned · restored · scan · present → pools (subnets by name) · sight (a subnet as one
//! list showed it) → memory (what all calls of the node share) · node_records (all owners' notes) ·
//! owner_file (one owner's lock and note) → mark · packing → server (the seam under the ledger)

#![warn(unreachable_pub)]

mod claim;
mod claim_plan;
mod commit;
mod confirm;
mod held;
mod ledger;
mod mark;
mod memory;
mod node_records;
mod owner_file;
mod packing;
mod pools;
mod present;
mod release;
mod restored;
mod scan;
pub mod server;
mod sight;
mod unowned;
mod view;

pub use ledger::{RecordLedger, RecordToken};
pub use mark::{container_of, is_marked, short_hash};
pub use server::RecordServer;
