use std::ops::ControlFlow;

use super::Bookkeeper;
use super::ledger::{Entry, Ledger};
use crate::error::Result;
use crate::keys::Misspelt;
use crate::pool::{Pool, RangeSet};

/// What can be read in a ledger and taken out of it by hand.
pub trait Books {
    /// Every entry of the network.
    fn entries(&mut self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()>;

    /// Removes entries, each only while it is still the very one, and tells which.
    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>>;

    /// Takes the store as it stands for the one to use from now on, where the allocator notices that
    /// a store was swapped or restored from a backup; tells whether it does.
    fn accept(&mut self) -> Result<bool>;

    /// What stands among the leases and is none, in words.
    fn strangers(&mut self) -> Result<Vec<String>>;

    /// The ranges of pools, which the store may know by name.
    fn sets(&mut self, pools: &[Pool]) -> Result<Vec<RangeSet>>;

    /// The misspelt keys of ranges that the store knows by the names of pools.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn misspelt(&mut self, pools: &[Pool]) -> Result<Vec<Misspelt>>;
}

impl<L: Ledger> Books for Bookkeeper<L> {
    fn entries(&mut self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()> {
        self.ledger.scan(None, each)
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.ledger.remove(entries)
    }

    fn accept(&mut self) -> Result<bool> {
        self.ledger.accept()
    }

    fn strangers(&mut self) -> Result<Vec<String>> {
        self.ledger.strangers()
    }

    fn sets(&mut self, pools: &[Pool]) -> Result<Vec<RangeSet>> {
        self.wants(pools)?.iter().map(|want| self.ledger.ranges(want)).collect()
    }

    fn misspelt(&mut self, pools: &[Pool]) -> Result<Vec<Misspelt>> {
        let wants = self.wants(pools)?;
        wants.iter().try_for_each(|want| self.ledger.ranges(want).map(drop))?;
        Ok(self.misspelt_of(&wants))
    }
}
