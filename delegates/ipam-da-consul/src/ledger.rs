//! Leases in Consul, as a ledger.
//!
//! - ADD: `open` reads the configuration and what this node remembers (`session`). `view` guesses
//!   from that, or reads the owner (`owner_view`) and the pools (`pool_scan`). `commit` (`change`)
//!   writes one transaction (`change_txn`); if Consul refuses it, `refusal` decides what is next.
//! - DEL: `view` shows the leases of the record without a request; `commit` deletes them with their
//!   owner's key. If that is refused, `owner_view` reads what the owner holds, and `commit` comes
//!   again.
//! - GC, release and lists: `scan` shows entries, `remove` (`removal`) deletes them.

use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery};
use ipam_kit::allocate::owner_commit::{OwnerGuard, commit_in_parts};
use ipam_kit::allocate::{ClaimLimits, Owner, PoolRequest, Profile, Reach, Strategy};
use ipam_kit::keys::{Key, MisspeltKey};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Request, Result};

use crate::call::CallScope;
use crate::change::make_change;
use crate::config::{ConsulConfig, KEYS};
use crate::memory::ClaimMark;
use crate::ready::check_ready;
use crate::removal::Removal;
use crate::scan::{find_foreign_entries, scan_node, scan_pools};
use crate::session::ConsulSession;
use crate::txn::{Op, TxnOutcome, find};
use crate::view::view;
use crate::view_token::ViewToken;

/// The leases of one network in a whole cluster.
#[derive(Debug)]
pub struct Consul {
    call: CallScope,
    session: ConsulSession,
}

/// How many addresses a claim may choose from, so that the processes of a node choose different
/// ones.
const CANDIDATES: usize = 64;

/// How many addresses one transaction releases, with room for other keys. Only passcod gives a
/// container more.
const DROPS: usize = 60;

impl Ledger for Consul {
    type Config = ConsulConfig;
    type Token = ViewToken;

    const KEYS: Option<&'static [Key]> = Some(KEYS);
    const REACH: Reach = Reach::Cluster;

    fn open(config: ConsulConfig, request: &Request) -> Result<Self> {
        let site = config.site(request)?;
        let call = CallScope::of(request, &site)?;
        let session = ConsulSession::open(site, request, &call.keys)?;
        Ok(Self { call, session })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<ViewToken>,
    ) -> Result<View<ViewToken>> {
        if !query.requests.is_empty() {
            self.session.memory.check_not_restored()?;
        }
        view(&self.call, &mut self.session, query, earlier)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: ViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<ViewToken>> {
        if !seen.guard.is_all_of(change) {
            return Ok(Commit::Outdated);
        }
        let Self { call: CallScope { keys, .. }, session } = self;
        let without_key = |_| ViewToken::of_guess(OwnerGuard::default());
        commit_in_parts(change, DROPS, seen, without_key, |token, part| {
            make_change(keys, session, owner, token, part)
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        Removal { keys: &self.call.keys, session: &mut self.session }.remove_all(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let Self { call, session } = self;
        session.store.require_proof();
        match node {
            Some(node) => scan_node(call, session, node, each),
            None => scan_pools(call, &mut session.store, each),
        }
    }

    fn ready(&mut self) -> Result<()> {
        self.session.memory.check_not_restored()?;
        check_ready(&self.call, &mut self.session)
    }

    fn accept(&mut self) -> Result<bool> {
        let Self { call: CallScope { keys, .. }, session } = self;
        // A store that cannot be reached is not accepted.
        let marks = match session.store.read(&[Op::GetTree(keys.mark(""))])? {
            TxnOutcome::Done(pairs) => pairs,
            TxnOutcome::Failed(_) => Vec::new(),
        };
        session.memory.accept(&|node| find(&marks, &keys.mark(node)).map(ClaimMark::of))?;
        session.pools.forget_all();
        Ok(true)
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        find_foreign_entries(&self.call, &mut self.session.store)
    }

    fn misspelt(&self, request: &PoolRequest) -> Vec<MisspeltKey> {
        self.session.pools.misspelt(request)
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        let ConsulSession { store, pools, .. } = &mut self.session;
        pools.read_ranges(store, request)
    }

    fn profile(&self) -> Profile {
        Profile {
            strategy: Strategy::Lowest,
            default_routes: true,
            names_apart: true,
            ..Profile::default()
        }
    }

    fn claim_limits(&self, _claims: usize) -> ClaimLimits {
        // A transaction that fails costs the servers a write to their disks.
        ClaimLimits { each: CANDIDATES, random_candidates: 0, look_first: true }
    }
}
