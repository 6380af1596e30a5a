//! The seam to a store that is searched for free addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

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
/// retries nothing: that is [`Allocate`](super::Allocate)'s, once for every ledger. What
/// keeps two owners from one address is the store's own atomic create inside
/// [`commit`](Self::commit), never a lock and a scan.
///
/// A change names the owner's leases by address and revision: [`commit`](Self::commit) gives each
/// lease that it writes a new revision, and is [`Commit::Lost`] unless the owner holds exactly the
/// leases that the change names. The ledger in memory of `ipam-suites` is a complete one to read
/// (`crates/suites/src/memory.rs` and `table.rs`).
pub trait Ledger: Sized {
    /// What the ledger reads of the section `ipam`. Keys it does not know are other delegates'.
    type Config: DeserializeOwned;

    /// The keys of `ipam` that the ledger reads beside those that every allocator does
    /// ([`KEYS`](super::KEYS)); `None` claims every key.
    const KEYS: Option<&'static [Key]> = None;

    /// What travels from a view to the commit on it or to the next view: what a commit is guarded
    /// with beside the leases' revisions (a lock that is held, the revision of an index), and what
    /// the view read; `()` where the revisions of leases guard enough. What lasts for the call is in
    /// fields of the ledger.
    type Token;

    /// Who else takes leases from the same store.
    const REACH: Reach;

    /// Takes the settings for one call.
    fn open(config: Self::Config, request: &Request) -> Result<Self>;

    /// Where the store differs from most.
    fn profile(&self) -> Profile {
        Profile::default()
    }

    /// What one commit tries, by the number of its claims.
    fn claim_limits(&self, _claims: usize) -> ClaimLimits {
        ClaimLimits::IN_ORDER
    }

    /// What the owner holds and what is known of the pools, in at most one round trip.
    ///
    /// Where [`ViewQuery::may_guess`] allows, it may be a guess without any round trip (nothing
    /// held, nothing taken; or the leases that the record knows): the commit is guarded, and after
    /// a wrong guess it is [`Commit::Lost`]. Where [`ViewQuery::need`] is [`Need::Proof`] and the view is
    /// not such a guess, it is [`View::sure`].
    ///
    /// `earlier` is the token of the view before, where nothing was committed on it: after a scan
    /// that did not reach far enough, and before a proof that follows a guess. It carries what that view
    /// read, so that this one need not read it again; what was guessed proves nothing. A token that
    /// holds a lock is dropped before this view takes the lock.
    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Self::Token>,
    ) -> Result<View<Self::Token>>;

    /// Makes the owner hold exactly what `change` keeps, leaves and claims: all of it or, when anything
    /// is not as it was seen, nothing.
    ///
    /// Where the store has no step over several addresses, the ledger takes back its own part. What
    /// it cannot take back (it was killed), the next [`view`](Self::view) of the owner shows.
    fn commit(
        &mut self,
        owner: &Owner,
        seen: Self::Token,
        change: &Change<'_>,
    ) -> Result<Commit<Self::Token>>;

    /// Removes entries that a scan showed, each only while it is still the very one, and tells
    /// which: GC and operators.
    ///
    /// # Errors
    /// Some could not be removed. The others are, and the error says so.
    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>>;

    /// Every entry of the network of this call, in no order; only those of `node` where one is
    /// named and the store knows nodes. What it does not show surely is not there.
    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Fails where an ADD would: the store cannot be reached or not be written.
    fn ready(&mut self) -> Result<()>;

    /// Accepts the store as it is now, after it was swapped or restored from a backup. Answers whether the
    /// ledger notices such a change at all.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn accept(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Entries among the leases of the requested pools that are not leases, each with its place in the
    /// store; `lint` shows them.
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

/// A pool without ranges came to a ledger that knows none by name.
pub fn unknown_ranges(request: &PoolRequest) -> Error {
    Error::config(format_args!("{}.ranges", request.path), "missing: this store has no named pools")
        .advise("give the pool ranges, such as {\"name\": \"blue\", \"ranges\": [{\"subnet\": \"10.1.2.0/24\"}]}")
}

/// Where a store differs from most: a ledger names what it turns, and takes the rest from
/// `Profile::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// How addresses are chosen where a pool does not say. Round robin by default.
    pub strategy: Strategy,
    /// An ADD answers a default route for each family of its addresses, through the gateway of the
    /// pool where it has one, unless the chain has routes.
    pub default_routes: bool,
    /// Each pool has addresses of its own by its name: a lease of another name is of another pool,
    /// also inside the same ranges.
    pub names_apart: bool,
    /// Other users of the store take what comes next unseen, so that nothing may be taken ahead of
    /// them: a lost race is tried again in order.
    pub cursor_order_only: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            strategy: Strategy::RoundRobin,
            default_routes: false,
            names_apart: false,
            cursor_order_only: false,
        }
    }
}

/// What a ledger is asked before a commit, or instead of one.
#[derive(Clone, Copy, Debug)]
pub struct ViewQuery<'a> {
    /// Whose leases.
    pub owner: &'a Owner,
    /// What the attachment record remembers of them: a hint.
    pub known: &'a [Lease],
    /// The pools, on ADD.
    pub requests: &'a [PoolRequest],
    /// How far to scan into each pool; as long as `requests`.
    pub scans: &'a [Scan],
    /// A guarded commit follows, so that a guess is enough.
    pub may_guess: bool,
    /// What the answer is for, and so how sure it has to be.
    pub need: Need,
}

/// What a view is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A guarded claim follows: the view may be stale, as that of a server that has not caught up.
    Claim,
    /// A release or a CHECK ends by it: what the view does not show is taken not to be held.
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

/// What a ledger shows.
#[derive(Clone, Debug)]
pub struct View<T> {
    /// What the owner holds, of whatever pool. Where the ledger does not know prefix length,
    /// gateway and pool, they are the host's, none and none.
    pub held: Vec<Lease>,
    /// Whether the owner surely holds nothing else: the store itself has said so, to this query. False
    /// for a guess, for a view that may be stale, and wherever something could not be read.
    pub sure: bool,
    /// The pools asked for, in order.
    pub pools: Vec<PoolView>,
    /// What a commit on this view is guarded with.
    pub token: T,
}

/// What a view shows of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolView {
    /// The ranges, where the store knows them and the pool does not bring them.
    pub set: Option<RangeSet>,
    /// The address last given out of this pool, after which round robin goes on. The ledger keeps it:
    /// a pool may ask for round robin whatever the [`Profile`] says.
    pub cursor: Option<IpAddr>,
    /// What is known to be taken.
    pub used: Used,
    /// What earlier calls have left.
    pub hint: Option<Hint>,
}

impl PoolView {
    /// Whether anything is known of its addresses, by a scan or by a hint.
    pub fn is_known(&self) -> bool {
        self.used != Used::Unknown || self.remembered().is_some()
    }

    /// The free addresses of the hint, where it counts and has any.
    pub(super) fn remembered(&self) -> Option<&BTreeSet<IpAddr>> {
        let hint = self.hint.as_ref().filter(|_| self.used == Used::Unknown)?;
        Some(&hint.free).filter(|free| !free.is_empty())
    }

    /// Whether others are known to take addresses of it at the same time.
    pub(super) fn is_contended(&self) -> bool {
        self.hint.as_ref().is_some_and(|hint| hint.contended)
    }
}

/// What a ledger remembers of a pool from earlier calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Some addresses that were free not long ago. Where there are any, and [`PoolView::used`] is
    /// unknown, nothing else is tried.
    pub free: BTreeSet<IpAddr>,
    /// Whether others were met not long ago who take addresses of the pool at the same time.
    pub contended: bool,
}

/// What is known of the addresses of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Used {
    /// Nothing is known.
    #[default]
    Unknown,
    /// All that are taken in these windows, each from one address to another, both included; the
    /// first is the one of the query. Nothing outside is tried, so that windows beyond the query
    /// begin where the strategy does.
    Windows(Vec<(IpAddr, IpAddr)>, BTreeSet<IpAddr>),
    /// All that are taken; there may be others than the pool's among them.
    All(BTreeSet<IpAddr>),
}

/// What an owner is to hold after a commit, and no longer.
#[derive(Clone, Debug, Default)]
pub struct Change<'a> {
    /// Leases that stay. Each is written anew, so that its revision changes: a DEL that read it
    /// before cannot remove it.
    pub keep: Vec<Lease>,
    /// Addresses to take.
    pub claim: Vec<Claim<'a>>,
    /// Leases that stay as they are: of pools that this call does not request.
    pub leave: Vec<Lease>,
    /// Leases to release.
    pub drop: Vec<Lease>,
}

/// One address to take: the first of the candidates that is free.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// The pool.
    pub request: &'a PoolRequest,
    /// Its ranges, of which every candidate is.
    pub set: RangeSet,
    /// At least one address, the best first. A store may try only the first.
    pub candidates: Vec<IpAddr>,
    /// What to show of the pool when all candidates are taken, where that costs no further round
    /// trip.
    pub next: Scan,
    /// The entry of another owner that the claim takes the place of, while it is still that one.
    pub replaces: Option<Entry>,
}

impl Claim<'_> {
    /// A candidate as a lease, with the revision that the store gave it.
    pub fn lease(&self, address: IpAddr, revision: serde_json::Value) -> Lease {
        self.request.lease(&self.set, address, revision)
    }
}

/// What became of a commit.
#[derive(Clone, Debug)]
pub enum Commit<T> {
    /// The owner holds what was asked for.
    Done {
        /// The leases that stayed, in the order of `keep`, with their new revisions.
        kept: Vec<Lease>,
        /// One lease per claim, in order.
        claimed: Vec<Lease>,
    },
    /// Nothing has changed: a candidate was taken, or a lease was not as it was seen.
    Lost {
        /// Candidates that were found taken.
        taken: Vec<Taken>,
        /// How things stand now, where telling cost no further round trip.
        view: Option<View<T>>,
    },
    /// Nothing has changed: the view guessed wrongly, and no other owner was quicker. View again.
    Outdated,
    /// The store did not say; it may still happen.
    Unknown,
}

/// A candidate that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The number of the claim.
    pub claim: usize,
    /// The candidate.
    pub address: IpAddr,
    /// Who holds it. Told for a claim with a single candidate, else where it costs nothing.
    pub holder: Option<Entry>,
}
