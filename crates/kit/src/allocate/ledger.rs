//! The seam between the allocator and a store of leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::SystemTime;

use serde::de::DeserializeOwned;

pub use super::entry::{Entry, Fault, Holder};
use super::{ClaimLimits, Lease, Owner, PoolRequest, Reach, Strategy};
use crate::delegate::Request;
use crate::error::{Error, Result};
use crate::keys::{Key, MisspeltKey};
use crate::pool::RangeSet;

/// Where leases are recorded: a disk, a key-value store, a cluster's objects.
///
/// A ledger is a value for one call, which nothing else uses: [`open`](Self::open) makes it, and
/// every method that may ask the store has it to itself (`&mut self`). A ledger needs no cells.
///
/// A ledger reads entries and changes them in single guarded steps. It chooses nothing and
/// retries nothing: [`Allocate`](super::Allocate) does that for every ledger. Two owners never
/// get one address, because [`commit`](Self::commit) uses the store's own atomic create, not a
/// lock and a scan.
///
/// A change names the owner's leases by address and revision: [`commit`](Self::commit) gives each
/// lease that it writes a new revision, and is [`Commit::Lost`] unless the owner holds exactly the
/// leases that the change names. The ledger in memory of `ipam-suites` is a complete one to read
/// (`crates/suites/src/memory.rs` and `table.rs`).
pub trait Ledger: Sized {
    /// The settings that the ledger reads from the section `ipam`. It ignores the keys of other
    /// delegates.
    type Config: DeserializeOwned;

    /// The keys of `ipam` that the ledger reads beside those that every allocator does
    /// ([`KEYS`](super::KEYS)); `None` claims every key.
    const KEYS: Option<&'static [Key]> = None;

    /// The state that travels from a view to the commit on it, or to the next view: a lock that is
    /// held, the revision of an index, the content read. `()` if the revisions of leases are guard
    /// enough. State of the whole call belongs in fields of the ledger.
    type Token;

    /// Whether other nodes take leases from the same store.
    const REACH: Reach;

    /// Opens the ledger for one call.
    fn open(config: Self::Config, request: &Request) -> Result<Self>;

    /// The ways in which the store differs from most.
    fn profile(&self) -> Profile {
        Profile::default()
    }

    /// The limits of one commit, by the number of its claims.
    fn claim_limits(&self, _claims: usize) -> ClaimLimits {
        ClaimLimits::IN_ORDER
    }

    /// Shows the owner's leases and the known state of the pools, in at most one round trip.
    ///
    /// If [`ViewQuery::may_guess`] is set, the view may be a guess without any round trip: nothing
    /// held and nothing taken, or the leases of the record. The commit is guarded, so that after a
    /// wrong guess it is [`Commit::Lost`]. If [`ViewQuery::need`] is [`Need::Proof`] and the view
    /// is not such a guess, it is [`View::sure`].
    ///
    /// `earlier` is the token of the previous view if nothing was committed on it: after a scan
    /// that did not reach far enough, and before a proof that follows a guess. It carries the data
    /// of that view, so that this one need not read it again; guessed data proves nothing. A token
    /// that holds a lock is dropped before this view takes the lock.
    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Self::Token>,
    ) -> Result<View<Self::Token>>;

    /// Makes the owner hold exactly the leases that `change` keeps, leaves and claims: all of them
    /// or, if anything has changed since the view, none of the change.
    ///
    /// If the store has no step over several addresses, the ledger takes back its own part. The
    /// part of a killed process stays, and the next [`view`](Self::view) of the owner shows it.
    fn commit(
        &mut self,
        owner: &Owner,
        seen: Self::Token,
        change: &Change<'_>,
    ) -> Result<Commit<Self::Token>>;

    /// Removes entries that a scan showed, each only if it has not changed since, and returns those
    /// removed. For GC and operators.
    ///
    /// # Errors
    /// Some could not be removed. The others are, and the error says so
    /// ([`removed_unless_failed`](super::removal::removed_unless_failed)).
    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>>;

    /// Shows every entry of the network of this call, in no order; only those of `node` if one is
    /// named and the store knows nodes. A scan misses no entry.
    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Fails if an ADD would fail: the store cannot be reached, or cannot be written.
    fn ready(&mut self) -> Result<()>;

    /// Accepts the present store, after it was swapped or restored from a backup. Returns whether
    /// the ledger notices such a change at all.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn accept(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Entries among the leases of the requested pools that are not leases, each with its place in
    /// the store. `lint` shows them.
    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The misspelt keys of the ranges of a pool, as far as this call has read them in the store.
    fn misspelt(&self, _request: &PoolRequest) -> Vec<MisspeltKey> {
        Vec::new()
    }

    /// The ranges of a pool, which the store may know by the pool's name.
    ///
    /// # Errors
    /// Neither the request nor the store has them.
    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        request.set.clone().ok_or_else(|| unknown_ranges(request))
    }
}

/// The error for a pool without ranges, in a store that has no named pools.
pub fn unknown_ranges(request: &PoolRequest) -> Error {
    Error::config(format_args!("{}.ranges", request.path), "missing: this store has no named pools")
        .advise("give the pool ranges, such as {\"name\": \"blue\", \"ranges\": [{\"subnet\": \"10.1.2.0/24\"}]}")
}

/// The ways in which a store differs from most. A ledger sets its own, and takes the rest from
/// `Profile::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The strategy of pools that name none. Round robin by default.
    pub strategy: Strategy,
    /// Whether an ADD answers a default route for each family of its addresses, through the pool's
    /// gateway if it has one. It does not if the chain has routes.
    pub default_routes: bool,
    /// Whether names keep pools apart: a lease of another name belongs to another pool, even inside
    /// the same ranges.
    pub names_apart: bool,
    /// Whether other users of the store take the next address without a look, so that this
    /// allocator must not run ahead of them: after a lost race it tries again in order.
    pub cursor_order_only: bool,
    /// Whether the ledger keeps an address for a name ([`PoolRequest::sticky`]). Otherwise an ADD
    /// of a pool with such a name fails.
    pub keeps_sticky: bool,
    /// Whether the ledger knows when addresses were freed ([`PoolView::resting`]). Otherwise an ADD
    /// with `ipam.cooldown` fails.
    pub knows_freed: bool,
    /// Whether the store chooses an address itself for a claim without candidates. A pool is
    /// claimed so if neither it nor the network names ranges, a strategy or an address.
    pub chooses: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            strategy: Strategy::RoundRobin,
            default_routes: false,
            names_apart: false,
            cursor_order_only: false,
            keeps_sticky: false,
            knows_freed: false,
            chooses: false,
        }
    }
}

/// A query to a ledger, before a commit or instead of one.
#[derive(Clone, Copy, Debug)]
pub struct ViewQuery<'a> {
    /// The owner of the leases.
    pub owner: &'a Owner,
    /// The leases of the attachment record: a hint.
    pub known: &'a [Lease],
    /// The pools, on ADD.
    pub requests: &'a [PoolRequest],
    /// How far to scan into each pool; as long as `requests`.
    pub scans: &'a [Scan],
    /// A guarded commit follows, so that a guess is enough.
    pub may_guess: bool,
    /// The purpose of the view, and so how sure it must be.
    pub need: Need,
}

/// The purpose of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A guarded claim follows: the view may be stale, such as from a server that lags behind.
    Claim,
    /// A release or a CHECK relies on it: a lease that the view does not show counts as released.
    Proof,
}

/// How far a view scans into a pool. A ledger may show more than it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Not at all: candidates are tried without a scan.
    None,
    /// The addresses from one to another, both included.
    Range(IpAddr, IpAddr),
    /// The whole pool, whatever it costs.
    Full,
}

/// A ledger's answer to a query.
#[derive(Clone, Debug)]
pub struct View<T> {
    /// The owner's leases of all pools. If the ledger does not know them, the prefix is as
    /// long as the address, and gateway and pool are `None`.
    pub held: Vec<Lease>,
    /// Whether the owner certainly holds nothing else: the store itself said so, to this query.
    /// False for a guess, for a view that may be stale, and if anything could not be read.
    pub sure: bool,
    /// The pools asked for, in order.
    pub pools: Vec<PoolView>,
    /// The guard of a commit on this view.
    pub token: T,
}

/// A view of one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolView {
    /// The ranges, if the store knows them and the pool does not bring them; or the part of the
    /// pool's ranges that the store can record.
    pub set: Option<RangeSet>,
    /// The address that this pool gave last, after which round robin continues. The ledger keeps
    /// it: a pool may ask for round robin whatever the [`Profile`] says.
    pub cursor: Option<IpAddr>,
    /// The addresses known to be taken.
    pub used: Used,
    /// The addresses that were freed less than `ipam.cooldown` ago, each with the time. They are
    /// given only if nothing else in the pool is free, those freed first before the others.
    pub resting: BTreeMap<IpAddr, SystemTime>,
    /// The notes of earlier calls.
    pub hint: Option<Hint>,
    /// The address that is kept for the sticky name or the pod of the request, and that its claim can
    /// take, whatever [`used`](Self::used) says. The ledger fails a view for a name that another
    /// owner holds, or loses the commit and fails the next view.
    pub kept: Option<IpAddr>,
    /// Whether the store chooses no address of this pool, whatever [`Profile::chooses`] says.
    pub is_searched: bool,
}

impl PoolView {
    /// Whether anything is known of its addresses, by a scan or by a hint.
    pub fn is_known(&self) -> bool {
        self.used != Used::Unknown || self.remembered().is_some() || self.kept.is_some()
    }

    /// The free addresses of the hint, if it counts and has any.
    pub(super) fn remembered(&self) -> Option<&BTreeSet<IpAddr>> {
        let hint = self.hint.as_ref().filter(|_| self.used == Used::Unknown)?;
        Some(&hint.free).filter(|free| !free.is_empty())
    }

    /// Whether others are known to take addresses of it at the same time.
    pub(super) fn is_contended(&self) -> bool {
        self.hint.as_ref().is_some_and(|hint| hint.contended)
    }
}

/// A ledger's notes about a pool, from earlier calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Some addresses that were free recently. If there are any, and [`PoolView::used`] is unknown,
    /// only these are tried.
    pub free: BTreeSet<IpAddr>,
    /// Whether other calls have recently taken addresses of the pool at the same time.
    pub contended: bool,
}

/// The taken addresses of a pool, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Used {
    /// Nothing is known.
    #[default]
    Unknown,
    /// All taken addresses in these windows, each with both its ends; the first window is the one
    /// of the query. Only addresses inside are tried, so that windows beyond the query begin where
    /// the strategy does.
    Windows(Vec<(IpAddr, IpAddr)>, BTreeSet<IpAddr>),
    /// All taken addresses; some may belong to other pools.
    All(BTreeSet<IpAddr>),
}

/// A change to the leases of an owner, as one commit makes it.
#[derive(Clone, Debug, Default)]
pub struct Change<'a> {
    /// Leases that stay. Each is written again, so that its revision changes: a DEL that read it
    /// before cannot remove it.
    pub keep: Vec<Lease>,
    /// Addresses to take.
    pub claim: Vec<Claim<'a>>,
    /// Leases that stay unchanged: of pools that this call does not request.
    pub leave: Vec<Lease>,
    /// Leases to release.
    pub drop: Vec<Lease>,
}

/// One address to take: the first of the candidates that is free, or any that the store chooses.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// The pool.
    pub request: &'a PoolRequest,
    /// Its ranges, which contain every candidate.
    pub set: RangeSet,
    /// The best address first. A store may try only the first. Empty if the store is to choose
    /// ([`Profile::chooses`]) an address that [`set`](Self::set) gives.
    pub candidates: Vec<IpAddr>,
    /// The scan to show if all candidates are taken and it costs no further round trip.
    pub next: Scan,
    /// The entry of another owner that the claim replaces, if it has not changed since.
    pub replaces: Option<Entry>,
}

impl Claim<'_> {
    /// A candidate as a lease, with the revision that the store gave it.
    pub fn lease(&self, address: IpAddr, revision: serde_json::Value) -> Lease {
        self.request.lease(&self.set, address, revision)
    }
}

/// The outcome of a commit.
#[derive(Clone, Debug)]
pub enum Commit<T> {
    /// The change was made.
    Done {
        /// The leases that stayed, in the order of `keep`, with their new revisions.
        kept: Vec<Lease>,
        /// One lease per claim, in order.
        claimed: Vec<Lease>,
    },
    /// Nothing has changed: a candidate was taken, or a lease has changed since the view.
    Lost {
        /// Candidates that were found taken.
        taken: Vec<Taken>,
        /// The present state, if it cost no further round trip.
        view: Option<View<T>>,
    },
    /// Nothing has changed: the store chooses the address of a claim, and its pool is full.
    Full {
        /// The number of the claim.
        claim: usize,
    },
    /// Nothing has changed: the view was a wrong guess, and no other owner was faster. View again.
    Outdated,
    /// The store did not reply: the change may still be made.
    Unknown,
}

/// A candidate that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The number of the claim.
    pub claim: usize,
    /// The candidate.
    pub address: IpAddr,
    /// The holder's entry. Shown for a claim with one candidate, else if it costs nothing.
    pub holder: Option<Entry>,
}
