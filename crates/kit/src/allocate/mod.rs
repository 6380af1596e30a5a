//! The role of an allocator: a delegate that gives addresses and takes them back.
//!
//! The seam under it is a [`Ledger`]: where leases are recorded. [`Allocate`] is the delegate over
//! any ledger, and holds search, retry, idempotency and GC once for all of them.

mod add_planner;
mod cooldown;
mod entry;
mod inspect;
mod lease;
pub mod ledger;
mod ledger_allocator;
pub mod owner_commit;
pub mod owner_index;
mod pool_request;
pub mod present_store;
mod release;
pub mod removal;
mod requested_pools;
mod role;
pub mod search;
mod span;
pub mod store_memory;
mod unknown_commits;

pub use cooldown::{cooldown, is_resting};
pub use inspect::{Inspect, inspect};
pub use lease::{Lease, Owner, Scope};
pub use ledger::{Ledger, Profile};
pub use pool_request::{LONGEST_KEEP, PoolRequest, StickyName, parse_keep};
pub use requested_pools::{RequestedPools, requested_pools, requested_sets};
pub use role::{Allocate, known, scope};
pub use search::{ClaimLimits, Strategy};

use lease::PartialRelease;
use ledger_allocator::LedgerAllocator;

pub use crate::delegate::Reach;

use crate::ipam_section;
use crate::keys::Key;

/// The keys of `ipam` that every allocator reads.
pub const KEYS: &[Key] = &[
    Key::All(ipam_section::KEYS),
    Key::Value("serves"),
    Key::Value("takeover"),
    Key::Value("strategy"),
    Key::Value("cooldown"),
    Key::Value("statusExhaustion"),
];
