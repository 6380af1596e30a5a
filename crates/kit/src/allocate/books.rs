use std::ops::ControlFlow;

use super::ledger::{Entry, Ledger};
use super::{Bookkeeper, Want};
use crate::error::Result;
use crate::keys::Misspelt;
use crate::pool::{Pool, RangeSet};

/// What can be read in a ledger and taken out of it by hand.
pub trait Books {
    /// Every entry of the network.
    fn entries(&self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()>;

    /// Removes entries, each only while it is still the very one, and tells which.
    fn remove(&self, entries: &[Entry]) -> Result<Vec<Entry>>;

    /// Takes the store as it stands for the one to use from now on, where the allocator notices that
    /// a store was swapped or restored from a backup; tells whether it does.
    fn accept(&self) -> Result<bool>;

    /// What stands among the leases and is none, in words.
    fn strangers(&self) -> Result<Vec<String>>;

    /// The ranges of pools, which the store may know by name.
    fn sets(&self, pools: &[Pool]) -> Result<Vec<RangeSet>>;

    /// The misspelt keys of ranges that the store knows by the names of pools.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn misspelt(&self, pools: &[Pool]) -> Result<Vec<Misspelt>>;
}

impl<L: Ledger> Books for Bookkeeper<L> {
    fn entries(&self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()> {
        self.ledger.scan(None, each)
    }

    fn remove(&self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.ledger.remove(entries)
    }

    fn accept(&self) -> Result<bool> {
        self.ledger.accept()
    }

    fn strangers(&self) -> Result<Vec<String>> {
        self.ledger.strangers()
    }

    fn sets(&self, pools: &[Pool]) -> Result<Vec<RangeSet>> {
        Want::read(pools, L::STRATEGY)?.iter().map(|want| self.ledger.ranges(want)).collect()
    }

    fn misspelt(&self, pools: &[Pool]) -> Result<Vec<Misspelt>> {
        let wants = Want::read(pools, L::STRATEGY)?;
        wants.iter().try_for_each(|want| self.ledger.ranges(want).map(drop))?;
        Ok(self.misspelt_of(&wants))
    }
}
