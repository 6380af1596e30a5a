//! The methods of `native` and `compat` for the ledger.

use std::fmt::Debug;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};

use crate::view_token::EtcdViewToken;

/// A ledger in one kind of layout: our own, or that of a replaced plugin. Each method does what the
/// method of [`Ledger`](ipam_kit::allocate::ledger::Ledger) with its name does.
pub(crate) trait EtcdLedger: Debug {
    /// Tells whether addresses are claimed only at the cursor, because nothing may be given ahead
    /// of it.
    fn claims_in_cursor_order(&self) -> bool;

    /// Returns how many leases one transaction releases, which may have 128 operations with those
    /// inside it. The first one of several deletes the owner's key.
    fn drops_at_once(&self) -> usize {
        60
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: EtcdViewToken,
    ) -> Result<View<EtcdViewToken>>;

    fn commit(
        &mut self,
        owner: &Owner,
        token: &EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>>;

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>>;

    fn scan(&mut self, node: Option<&str>, each: EntryVisitor<'_>) -> Result<()>;

    fn ready(&mut self) -> Result<()>;

    fn accept(&mut self) -> Result<()>;

    /// Finds nothing in a layout whose scan shows foreign entries.
    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Gets each entry of a scan, and says whether the scan goes on.
pub(crate) type EntryVisitor<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;
