//! Leases in etcd, as a ledger.
//!
//! `open` reads the configuration, opens a session with the store, and chooses how this call uses
//! the store: alone (`native`), or beside a plugin that it replaces (`compat`). From there each verb
//! runs downwards: `view` looks at what the owner holds (`view_reads`, `owner_leases`) or guesses
//! it. `commit` makes one transaction of a change (`commit_txn`), sends it (`client`) and says what
//! became of it (`outcome`). An ADD and a DEL are a view and a commit. GC is a `scan` and a `remove`.

use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery};
use ipam_kit::allocate::owner_commit::{OwnerGuard, commit_in_parts};
use ipam_kit::allocate::{ClaimLimits, Owner, Profile, Reach};
use ipam_kit::keys::Key;
use ipam_kit::{Request, Result};

use crate::compat::CompatLedger;
use crate::compat::whereabouts::WhereaboutsLedger;
use crate::config::{EtcdConfig, KEYS};
use crate::etcd_ledger::EtcdLedger;
use crate::layout::LayoutOrigin;
use crate::native::NativeLedger;
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// The leases of one network of a whole cluster.
#[derive(Debug)]
pub struct Etcd(Box<dyn EtcdLedger>);

/// How many branches a transaction has at most.
const BRANCHES: usize = 16;

/// How many addresses of one pool are tried: in a pool that is half full, one ADD in hundreds needs a
/// second try, and each branch more costs every ADD.
const CANDIDATES: usize = 8;

impl Ledger for Etcd {
    type Config = EtcdConfig;
    type Token = EtcdViewToken;

    const KEYS: Option<&'static [Key]> = Some(KEYS);
    const REACH: Reach = Reach::Cluster;

    fn open(config: EtcdConfig, request: &Request) -> Result<Self> {
        let store = config.store()?;
        let session = EtcdSession::open(&store, request)?;
        Ok(Self(match &store.layout.origin {
            LayoutOrigin::Native => Box::new(NativeLedger(session)),
            LayoutOrigin::Plugin(plugin) => {
                Box::new(CompatLedger::open(session, plugin, &store, request)?)
            }
            LayoutOrigin::Whereabouts => {
                Box::new(WhereaboutsLedger::open(session, &store, request)?)
            }
        }))
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<EtcdViewToken>,
    ) -> Result<View<EtcdViewToken>> {
        self.0.view(query, earlier.unwrap_or_default())
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>> {
        if !token.guard.is_all_of(change) {
            return Ok(Commit::Lost { taken: Vec::new(), view: None });
        }
        let most = self.0.drops_at_once();
        let without_key = |token: EtcdViewToken| token.with(OwnerGuard::default());
        commit_in_parts(change, most, token, without_key, |token, part| {
            self.0.commit(owner, token, part)
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.0.remove(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.scan(node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.0.ready()
    }

    fn accept(&mut self) -> Result<bool> {
        self.0.accept()?;
        Ok(true)
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        self.0.foreign_entries()
    }

    fn profile(&self) -> Profile {
        Profile { cursor_order_only: self.0.claims_in_cursor_order(), ..Profile::default() }
    }

    fn claim_limits(&self, claims: usize) -> ClaimLimits {
        let cursor_order = self.0.claims_in_cursor_order();
        let pools = u32::try_from(claims.max(1)).unwrap_or(u32::MAX);
        let mut each = CANDIDATES;
        while each > 1 && !fits_into_transaction(each, pools, cursor_order) {
            each -= 1;
        }
        let random_candidates = if cursor_order { 0 } else { each / 2 };
        ClaimLimits { each, random_candidates, look_first: each == 1 }
    }
}

/// Tells whether a transaction can try so many candidates in each of some pools: their branches
/// multiply. In the order of a cursor, each candidate but the first is tried at two positions of
/// the cursor.
fn fits_into_transaction(candidates: usize, pools: u32, cursor_order: bool) -> bool {
    let branches = if cursor_order { 2 * candidates - 1 } else { candidates };
    branches.checked_pow(pools).is_some_and(|branches| branches <= BRANCHES)
}
