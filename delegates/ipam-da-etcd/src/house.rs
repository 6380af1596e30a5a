//! The seam between a call and the two ways in which it uses a store.

use std::fmt::Debug;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};

use crate::token::Token;

/// How a call uses the store: by our own keys alone, or beside a replaced plugin. Each method is
/// the ledger's of that name.
pub(crate) trait House: Debug {
    /// Whether candidates are tried from the cursor on alone, for nothing may be given ahead of it.
    fn is_strict(&self) -> bool;

    fn view(&mut self, query: &ViewQuery<'_>, earlier: Token) -> Result<View<Token>>;

    fn commit(
        &mut self,
        owner: &Owner,
        token: &Token,
        change: &Change<'_>,
    ) -> Result<Commit<Token>>;

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>>;

    fn scan(&mut self, node: Option<&str>, each: Each<'_>) -> Result<()>;

    fn ready(&mut self) -> Result<()>;

    fn accept(&mut self) -> Result<()>;
}

/// Shows an entry, and hears whether to go on.
pub(crate) type Each<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;
