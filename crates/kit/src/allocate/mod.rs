//! The role of an allocator: a delegate that gives addresses and takes them back.
//!
//! There are two seams under it. A server that picks addresses itself is an [`Allocator`]. A store
//! that has to be searched is a [`Ledger`]: the [`Bookkeeper`] is the allocator over it, and holds
//! search, retry, idempotency and GC once for all of them.

mod asked;
mod attempt;
mod bookkeeper;
mod books;
pub mod document;
mod lease;
pub mod ledger;
mod piece;
mod role;
pub mod search;
mod want;

pub use asked::{Asked, asked_pools, asked_sets};
pub use bookkeeper::Bookkeeper;
pub use books::Books;
pub use lease::{Headroom, Lease, Owner, Part, Scope};
pub use ledger::{Ledger, Profile};
pub use role::{Allocate, known, open, scope};
pub use search::{Strategy, Tries};
pub use want::Want;

pub use crate::delegate::Reach;

use serde::de::DeserializeOwned;

use crate::cni::Keep;
use crate::delegate::Request;
use crate::error::Result;
use crate::keys::Key;
use crate::offer;
use crate::pool::Pool;

/// The keys of `ipam` that every allocator reads.
pub const KEYS: &[Key] = &[
    Key::All(offer::KEYS),
    Key::Value("serves"),
    Key::Value("takeover"),
    Key::Value("strategy"),
    Key::Value("statusExhaustion"),
];

/// What gives addresses out of pools, one for each.
///
/// Implement it for a server that picks addresses itself. Every method is about an [`Owner`] or a
/// [`Scope`]: a lease is never released by its address, a pod's name or a bare container id.
pub trait Allocator: Sized {
    /// What the allocator reads of the section `ipam`. Keys it does not know are other delegates'.
    type Config: DeserializeOwned;

    /// The keys of `ipam` that the allocator reads beside those that every allocator does; `None`
    /// claims every key.
    const KEYS: Option<&'static [Key]> = None;

    /// Who else takes leases from the same store.
    const REACH: Reach = Reach::Cluster;

    /// Whether a call may have to wait for a server: see
    /// [`Delegate::waits`](crate::delegate::Delegate::waits).
    const WAITS: bool = true;

    /// Takes the settings for one call.
    fn open(config: Self::Config, request: &Request) -> Result<Self>;

    /// Whether an ADD answers default routes: see [`Profile::default_routes`].
    fn gives_default_routes(&self) -> bool {
        false
    }

    /// ADD: one lease for each pool, in order; all of them or, after an error, none.
    ///
    /// The same owner gets its leases again, with [`Lease::kept`]. What it holds beside them is
    /// released; where `ipam.serves` is there, leases of other pools stay. An address asked for
    /// ([`Pool::requested_ip`]) is the one that is given, or the ADD fails:
    /// [`ErrorCode::NOT_IN_POOL`](crate::ErrorCode::NOT_IN_POOL) outside of the pool's ranges,
    /// [`ErrorCode::TAKEN`](crate::ErrorCode::TAKEN) where another owner holds it.
    fn allocate(&mut self, owner: &Owner, want: &[Pool]) -> Result<Vec<Lease>>;

    /// DEL: releases everything the owner holds and tells what that was.
    ///
    /// `known` are hints from the attachment record: a stale one must not release what is another
    /// owner's by now, and a missing one must not leave anything behind.
    fn release(&mut self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>>;

    /// Releases a part of what the owner holds and leaves the rest as it is: the undo of an ADD, or
    /// what a stale record names, where the owner may hold more by now.
    fn release_part(&mut self, owner: &Owner, part: &Part) -> Result<Vec<Lease>>;

    /// CHECK: what the owner holds.
    fn held(&mut self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>>;

    /// GC: releases what is held in the scope by attachments that are not to be kept, and tells
    /// what that was. Leases younger than the host-wide `gcGrace` stay.
    fn retain(&mut self, scope: &Scope, keep: &Keep) -> Result<Vec<Lease>>;

    /// STATUS: fails when the store cannot be reached; else tells what is free. Where that is
    /// nothing, STATUS fails for those who ask for it (`ipam.statusExhaustion`).
    fn ready(&mut self, want: &[Pool]) -> Result<Headroom>;

    /// What people can read and release by hand; `None` when only the server itself can tell.
    fn books(&mut self) -> Option<&mut dyn Books> {
        None
    }
}
