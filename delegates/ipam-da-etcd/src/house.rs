//! The seam between a call and the two ways in which it uses a store.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Question, View};

/// How a call uses the store: by our own keys alone, or beside a replaced plugin. Each method is the
/// ledger's of that name.
pub(crate) trait House: Debug {
    /// Whether candidates are tried from the cursor on alone, for nothing may be given ahead of it.
    fn is_strict(&self) -> bool;

    fn view(&mut self, question: &Question<'_>, earlier: Token) -> Result<View<Token>>;

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

/// What a view showed, for the next view and for the commit.
#[derive(Clone, Debug, Default)]
pub struct Token {
    /// What the owner holds.
    pub(crate) seen: Seen,
    /// Beside a replaced plugin alone.
    pub(crate) along: Along,
}

impl Token {
    /// The same of an owner that was seen otherwise.
    pub(crate) fn with(&self, seen: Seen) -> Self {
        Self { seen, along: self.along.clone() }
    }
}

/// What is written along with a claim for a replaced plugin that reads the same keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Along {
    /// The ranges as it writes them.
    pub(crate) ranges: Option<String>,
    /// Where its cursors were seen. Where it takes what comes next unseen, a claim goes on from the very
    /// cursor and moves it: what is given ahead of it would be given again.
    pub(crate) cursors: BTreeMap<u32, Vec<u8>>,
}

impl Along {
    /// Where a cursor was seen, as far as that is an address.
    pub(crate) fn cursor(&self, index: u32) -> Option<IpAddr> {
        std::str::from_utf8(self.cursors.get(&index)?).ok()?.parse().ok()
    }
}
