//! The role of an allocator: a delegate that gives addresses and takes them back.
//!
//! The seam under it is a [`Ledger`]: where leases are recorded. [`Allocate`] is the delegate over
//! any ledger, and holds search, retry, idempotency and GC once for all of them.

mod asked;
mod attempt;
mod bookkeeper;
mod books;
pub mod document;
mod entry;
mod lease;
pub mod ledger;
mod piece;
mod role;
pub mod search;
mod unsure;
mod want;

pub use asked::{Asked, asked_pools, asked_sets};
pub use books::{Books, open_books};
pub use lease::{Lease, Owner, Scope};
pub use ledger::{Ledger, Profile};
pub use role::{Allocate, known, scope};
pub use search::{Strategy, Tries};
pub use want::Want;

use bookkeeper::Bookkeeper;
use lease::Part;

pub use crate::delegate::Reach;

use crate::keys::Key;
use crate::offer;

/// The keys of `ipam` that every allocator reads.
pub const KEYS: &[Key] = &[
    Key::All(offer::KEYS),
    Key::Value("serves"),
    Key::Value("takeover"),
    Key::Value("strategy"),
    Key::Value("statusExhaustion"),
];
