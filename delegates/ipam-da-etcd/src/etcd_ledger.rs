//! The seam between a call and the two ways in which it uses a store.

use std::fmt::Debug;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};

use crate::view_token::EtcdViewToken;

/// How a call uses the store: by our own keys alone, or beside a replaced plugin. Each method is
/// the ledger's of that name.
pub(crate) trait EtcdLedger: Debug {
    /// Whether candidates are tried from the cursor on alone, for nothing may be given ahead of it.
    fn is_strict(&self) -> bool;

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
}

/// Shows an entry, and hears whether to go on.
pub(crate) type EntryVisitor<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;
