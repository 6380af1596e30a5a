use std::ops::ControlFlow;

use super::ledger::{Entry, Ledger};
use super::{LedgerAllocator, RequestedPools};
use crate::delegate::Request;
use crate::error::Result;
use crate::keys::MisspeltKey;
use crate::pool::RangeSet;

/// A ledger as people read it and release from it by hand.
pub trait Inspect {
    /// Every entry of the network.
    fn entries(&mut self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()>;

    /// Removes entries that have not changed since they were read, and returns those removed.
    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>>;

    /// Accepts the present store after it was swapped or restored from a backup. Returns whether
    /// the ledger notices such a change at all.
    fn accept(&mut self) -> Result<bool>;

    /// Entries among the leases that are not leases, each as a line of text.
    fn foreign_entries(&mut self) -> Result<Vec<String>>;

    /// The ranges of pools, which the store may know by name.
    fn sets(&mut self, pools: &RequestedPools) -> Result<Vec<RangeSet>>;

    /// The misspelt keys of ranges that the store knows by the names of pools.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn misspelt(&mut self, pools: &RequestedPools) -> Result<Vec<MisspeltKey>>;
}

/// Opens a ledger by the network's settings.
///
/// # Errors
/// The settings are invalid, or the ledger refuses them.
pub fn inspect<L: Ledger>(request: &Request) -> Result<impl Inspect + use<L>> {
    LedgerAllocator::<L>::open(request)
}

impl<L: Ledger> Inspect for LedgerAllocator<L> {
    fn entries(&mut self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()> {
        self.ledger.scan(None, each)
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.ledger.remove(entries)
    }

    fn accept(&mut self) -> Result<bool> {
        self.ledger.accept()
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        self.ledger.foreign_entries()
    }

    fn sets(&mut self, pools: &RequestedPools) -> Result<Vec<RangeSet>> {
        let requests = self.requests(pools.with_paths())?;
        self.ranges_of(&requests)
    }

    fn misspelt(&mut self, pools: &RequestedPools) -> Result<Vec<MisspeltKey>> {
        let requests = self.requests(pools.with_paths())?;
        // The ledger reads the ranges, and finds what is misspelt in them.
        self.ranges_of(&requests)?;
        Ok(self.misspelt_of(&requests))
    }
}
