//! Leases in Consul, as a ledger.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::path::PathBuf;

use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Holder, Ledger, Question, View};
use ipam_kit::allocate::{Lease, Owner, Profile, Reach, Strategy, Tries, Want, asked_pools, scope};
use ipam_kit::cni::Verb;
use ipam_kit::host::ResultCache;
use ipam_kit::keys::{Key, Misspelt};
use ipam_kit::pool::RangeSet;
use ipam_kit::{ErrorCode, Request, Result};
use ipam_servers::escape;
use log::debug;

use crate::cache::Cache;
use crate::config::{Config, KEYS};
use crate::held::{State, refused};
use crate::keys::{Keys, ROOT, judge_name};
use crate::memory::{self, Mark, Memory};
use crate::pool::{self, Definition};
use crate::present;
use crate::store::Store;
use crate::txn::{Ended, Op, Pair};

/// The leases of one network of a whole cluster.
#[derive(Debug)]
pub struct Consul {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) memory: Memory,
    /// The results that the runtime keeps.
    pub(crate) cache: ResultCache,
    /// What this node knows of pools of this store.
    pools: PathBuf,
    /// The folders of the pools that this call is about.
    pub(crate) asked: Vec<String>,
    /// Those whose ranges stand in Consul.
    named: Vec<String>,
    /// What was read of pools in this call, by name.
    pub(crate) definitions: RefCell<BTreeMap<String, Definition>>,
    /// The misspelt keys of each pool's definition.
    misspelt: RefCell<BTreeMap<String, Vec<Misspelt>>>,
    /// The index of each pool's ranges that were remembered and are relied on.
    pub(crate) believed: RefCell<BTreeMap<String, u64>>,
    /// Folder keys that the ancestor wants and that are missing.
    pub(crate) folders: RefCell<BTreeSet<String>>,
    /// What the latest view has read of the owner, which the next one need not read again.
    pub(crate) fresh: RefCell<Option<State>>,
    /// Whether the store lets us have keys of owners.
    pub(crate) indexed: Cell<bool>,
    /// Whether what the owner's key says is held against the keys of the addresses.
    pub(crate) verifies: Cell<bool>,
    /// Whether the owner's key was met though it was not seen.
    pub(crate) looked: Cell<bool>,
    /// How many races were lost.
    pub(crate) lost: Cell<u32>,
    /// Whether a store that does not know of this node's latest claim is used all the same.
    pub(crate) trusting: bool,
    /// Whether it is a DEL, which has to find what nobody remembers.
    pub(crate) forgets: bool,
    /// Whether it is a CHECK, which has to find what the ancestor gave.
    pub(crate) checks: bool,
    pub(crate) random: u64,
    /// This node's identity.
    node: Option<String>,
}

/// How many addresses are candidates of a claim, so that the processes of a node need not meet.
const CANDIDATES: usize = 64;

/// How many pools without names a network may have until their addresses are reused late.
const NUMBERS: u32 = 8;

impl Ledger for Consul {
    type Config = Config;
    type Token = Seen;

    const KEYS: Option<&'static [Key]> = Some(KEYS);
    const REACH: Reach = Reach::Cluster;
    // It waits for servers, but gives each up in its time, and the whole call in the chain's.
    const WAITS: bool = false;

    fn profile(&self) -> Profile {
        Profile {
            strategy: Strategy::Lowest,
            default_routes: true,
            names_apart: true,
            ..Profile::default()
        }
    }

    fn tries(&self, _claims: usize) -> Tries {
        // A transaction that fails costs the servers a write to their disks.
        Tries { each: CANDIDATES, scattered: 0, sighted: true }
    }

    fn open(config: Config, request: &Request) -> Result<Self> {
        let site = config.site(request)?;
        let state = request.state_dir()?;
        let network = request.network.name();
        let place =
            format!("{}#{}", site.servers[0], site.datacenter.as_deref().unwrap_or_default());
        let asked = asked_pools(request);
        for (i, name) in asked.iter().enumerate().filter_map(|(i, pool)| Some((i, pool.name()?))) {
            judge_name(name, &format!("prevResult.pools[{i}]"))?;
        }
        let stands = asked.iter().filter(|pool| pool.ranges().is_empty());
        let named = stands.filter_map(|pool| pool.name().map(str::to_owned)).collect();
        let nameless = asked.iter().any(|pool| pool.name().is_none());
        let folder = |name: Option<&str>| name.unwrap_or(network.as_str()).to_owned();
        let asked: BTreeSet<String> = asked.iter().map(|pool| folder(pool.name())).collect();
        let memory = Memory::open(&state, network);
        let cache = ResultCache::new(&site.result_cache);
        let keys = Keys::new(network, nameless);
        let store = match present::proven(request, &site, &memory, &keys) {
            Some(store) => store,
            None => Store::new(site, request.unreached(), request.deadline)?,
        };
        // What a server that is behind does not show would never be released.
        if matches!(request.verb, Verb::Del | Verb::Gc | Verb::Check) || memory.is_unindexed() {
            store.insist();
        }
        if let Some(server) = memory.server() {
            store.prefer(&server);
        }
        Ok(Self {
            store,
            keys,
            cache,
            pools: memory::folder(&state).join("pools").join(escape(&place)),
            asked: asked.into_iter().collect(),
            named,
            definitions: RefCell::default(),
            misspelt: RefCell::default(),
            believed: RefCell::default(),
            folders: RefCell::default(),
            fresh: RefCell::default(),
            indexed: Cell::new(!memory.is_unindexed()),
            verifies: Cell::new(request.verb == Verb::Check),
            looked: Cell::default(),
            lost: Cell::default(),
            // A person who looks at a store that was swapped is to see what is in it.
            trusting: request.is_reassert() || request.environment.text("CNI_COMMAND").is_none(),
            forgets: request.verb == Verb::Del,
            checks: request.verb == Verb::Check,
            random: RandomState::new().build_hasher().finish(),
            // Nothing else asks for it, and it is in several files.
            node: (request.verb == Verb::Status)
                .then(|| scope(request).ok())
                .flatten()
                .map(|scope| scope.node),
            memory,
        })
    }

    fn view(&mut self, question: &Question<'_>, _: Option<Seen>) -> Result<View<Seen>> {
        if !question.want.is_empty() && !self.trusting {
            self.memory.judge()?;
        }
        self.view_of(question)
    }

    fn commit(&mut self, owner: &Owner, seen: Seen, change: &Change<'_>) -> Result<Commit<Seen>> {
        self.fresh.take();
        if !seen.is_all_of(change) {
            return Ok(Commit::Outdated);
        }
        if change.claim.is_empty() && change.keep.is_empty() && change.drop.is_empty() {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        }
        self.change_in_parts(owner, &seen, change)
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.remove_all(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.store.insist();
        match node {
            Some(node) => self.walk_node(node, each),
            None => self.walk_pools(each),
        }
    }

    fn ready(&mut self) -> Result<()> {
        let judged = if self.trusting { Ok(()) } else { self.memory.judge() };
        judged
            .and_then(|()| self.try_rights())
            .map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))
    }

    fn accept(&mut self) -> Result<bool> {
        // Whoever accepts it is told when it cannot be reached.
        let pairs = match self.store.read(&[Op::GetTree(self.keys.mark(""))])? {
            Ended::Done(pairs) => pairs,
            Ended::Failed(_) => Vec::new(),
        };
        self.memory.accept(&|node| {
            let mark = pairs.iter().find(|pair| pair.key == self.keys.mark(node))?;
            Some(Mark { created: mark.created, index: mark.index })
        })?;
        self.forget_pools();
        Ok(true)
    }

    fn strangers(&mut self) -> Result<Vec<String>> {
        self.foreign_keys()
    }

    fn misspelt(&self, want: &Want) -> Vec<Misspelt> {
        let pool = want.pool.as_ref().filter(|_| want.set.is_none());
        pool.and_then(|pool| self.misspelt.borrow().get(pool).cloned()).unwrap_or_default()
    }

    fn ranges(&mut self, want: &Want) -> Result<RangeSet> {
        self.ranges_of(want)
    }
}

impl Consul {
    /// The ranges of a pool. What is misspelt in its definition is noted.
    pub(crate) fn read_definition(&self, pool: &str, definition: &Definition) -> Result<RangeSet> {
        self.misspelt.borrow_mut().insert(pool.to_owned(), definition.misspelt(pool));
        definition.set(pool)
    }

    /// Does without keys of owners from here on: the store lets us have none. No change is guarded by one
    /// then, so that what an owner holds has to be known for sure before it, too.
    pub(crate) fn go_without_index(&self) {
        self.indexed.set(false);
        self.store.insist();
        self.memory.note_unindexed();
    }

    /// What this node remembers of a pool: of one that brings its ranges, by its number, too.
    pub(crate) fn cache_of(&self, want: &Want) -> Cache {
        let pool = want.pool.as_deref().unwrap_or(self.keys.network().as_str());
        let name = match want.set {
            None => escape(pool),
            Some(_) => format!("{}#{}", escape(pool), want.index),
        };
        Cache::at(self.pools.join(name))
    }

    /// The same of a pool whose ranges stand in Consul.
    pub(crate) fn cache_named(&self, pool: &str) -> Cache {
        Cache::at(self.pools.join(escape(pool)))
    }

    /// Forgets what is remembered of all pools: the store is another one, or another again.
    pub(crate) fn forget_pools(&self) {
        if let Err(error) = fs::remove_dir_all(&self.pools) {
            debug!("{} cannot be removed: {error}", self.pools.display());
        }
    }

    /// Notes that an address was given back. Of a pool that brought its ranges, nobody knows the number by now.
    pub(crate) fn note_given_back(&self, lease: &Lease) {
        let pool = escape(lease.pool.as_deref().unwrap_or(self.keys.network().as_str()));
        let numbered = (0..NUMBERS).map(|number| format!("{pool}#{number}"));
        for name in [pool.clone()].into_iter().chain(numbered) {
            Cache::at(self.pools.join(name)).give_back(lease.address.addr());
        }
    }

    /// Fails where an ADD would: the token may not write, a pool is missing or wrong, the store was restored.
    fn try_rights(&self) -> Result<()> {
        let mut ops: Vec<Op> =
            self.named.iter().map(|pool| Op::Get(Keys::definition(pool))).collect();
        ops.extend(self.asked.iter().map(|pool| Op::CheckAbsent(Keys::probe(pool))));
        let mark = self.node.as_ref().map(|node| self.keys.mark(node));
        ops.extend(mark.iter().map(|mark| Op::GetTree(mark.clone())));
        let pairs = match self.store.read(&ops)? {
            Ended::Done(pairs) => pairs,
            Ended::Failed(failures) => {
                let first = failures.first().and_then(|failure| ops.get(failure.place));
                let denied = failures.iter().find(|failure| failure.is_denied());
                return Err(match (denied.and_then(|failure| ops.get(failure.place)), first) {
                    (Some(op), _) => crate::change::denied(op),
                    (None, Some(Op::Get(key))) => {
                        pool::missing(key.strip_prefix(ROOT).unwrap_or_default())
                    }
                    (None, _) => refused(&ops, &failures),
                });
            }
        };
        let find = |key: &str| pairs.iter().find(|pair| pair.key == *key);
        for pool in &self.named {
            let key = Keys::definition(pool);
            let pair = find(&key).ok_or_else(|| pool::denied(&key))?;
            self.read_definition(pool, &Definition::read(pair)?)?;
        }
        self.memory.note_server(self.store.preferred());
        let (Some(node), Some(key)) = (&self.node, mark.filter(|_| self.indexed.get())) else {
            return Ok(());
        };
        if self.memory.goes_with(node, mark_of(find(&key))) {
            return Ok(());
        }
        // A leader that is none any more answers by what it knew.
        self.store.insist();
        match self.store.read(&[Op::GetTree(key.clone())])? {
            Ended::Done(pairs) => {
                let now = mark_of(pairs.iter().find(|pair| pair.key == key));
                if self.memory.goes_with(node, now) {
                    Ok(())
                } else {
                    Err(self.memory.note_set_back())
                }
            }
            Ended::Failed(failures) => Err(refused(&[], &failures)),
        }
    }

    /// Fails where the store, which shows this key of the node's latest claim, was set back: what it does
    /// not show of an owner may have been given all the same.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn judge_absence(&self, owner: &Owner, mark: Option<&Pair>) -> Result<()> {
        self.memory.judge()?;
        if !self.indexed.get() || self.memory.goes_with(&owner.scope.node, mark_of(mark)) {
            return Ok(());
        }
        Err(self.memory.note_set_back())
    }

    /// The key of an owner that an entry names, where it names all that makes one.
    pub(crate) fn owner_of(&self, holder: &Holder) -> Option<String> {
        let Holder { node: Some(node), container, ifname: Some(ifname), network } = holder else {
            return None;
        };
        let here = self.keys.network().as_str();
        Some(Keys::owner_in(network.as_deref().unwrap_or(here), node, container, ifname))
    }
}

/// A node's latest claim, by its key.
fn mark_of(pair: Option<&Pair>) -> Option<Mark> {
    pair.map(|pair| Mark { created: pair.created, index: pair.index })
}
