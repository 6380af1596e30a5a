//! What lasts for one call beside a replaced plugin.

use std::path::Path;

use ipam_kit::allocate::requested_sets;
use ipam_kit::cni::Verb;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Request, Result};

use super::layouts::ReplacedPlugin;
use super::lock_queue::LockQueue;
use super::node_turn::NodeTurn;
use super::owner_hints::OwnerHints;
use super::plugin_keys::PluginKeys;
use crate::session::EtcdSession;

/// A store that a replaced plugin uses, too.
#[derive(Debug)]
pub(crate) struct CompatLedger {
    pub(super) session: EtcdSession,
    pub(super) keys: PluginKeys,
    pub(super) hints: OwnerHints,
    pub(super) queue: LockQueue,
    pub(super) node_turn: NodeTurn,
    /// The ranges of this network, where the layout does not tell networks apart; empty where they
    /// cannot be read.
    pub(super) network_ranges: Option<Vec<RangeSet>>,
    /// Whether all pools are shown.
    pub(super) sees_all_pools: bool,
    /// Whether this call is a DEL, which has to find what nobody remembers.
    pub(super) is_del: bool,
}

impl CompatLedger {
    /// Beside the plugin of a layout; `cache` is where the runtime keeps the results of its calls.
    ///
    /// # Errors
    /// There is no state folder.
    pub(crate) fn open(
        session: EtcdSession,
        old: &ReplacedPlugin,
        prefix: &str,
        cache: &Path,
        request: &Request,
    ) -> Result<Self> {
        let state = request.state_dir()?;
        Ok(Self {
            session,
            keys: PluginKeys::new(old, prefix, request.network.name()),
            hints: OwnerHints::open(&state, cache),
            queue: LockQueue::default(),
            node_turn: NodeTurn::new(&state, request.deadline),
            network_ranges: old.flat.then(|| requested_sets(request)),
            sees_all_pools: !request.network.ipam().contains_key("serves"),
            is_del: request.verb == Verb::Del,
        })
    }

    /// Does something, once more without an index where the store does not let us have one beside
    /// the plugin's keys.
    pub(super) fn retry_without_index<T>(
        &mut self,
        mut act: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
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
            Ok(_) => self.session.memory.remember_unindexed(),
            Err(_) => self.session.indexed = true,
        }
        done
    }
}
