//! Leases in the layout of a replaced plugin, which reads and writes the same keys.
//!
//! ADD and DEL run as in `native`, with more on the way. `view` also reads the plugin's cursors
//! (`plugin_keys`) and the addresses that this node remembers (`owner_hints`), because a value names
//! only a container (`owner_leases`). `commit` adds to the transaction what the plugin has to find
//! (`additions`), and repeats it while the plugin holds its lock (`plugin_lock`, `lock_queue`).

mod additions;
mod commit;
mod key_format;
pub(crate) mod layouts;
mod lock_queue;
mod node_turn;
mod owner_hints;
mod owner_leases;
mod plugin_keys;
mod plugin_lock;
mod scan;
mod stretches;
mod view;
pub(crate) mod whereabouts;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};
use ipam_kit::allocate::{Owner, requested_sets};
use ipam_kit::cni::{ContainerId, IfName, Verb};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Request, Result};

use self::layouts::ReplacedPlugin;
use self::lock_queue::LockQueue;
use self::node_turn::NodeTurn;
use self::owner_hints::OwnerHints;
use self::plugin_keys::PluginKeys;
use crate::config::EtcdStore;
use crate::etcd_ledger::{EntryVisitor, EtcdLedger};
use crate::removal::remove;
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// A store that a replaced plugin uses, too.
#[derive(Debug)]
pub(crate) struct CompatLedger {
    session: EtcdSession,
    keys: PluginKeys,
    hints: OwnerHints,
    queue: LockQueue,
    node_turn: NodeTurn,
    /// The ranges of this network, in a layout that does not tell networks apart; empty when they
    /// cannot be read.
    network_ranges: Option<Vec<RangeSet>>,
    /// Whether all pools are shown.
    sees_all_pools: bool,
    /// Whether this call is a DEL, which has to find leases that no record and no key names.
    is_del: bool,
}

impl CompatLedger {
    /// Returns a ledger in the layout of this plugin.
    ///
    /// # Errors
    /// The state folder is missing.
    pub(crate) fn open(
        session: EtcdSession,
        plugin: &ReplacedPlugin,
        store: &EtcdStore,
        request: &Request,
    ) -> Result<Self> {
        let state = request.state_dir()?;
        Ok(Self {
            session,
            keys: PluginKeys::new(plugin, &store.prefix, request.network.name()),
            hints: OwnerHints::open(&state, &store.result_cache),
            queue: LockQueue::default(),
            node_turn: NodeTurn::new(&state, request.deadline),
            network_ranges: plugin.flat.then(|| requested_sets(request)),
            sees_all_pools: !request.network.ipam().contains_key("serves"),
            is_del: request.verb == Verb::Del,
        })
    }

    /// Does something. If the store denies it because of our own keys beside the plugin's, does it
    /// once more without them, and remembers that.
    fn retry_without_index<T>(&mut self, mut act: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let error = match act(self) {
            Err(error) if self.session.indexed => error,
            other => return other,
        };
        if !self.session.client.was_denied() {
            return Err(error);
        }
        self.session.indexed = false;
        let retried = act(self);
        match &retried {
            Ok(_) => self.session.memory.remember_unindexed(),
            Err(_) => self.session.indexed = true,
        }
        retried
    }
}

impl EtcdLedger for CompatLedger {
    /// Tells whether the plugin overwrites: it takes the next address without a look.
    fn claims_in_cursor_order(&self) -> bool {
        self.keys.overwrites
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: EtcdViewToken,
    ) -> Result<View<EtcdViewToken>> {
        self.retry_without_index(|ledger| view::view(ledger, query, &earlier))
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>> {
        self.retry_without_index(|ledger| commit::commit(ledger, owner, token, change))
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let removed = self.retry_without_index(|ledger| remove(&mut ledger.session, entries))?;
        for holder in removed.iter().filter_map(|entry| entry.holder.as_ref()) {
            // A name in the store need not be one that a file can have.
            let ifname = holder.ifname.as_deref().map(IfName::parse);
            let container = ContainerId::parse(&holder.container);
            if let (Ok(container), Some(Ok(ifname))) = (container, ifname) {
                self.hints.forget_named(&container, self.session.keys.network(), &ifname);
            }
        }
        Ok(removed)
    }

    fn scan(&mut self, node: Option<&str>, each: EntryVisitor<'_>) -> Result<()> {
        scan::scan(self, node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.retry_without_index(|ledger| {
            let CompatLedger { session, keys, .. } = ledger;
            let ranges = keys.ranges().map(str::to_owned);
            let written = [session.keys.leases().to_owned(), keys.cursor(0)].into_iter();
            session.ready(keys.lock().read(None), written.chain(ranges).collect())
        })?;
        if self.keys.overwrites {
            scan::warn_of_overwriting(self);
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let latest = self.retry_without_index(|ledger| ledger.session.read_latest_claim())?;
        self.session.accept(latest)
    }
}

impl Drop for CompatLedger {
    /// Releases the plugin's lock, however a call ends.
    fn drop(&mut self) {
        self.queue.end(&mut self.session.client);
    }
}
