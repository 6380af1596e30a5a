//! The seam between a call and the two ways in which it uses a store.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Question, View};

use crate::client::{Answer, Client};
use crate::session::Session;

/// How a call uses the store: by our own keys alone, or beside a replaced plugin. Each method is the
/// ledger's of that name.
pub(crate) trait House: Debug {
    /// Whether candidates are tried from the cursor on alone, for nothing may be given ahead of it.
    fn is_strict(&self) -> bool {
        false
    }

    fn view(
        &mut self,
        session: &mut Session,
        question: &Question<'_>,
        earlier: Option<Token>,
    ) -> Result<View<Token>>;

    fn commit(
        &mut self,
        session: &mut Session,
        owner: &Owner,
        token: &Token,
        change: &Change<'_>,
    ) -> Result<Commit<Token>>;

    fn remove(&mut self, session: &mut Session, entries: &[Entry]) -> Result<Vec<Entry>>;

    fn scan(&mut self, session: &mut Session, node: Option<&str>, each: Each<'_>) -> Result<()>;

    fn ready(&mut self, session: &mut Session) -> Result<()>;

    /// [`Session::look`].
    fn look(&mut self, session: &mut Session) -> Result<(Answer, Option<i64>)>;

    /// Releases what is held for the length of a call.
    fn end(&mut self, _client: &mut Client) {}
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

/// What is written along with a claim for a replaced plugin that reads the same keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Along {
    /// The ranges as it writes them.
    pub(crate) ranges: Option<String>,
    /// Where its cursors were seen. Where it takes what comes next unseen, a claim goes on from the very
    /// cursor and moves it: what is given ahead of it would be given again.
    pub(crate) cursors: BTreeMap<u32, Vec<u8>>,
}

impl From<Seen> for Token {
    fn from(seen: Seen) -> Self {
        Self { seen, along: Along::default() }
    }
}
