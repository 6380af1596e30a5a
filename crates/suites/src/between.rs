//! Calls between a view of any ledger and its commit.
//!
//! Both suites have checks in which another call changes the store after a view. They run if the
//! test puts the ledger into [`InterleavedLedger`] and gives the suites [`next_commit`]:
//!
//! ```
//! use ipam_kit::Result;
//! use ipam_kit::allocate::{Allocate, Reach};
//! use ipam_kit::cni::NetworkName;
//! use ipam_suites::between::{CallBetween, InterleavedLedger, next_commit};
//! use ipam_suites::ledger_suite::LedgerSubject;
//! use ipam_suites::subject::InProcess;
//! # // A ledger that exists stands in for the author's.
//! # use ipam_suites::memory::{MemoryLedger as Site, MemoryStore};
//! # use serde_json::json;
//!
//! #[derive(Clone)]
//! struct Opened;
//!
//! impl LedgerSubject for Opened {
//!     type Ledger = InterleavedLedger<Site>;
//!
//!     fn open(&self, network: &NetworkName) -> Result<InterleavedLedger<Site>> {
//!         Ok(InterleavedLedger(Site::on(&MemoryStore::named("between"), network.clone())))
//!     }
//!
//!     fn interleave(&self, between: CallBetween) -> bool {
//!         next_commit(between)
//!     }
//! }
//! # let report = ipam_suites::ledger_suite::run(&Opened);
//! # assert_eq!(report.passed().len(), report.outcomes.len(), "{report}");
//!
//! let delegate = Allocate::<InterleavedLedger<Site>>::default();
//! let ipam = json!({"memory": "between"});
//! let subject = InProcess::new(delegate, Reach::Cluster, ipam).interleaved(next_commit);
//! # let _ = subject;
//! ```

use std::cell::RefCell;
use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery};
use ipam_kit::allocate::{ClaimLimits, Owner, PoolRequest, Profile, Reach};
use ipam_kit::delegate::Request;
use ipam_kit::error::Result;
use ipam_kit::keys::{Key, MisspeltKey};
use ipam_kit::pool::RangeSet;

/// The call between a view and a commit.
pub type CallBetween = Box<dyn FnOnce() + Send>;

thread_local! {
    static NEXT: RefCell<Option<CallBetween>> = const { RefCell::new(None) };
}

/// Calls `between` before the next commit of an [`InterleavedLedger`] on this thread. The answer, true,
/// tells the suites that it can be done.
pub fn next_commit(between: CallBetween) -> bool {
    NEXT.set(Some(between));
    true
}

/// A ledger that a test can call between its views and its commits.
#[derive(Debug)]
pub struct InterleavedLedger<L>(pub L);

impl<L: Ledger> Ledger for InterleavedLedger<L> {
    type Config = L::Config;
    type Token = L::Token;

    const KEYS: Option<&'static [Key]> = L::KEYS;
    const REACH: Reach = L::REACH;

    fn open(config: Self::Config, request: &Request) -> Result<Self> {
        L::open(config, request).map(Self)
    }

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn claim_limits(&self, claims: usize) -> ClaimLimits {
        self.0.claim_limits(claims)
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Self::Token>,
    ) -> Result<View<Self::Token>> {
        self.0.view(query, earlier)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: Self::Token,
        change: &Change<'_>,
    ) -> Result<Commit<Self::Token>> {
        if let Some(between) = NEXT.take() {
            between();
        }
        self.0.commit(owner, seen, change)
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.0.remove(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.scan(node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.0.ready()
    }

    fn accept(&mut self) -> Result<bool> {
        self.0.accept()
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        self.0.foreign_entries()
    }

    fn misspelt(&self, request: &PoolRequest) -> Vec<MisspeltKey> {
        self.0.misspelt(request)
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        self.0.ranges(request)
    }
}
