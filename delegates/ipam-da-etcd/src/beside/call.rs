//! What lasts for one call beside a replaced plugin.

use std::path::Path;

use ipam_kit::allocate::requested_sets;
use ipam_kit::cni::Verb;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Request, Result};

use super::hints::Hints;
use super::layouts::Old;
use super::node_turn::NodeTurn;
use super::old_keys::OldKeys;
use super::queue::Queue;
use crate::session::Session;

/// A store that a replaced plugin uses, too.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(super) session: Session,
    pub(super) keys: OldKeys,
    pub(super) hints: Hints,
    pub(super) queue: Queue,
    pub(super) node_turn: NodeTurn,
    /// The ranges of this network, where the layout does not tell networks apart; empty where they
    /// cannot be read.
    pub(super) home: Option<Vec<RangeSet>>,
    /// Whether all pools are shown.
    pub(super) shown_all: bool,
    /// Whether this call is a DEL, which has to find what nobody remembers.
    pub(super) forgets: bool,
}

impl Beside {
    /// Beside the plugin of a layout; `cache` is where the runtime keeps the results of its calls.
    ///
    /// # Errors
    /// There is no state folder.
    pub(crate) fn open(
        session: Session,
        old: &Old,
        prefix: &str,
        cache: &Path,
        request: &Request,
    ) -> Result<Self> {
        let state = request.state_dir()?;
        Ok(Self {
            session,
            keys: OldKeys::new(old, prefix, request.network.name()),
            hints: Hints::open(&state, cache),
            queue: Queue::default(),
            node_turn: NodeTurn::new(&state, request.deadline),
            home: old.flat.then(|| requested_sets(request)),
            shown_all: !request.network.ipam().contains_key("serves"),
            forgets: request.verb == Verb::Del,
        })
    }

    /// Does something, once more without an index where the store does not let us have one beside
    /// the plugin's keys.
    pub(super) fn adapting<T>(&mut self, mut act: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let refused = match act(self) {
            Err(error) if self.session.indexed => error,
            other => return other,
        };
        if !self.session.client.was_denied() {
            return Err(refused);
        }
        self.session.indexed = false;
        let done = act(self);
        match &done {
            Ok(_) => self.session.memory.note_unindexed(),
            Err(_) => self.session.indexed = true,
        }
        done
    }
}
