//! Leases in etcd, as a ledger.

use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery};
use ipam_kit::allocate::{ClaimLimits, Owner, Profile, Reach};
use ipam_kit::cni::Verb;
use ipam_kit::host::StateDir;
use ipam_kit::keys::Key;
use ipam_kit::{ErrorCode, Request, Result};
use serde_json::Value;

use crate::client::EtcdClient;
use crate::compat::CompatLedger;
use crate::config::{EtcdConfig, EtcdStore, KEYS};
use crate::credentials::Credentials;
use crate::current_servers;
use crate::etcd_ledger::EtcdLedger;
use crate::keys::{EtcdKeys, plain};
use crate::memory::{self, EtcdMemory};
use crate::native::NativeLedger;
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// The leases of one network of a whole cluster.
#[derive(Debug)]
pub struct Etcd(Box<dyn EtcdLedger>);

/// How many branches a transaction may have.
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
        let session = open(&store, request)?;
        let Some(old) = &store.layout.replaced else {
            return Ok(Self(Box::new(NativeLedger(session))));
        };
        let EtcdStore { prefix, result_cache, .. } = &store;
        Ok(Self(Box::new(CompatLedger::open(session, old, prefix, result_cache, request)?)))
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
        if !token.seen.is_all_of(change) {
            return Ok(Commit::Lost { taken: Vec::new(), view: None });
        }
        if change.claim.is_empty() && change.keep.is_empty() && change.drop.is_empty() {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        }
        self.0.commit(owner, &token, change)
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
        self.0.ready().map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))
    }

    fn accept(&mut self) -> Result<bool> {
        self.0.accept()?;
        Ok(true)
    }

    fn profile(&self) -> Profile {
        Profile { cursor_order_only: self.0.is_strict(), ..Profile::default() }
    }

    fn claim_limits(&self, claims: usize) -> ClaimLimits {
        let strict = self.0.is_strict();
        // The candidates of several pools multiply.
        let fits = |each: &usize| {
            let exponent = u32::try_from(claims.max(1)).unwrap_or(u32::MAX);
            let ways = if strict { 2 * each - 1 } else { *each };
            ways.checked_pow(exponent).is_some_and(|branches| branches <= BRANCHES)
        };
        let each = (1..=CANDIDATES).rev().find(fits).unwrap_or(1);
        let random_candidates = if strict { 0 } else { each / 2 };
        ClaimLimits { each, random_candidates, look_first: each == 1 }
    }
}

/// The store that a call is about, by its servers as they are named or were recorded.
fn open(store: &EtcdStore, request: &Request) -> Result<EtcdSession> {
    let state = request.state_dir()?;
    let memory = remembered(store, &state, request);
    let keys = EtcdKeys::new(store.layout.key_paths(), &store.prefix, request.network.name());
    let indexed = store.layout.replaced.is_none() || !memory.is_unindexed();
    let dial = |store: &EtcdStore, deadline| {
        let credentials = store.user.clone().map(|(user, password)| {
            // A token is known to the servers of one store alone.
            let name = plain(&format!("{user}@{}", store.endpoints[0]));
            let cache = memory::folder(&state).join("tokens").join(name);
            Credentials::new(user, password, cache)
        });
        let mut client = EtcdClient::new(store, credentials, request.unreached(), deadline)?;
        if let Some(endpoint) = memory.endpoint() {
            client.prefer(&endpoint);
        }
        Ok(client)
    };
    let client =
        match current_servers::connect_if_proven(request, store, &memory, &keys, indexed, dial) {
            Some(client) => client,
            None => dial(store, request.deadline)?,
        };
    Ok(EtcdSession {
        client,
        keys,
        memory,
        indexed,
        // A person who looks at a store that was swapped is to see what is in it.
        accepts_any_store: request.is_reassert()
            || request.environment.text("CNI_COMMAND").is_none(),
        releasing: !matches!(request.verb, Verb::Add | Verb::Status),
    })
}

/// What this node remembers of the store.
fn remembered(store: &EtcdStore, state: &StateDir, request: &Request) -> EtcdMemory {
    let serves: Vec<String> = match request.network.ipam().get("serves") {
        Some(Value::Array(pools)) => pools.iter().map(Value::to_string).collect(),
        _ => Vec::new(),
    };
    let place = match store.layout.replaced {
        None => store.prefix.clone(),
        Some(_) => format!("{} in the layout {}", store.prefix, store.layout.name),
    };
    EtcdMemory::open(state, request.network.name(), &serves, &place)
}
