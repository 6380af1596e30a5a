//! Coming between a ledger's look and its change, whatever the store.

use std::cell::RefCell;
use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, Question, View};
use ipam_kit::allocate::{Owner, Reach, Strategy, Tries, Want};
use ipam_kit::delegate::Request;
use ipam_kit::error::Result;
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

    const REACH: Reach = L::REACH;
    const DEFAULT_ROUTES: bool = L::DEFAULT_ROUTES;
    const NAMES_APART: bool = L::NAMES_APART;
    const WAITS: bool = L::WAITS;
    const STRATEGY: Strategy = L::STRATEGY;

    fn tries(&self, claims: usize) -> Tries {
        self.0.tries(claims)
    }

    fn open(config: Self::Config, request: &Request) -> Result<Self> {
        L::open(config, request).map(Self)
    }

    fn view(&self, question: &Question<'_>) -> Result<View<Self::Token>> {
        self.0.view(question)
    }

    fn commit(
        &self,
        owner: &Owner,
        seen: Self::Token,
        change: &Change<'_>,
    ) -> Result<Commit<Self::Token>> {
        if let Some(between) = NEXT.take() {
            between();
        }
        self.0.commit(owner, seen, change)
    }

    fn remove(&self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.0.remove(entries)
    }

    fn scan(
        &self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.scan(node, each)
    }

    fn ready(&self) -> Result<()> {
        self.0.ready()
    }

    fn accept(&self) -> Result<bool> {
        self.0.accept()
    }

    fn strangers(&self) -> Result<Vec<String>> {
        self.0.strangers()
    }

    fn ranges(&self, want: &Want) -> Result<RangeSet> {
        self.0.ranges(want)
    }
}
