//! Leases in etcd, as a ledger.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp};
use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, Question, View};
use ipam_kit::allocate::{Owner, Profile, Reach, Tries, asked_sets};
use ipam_kit::cni::{ContainerId, IfName, Verb};
use ipam_kit::delegate::Deadline;
use ipam_kit::keys::Key;
use ipam_kit::pool::RangeSet;
use ipam_kit::{ErrorCode, Request, Result};
use serde_json::Value;

use crate::claim::Along;
use crate::client::{Answer, Client};
use crate::config::{Config, KEYS, Store};

use crate::hints::Hints;
use crate::keys::{Keys, plain};
use crate::lock::{Lock, Turn};
use crate::memory::{self, Memory};
use crate::page::found_by_key;
use crate::present;
use crate::removal::Removal;
use crate::token::Caller;

/// The leases of one network of a whole cluster.
#[derive(Debug)]
pub struct Etcd {
    pub(crate) client: Rc<Client>,
    pub(crate) keys: Keys,
    pub(crate) memory: Memory,
    pub(crate) hints: Hints,
    /// The lock of a replaced plugin.
    pub(crate) lock: Option<Lock>,
    /// Our turn in it, once we have queued in.
    pub(crate) turn: RefCell<Option<Turn>>,
    /// Our turn among the processes of this node, where each claim has to go on from the one before.
    pub(crate) node_turn: RefCell<Option<File>>,
    /// How often this call was refused for the sake of a replaced plugin.
    pub(crate) refused: Cell<u32>,
    /// What this node knows of stores.
    pub(crate) folder: PathBuf,
    /// What is to be written along with a claim, as the latest view showed it.
    pub(crate) along: RefCell<Along>,
    /// Whether the store lets us have keys of owners: always in our own layout.
    pub(crate) indexed: Cell<bool>,
    /// The ranges of this network, where the layout does not tell networks apart; none where they cannot
    /// be read.
    pub(crate) home: Vec<RangeSet>,
    /// Whether all pools are shown.
    pub(crate) shown_all: bool,
    pub(crate) deadline: Deadline,
    /// Whether a store that is not the known one is used all the same.
    pub(crate) trusting: bool,
    /// Whether this call takes no address.
    releasing: bool,
    /// Whether it is a DEL, which has to find what nobody remembers.
    pub(crate) forgets: bool,
}

/// How many branches a transaction may have.
const BRANCHES: usize = 16;

/// How many addresses of one pool are tried: in a pool that is half full, one ADD in hundreds needs a
/// second try, and each branch more costs every ADD.
const CANDIDATES: usize = 8;

impl Ledger for Etcd {
    type Config = Config;
    type Token = Seen;

    const KEYS: Option<&'static [Key]> = Some(KEYS);
    const REACH: Reach = Reach::Cluster;

    fn profile(&self) -> Profile {
        // Nothing may be given ahead of a plugin that takes what comes next unseen.
        Profile { strict: self.keys.overwrites(), ..Profile::default() }
    }

    fn tries(&self, claims: usize) -> Tries {
        let strict = self.keys.overwrites();
        // The candidates of several pools multiply.
        let fits = |each: &usize| {
            let exponent = u32::try_from(claims.max(1)).unwrap_or(u32::MAX);
            let ways = if strict { 2 * each - 1 } else { *each };
            ways.checked_pow(exponent).is_some_and(|branches| branches <= BRANCHES)
        };
        let each = (1..=CANDIDATES).rev().find(fits).unwrap_or(1);
        let scattered = if strict { 0 } else { each / 2 };
        Tries { each, scattered, sighted: each == 1 }
    }

    fn open(config: Config, request: &Request) -> Result<Self> {
        let store = config.store()?;
        let state = request.state_dir()?;
        let network = request.network.name();
        let serves: Vec<String> = match request.network.ipam().get("serves") {
            Some(Value::Array(pools)) => pools.iter().map(Value::to_string).collect(),
            _ => Vec::new(),
        };
        let place = match store.layout.old {
            None => store.prefix.clone(),
            Some(_) => format!("{} in the layout {}", store.prefix, store.layout.name),
        };
        let memory = Memory::open(&state, network, &serves, &place);
        let dial = |store: &Store, deadline| {
            let caller = store.user.clone().map(|(user, password)| {
                // A token is known to the servers of one store alone.
                let name = plain(&format!("{user}@{}", store.endpoints[0]));
                let cache = memory::folder(&state).join("tokens").join(name);
                Caller::new(user, password, cache)
            });
            let client = Client::new(store, caller, request.unreached(), deadline)?;
            if let Some(endpoint) = memory.endpoint() {
                client.prefer(&endpoint);
            }
            Ok(client)
        };
        let keys = Keys::new(store.layout, &store.prefix, network);
        let client = match present::proven(request, &store, &memory, &keys, dial) {
            Some(client) => client,
            None => dial(&store, request.deadline)?,
        };
        Ok(Self {
            client: Rc::new(client),
            turn: RefCell::default(),
            node_turn: RefCell::default(),
            folder: memory::folder(&state),
            refused: Cell::default(),
            indexed: Cell::new(keys.is_native() || !memory.is_unindexed()),
            memory,
            hints: Hints::open(&state, &store.result_cache),
            lock: keys.old().map(|old| Lock::at(old.lock, |place| keys.place(place))),
            along: RefCell::default(),
            home: if keys.is_flat() { asked_sets(request) } else { Vec::new() },
            keys,
            shown_all: !request.network.ipam().contains_key("serves"),
            deadline: request.deadline,
            // A person who looks at a store that was swapped is to see what is in it.
            trusting: request.is_reassert() || request.environment.text("CNI_COMMAND").is_none(),
            forgets: request.verb == Verb::Del,
            releasing: !matches!(request.verb, Verb::Add | Verb::Status),
        })
    }

    fn view(&mut self, question: &Question<'_>, _: Option<Seen>) -> Result<View<Seen>> {
        self.adapting(|| self.view_of(question))
    }

    fn commit(&mut self, owner: &Owner, seen: Seen, change: &Change<'_>) -> Result<Commit<Seen>> {
        if !seen.is_all_of(change) {
            return Ok(Commit::Lost { taken: Vec::new(), view: None });
        }
        if change.claim.is_empty() && change.keep.is_empty() && change.drop.is_empty() {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        }
        self.adapting(|| self.change_in_parts(owner, &seen, change))
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let removed = self.adapting(|| self.removal(&|answer| self.judge(answer)).run(entries))?;
        if !self.keys.is_native() {
            let holders = removed.iter().filter_map(|entry| entry.holder.as_ref());
            // What stands in the store need not be a name that can be a file's.
            let names = holders.filter_map(|holder| {
                let container = ContainerId::parse(&holder.container).ok()?;
                Some((container, IfName::parse(holder.ifname.as_deref()?).ok()?))
            });
            for (container, ifname) in names {
                self.hints.forget_named(&container, self.keys.network(), &ifname);
            }
        }
        Ok(removed)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(node, each)
    }

    fn ready(&mut self) -> Result<()> {
        let looked = self.adapting(|| {
            let (answer, latest) = self.look()?;
            self.judge(&answer)?;
            if self.indexed.get() {
                self.memory.judge_latest(latest)?;
                self.memory.note_latest(&answer, latest);
            }
            Ok(())
        });
        looked.map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))?;
        if self.keys.overwrites() {
            self.warn_of_overwriting();
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<bool> {
        let (answer, latest) = self.adapting(|| self.look())?;
        let latest = self.indexed.get().then_some(latest);
        self.memory.accept(&answer, self.client.answering(), latest)?;
        Ok(true)
    }
}

impl Etcd {
    /// Does something, once more without an index where the store does not let us have one beside a
    /// replaced system's keys.
    pub(crate) fn adapting<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        let refused = match act() {
            Err(error) if !self.keys.is_native() && self.indexed.get() => error,
            other => return other,
        };
        if !self.client.was_denied() {
            return Err(refused);
        }
        self.indexed.set(false);
        let done = act();
        match &done {
            Ok(_) => self.memory.note_unindexed(),
            Err(_) => self.indexed.set(true),
        }
        done
    }

    /// Asks something that changes nothing of the store that is known.
    pub(crate) fn ask(&self, txn: &Txn) -> Result<Answer> {
        let answer = self.client.read(txn)?;
        self.judge(&answer)?;
        Ok(answer)
    }

    /// Reads something that every call may read, and the revision of the latest claim; 0 when there is
    /// none.
    pub(crate) fn look(&self) -> Result<(Answer, i64)> {
        let any = || GetOptions::new().with_prefix().with_limit(1).with_keys_only();
        let reads = match self.indexed.get() {
            true => vec![
                TxnOp::get(self.keys.latest(), None),
                TxnOp::get(self.keys.owners(), Some(any())),
            ],
            false => vec![TxnOp::get(self.keys.leases(), Some(any()))],
        };
        let answer = self.client.read(&Txn::new().and_then(reads))?;
        let found = found_by_key(&answer.response);
        let latest = found.get(self.keys.latest().as_bytes()).map_or(0, KeyValue::mod_revision);
        Ok((answer, latest))
    }

    pub(crate) fn judge(&self, answer: &Answer) -> Result<()> {
        self.memory.note_endpoint(self.client.preferred());
        if self.trusting { Ok(()) } else { self.memory.judge(answer, self.releasing) }
    }

    pub(crate) fn removal<'a>(&'a self, judge: &'a dyn Fn(&Answer) -> Result<()>) -> Removal<'a> {
        Removal { client: &self.client, keys: &self.keys, judge, indexed: self.indexed.get() }
    }
}
