//! Leases in Consul, as a ledger.

use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery};
use ipam_kit::allocate::{ClaimLimits, Owner, PoolRequest, Profile, Reach, Strategy};
use ipam_kit::keys::{Key, Misspelt};
use ipam_kit::pool::RangeSet;
use ipam_kit::{ErrorCode, Request, Result};

use crate::call::Call;
use crate::change::change_in_parts;
use crate::config::{Config, KEYS};
use crate::memory::Mark;
use crate::removal::Removal;
use crate::rights::try_rights;
use crate::scan::{foreign_keys, walk_node, walk_pools};
use crate::session::Session;
use crate::token::Token;
use crate::txn::{Ended, Op};
use crate::view::view;

/// The leases of one network of a whole cluster.
#[derive(Debug)]
pub struct Consul {
    call: Call,
    session: Session,
}

/// How many addresses are candidates of a claim, so that the processes of a node need not meet.
const CANDIDATES: usize = 64;

impl Ledger for Consul {
    type Config = Config;
    type Token = Token;

    const KEYS: Option<&'static [Key]> = Some(KEYS);
    const REACH: Reach = Reach::Cluster;

    fn open(config: Config, request: &Request) -> Result<Self> {
        let site = config.site(request)?;
        let call = Call::of(request, &site)?;
        let session = Session::open(site, request, &call.keys)?;
        Ok(Self { call, session })
    }

    fn view(&mut self, query: &ViewQuery<'_>, earlier: Option<Token>) -> Result<View<Token>> {
        if !query.requests.is_empty() {
            self.session.memory.judge()?;
        }
        view(&self.call, &mut self.session, query, earlier)
    }

    fn commit(&mut self, owner: &Owner, seen: Token, change: &Change<'_>) -> Result<Commit<Token>> {
        if !seen.seen.is_all_of(change) {
            return Ok(Commit::Outdated);
        }
        if change.claim.is_empty() && change.keep.is_empty() && change.drop.is_empty() {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        }
        change_in_parts(&self.call.keys, &mut self.session, owner, seen, change)
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
        session.store.insist();
        match node {
            Some(node) => walk_node(call, session, node, each),
            None => walk_pools(call, &mut session.store, each),
        }
    }

    fn ready(&mut self) -> Result<()> {
        let judged = self.session.memory.judge();
        judged
            .and_then(|()| try_rights(&self.call, &mut self.session))
            .map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))
    }

    fn accept(&mut self) -> Result<bool> {
        let Self { call: Call { keys, .. }, session } = self;
        // Whoever accepts it is told when it cannot be reached.
        let pairs = match session.store.read(&[Op::GetTree(keys.mark(""))])? {
            Ended::Done(pairs) => pairs,
            Ended::Failed(_) => Vec::new(),
        };
        session.memory.accept(&|node| {
            let mark = keys.mark(node);
            pairs.iter().find(|pair| pair.key == mark).map(Mark::of)
        })?;
        session.pools.forget_all();
        Ok(true)
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        foreign_keys(&self.call, &mut self.session.store)
    }

    fn misspelt(&self, want: &PoolRequest) -> Vec<Misspelt> {
        self.session.pools.misspelt(want)
    }

    fn ranges(&mut self, want: &PoolRequest) -> Result<RangeSet> {
        let Session { store, pools, .. } = &mut self.session;
        pools.ranges_of(store, want)
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
