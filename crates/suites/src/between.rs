//! Coming between a ledger's look and its change, whatever the store.
//!
//! Both suites have checks in which another call changes the store after a look. They run where the
//! test puts the ledger into [`Between`] and hands the suites [`next_commit`]:
//!
//! ```
//! use ipam_kit::Result;
//! use ipam_kit::allocate::{Allocate, Reach};
//! use ipam_kit::cni::NetworkName;
//! use ipam_suites::between::{Between, next_commit};
//! use ipam_suites::ledger_suite::Stage;
//! use ipam_suites::subject::InProcess;
//! # // A ledger that exists stands in for the author's.
//! # use ipam_suites::memory::{Memory as Site, Store};
//! # use serde_json::json;
//!
//! #[derive(Clone)]
//! struct Opened;
//!
//! impl Stage for Opened {
//!     type Ledger = Between<Site>;
//!
//!     fn open(&self, network: &NetworkName) -> Result<Between<Site>> {
//!         Ok(Between(Site::on(&Store::named("between"), network.clone())))
//!     }
//!
//!     fn interleave(&self, between: Box<dyn FnOnce() + Send>) -> bool {
//!         next_commit(between)
//!     }
//! }
//! # let report = ipam_suites::ledger_suite::run(&Opened);
//! # assert_eq!(report.passed().len(), report.outcomes.len(), "{report}");
//!
//! let delegate = Allocate::<Between<Site>>::default();
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
use ipam_kit::keys::{Key, Misspelt};
use ipam_kit::pool::RangeSet;

thread_local! {
    static NEXT: RefCell<Option<Box<dyn FnOnce() + Send>>> = const { RefCell::new(None) };
}

/// Calls `between` before the next commit of a [`Between`] on this thread. True, as the suites ask
/// whether it can be done.
pub fn next_commit(between: Box<dyn FnOnce() + Send>) -> bool {
    NEXT.set(Some(between));
    true
}

/// A ledger that lets a test come between.
#[derive(Debug)]
pub struct Between<L>(pub L);

impl<L: Ledger> Ledger for Between<L> {
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

    fn misspelt(&self, request: &PoolRequest) -> Vec<Misspelt> {
        self.0.misspelt(request)
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        self.0.ranges(request)
    }
}
