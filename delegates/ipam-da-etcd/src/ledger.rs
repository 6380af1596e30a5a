//! Leases in etcd, as a ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use ipam_delegated::allocate::ledger::{
    Change, Commit, Entry, Ledger, Look, PoolView, Question, Taken, Used, View,
};
use ipam_delegated::allocate::{Lease, Owner, Reach, Tries, Want};
use ipam_delegated::cni::Verb;
use ipam_delegated::pool::RangeSet;
use ipam_delegated::{Error, ErrorCode, Request, Result};
use log::warn;
use serde_json::Value;

use crate::claim::{Outcome, Seen, Step, read_window};
use crate::client::{Answer, Client};
use crate::config::Config;
use crate::document::{self, Holding, Item, OwnerDocument, Revision};
use crate::keys::{Keys, plain};
use crate::memory::{self, Memory};
use crate::page::{below, found_by_key, pages};
use crate::removal::Removal;
use crate::token::Caller;

/// The leases of one network of a whole cluster.
#[derive(Debug)]
pub struct Etcd {
    client: Client,
    keys: Keys,
    memory: Memory,
    /// Whether a store that is not the known one is used all the same.
    trusting: bool,
    /// Whether this call takes no address.
    releasing: bool,
}

/// How many branches a transaction may have.
const BRANCHES: usize = 16;

/// How many addresses of one pool are tried: in a pool that is half full, one ADD in hundreds needs a
/// second try, and each branch more costs every ADD.
const CANDIDATES: usize = 8;

impl Ledger for Etcd {
    type Config = Config;
    type Token = Seen;

    const REACH: Reach = Reach::Cluster;
    // It waits for servers, but gives each up in its time, and the whole call in the chain's.
    const WAITS: bool = false;

    fn tries(claims: usize) -> Tries {
        // The candidates of several pools multiply.
        let fits = |each: &usize| {
            let exponent = u32::try_from(claims.max(1)).unwrap_or(u32::MAX);
            each.checked_pow(exponent).is_some_and(|branches| branches <= BRANCHES)
        };
        let each = (1..=CANDIDATES).rev().find(fits).unwrap_or(1);
        Tries { each, scattered: each / 2, sighted: each == 1 }
    }

    fn open(config: Config, request: &Request) -> Result<Self> {
        let store = config.store()?;
        let state = request.state_dir()?;
        let network = request.network.name();
        let prev_result = request.network.prev_result().ok().flatten();
        let marked =
            prev_result.is_some_and(|result| result.extra.get("reassert") == Some(&true.into()));
        let serves: Vec<String> = match request.network.ipam().get("serves") {
            Some(Value::Array(pools)) => pools.iter().map(Value::to_string).collect(),
            _ => Vec::new(),
        };
        let memory = Memory::open(&state, network, &serves, &store.prefix);
        let caller = store.user.clone().map(|(user, password)| {
            // A token is known to the servers of one store alone.
            let name = plain(&format!("{user}@{}", store.endpoints[0]));
            let cache = memory::folder(&state).join("tokens").join(name);
            Caller::new(user, password, cache)
        });
        // The chain need not undo an ADD that reached nobody.
        let unreached = match request.verb {
            Verb::Add => ErrorCode::UNREACHED,
            _ => ErrorCode::TRY_AGAIN,
        };
        let client = Client::new(&store, caller, unreached, request.deadline)?;
        if let Some(endpoint) = memory.endpoint() {
            client.prefer(&endpoint);
        }
        Ok(Self {
            client,
            keys: Keys::new(&store.prefix, network),
            memory,
            // A person who looks at a store that was swapped is to see what is in it.
            trusting: marked || request.environment.text("CNI_COMMAND").is_none(),
            releasing: !matches!(request.verb, Verb::Add | Verb::Status),
        })
    }

    fn view(&self, question: &Question<'_>) -> Result<View<Seen>> {
        let blind = question.looks.iter().all(|look| *look == Look::Nowhere);
        // In a store that will be refused nothing is written.
        let may_guess = question.may_guess && (self.trusting || !self.memory.is_set_back());
        if may_guess && blind && !question.want.is_empty() {
            let pools = question.want.iter().map(|want| self.unknown(want)).collect();
            return Ok(View { held: Vec::new(), pools, token: Seen::default() });
        }
        if may_guess && let Some(known) = Revision::of_all(question.known) {
            let token = Seen { revision: Some(known.revision), document: None };
            return Ok(View { held: question.known.to_vec(), pools: Vec::new(), token });
        }
        let mut reads = vec![TxnOp::get(self.keys.owner(question.owner), None)];
        for look in question.looks {
            reads.extend(match look {
                Look::Window(from, to) => Some(read_window(&self.keys, *from, *to)),
                _ => None,
            });
        }
        let requested = question.want.iter().filter_map(|want| want.requested);
        let known = question.known.iter().map(|lease| lease.address.addr());
        let named: BTreeSet<IpAddr> = known.chain(requested).collect();
        reads.extend(named.iter().map(|address| TxnOp::get(self.keys.lease(*address), None)));
        let answer = self.ask(&Txn::new().and_then(reads))?;
        let mut answers = answer.response.op_responses().into_iter();
        let mut next = || match answers.next() {
            Some(TxnOpResponse::Get(mut get)) => get.take_kvs(),
            _ => Vec::new(),
        };
        let owner = next();
        let mut pools = Vec::new();
        for (want, look) in question.want.iter().zip(question.looks) {
            let used = match look {
                Look::Nowhere => Used::Unknown,
                Look::Window(from, to) => Used::Window(*from, *to, self.addresses(&next())),
                Look::Everywhere => Used::All(self.all_of(want)?),
            };
            pools.push(PoolView { used, ..self.unknown(want) });
        }
        let leases: Vec<KeyValue> = named.iter().flat_map(|_| next()).collect();
        let (held, token) = self.holding(question.owner, &owner, &leases, &named)?;
        Ok(View { held, pools, token })
    }

    fn commit(&self, owner: &Owner, seen: Seen, change: &Change<'_>) -> Result<Commit<Seen>> {
        if !seen.is_all_of(change) {
            return Ok(Commit::Lost { taken: Vec::new(), view: None });
        }
        if change.claim.is_empty() && change.keep.is_empty() && change.drop.is_empty() {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        }
        let victims = self.victims(change)?;
        let latest = (!self.trusting).then(|| self.memory.latest());
        let step = Step { keys: &self.keys, owner, seen: &seen, change, latest, victims: &victims };
        let Some(answer) = self.client.write(&step.transaction())? else {
            return Ok(Commit::Unknown);
        };
        match step.outcome(&answer.response) {
            Outcome::Done(chosen) => {
                if let Err(error) = self.judge(&answer) {
                    return Err(self.withdraw(&step, &chosen, answer.revision, error));
                }
                if !chosen.is_empty() && !self.trusting {
                    let indexes = change.claim.iter().map(|claim| claim.want.index);
                    let given: Vec<_> = indexes.zip(chosen.iter().copied()).collect();
                    self.memory.note(&answer, &given);
                }
                Ok(done(change, &chosen, answer.revision))
            }
            Outcome::Stale(found) => {
                self.judge(&answer)?;
                self.stale(owner, change, found)
            }
            Outcome::Taken(place, shown) => {
                self.judge(&answer)?;
                Ok(self.lost(owner, change, seen, place, shown.as_ref().map(|get| get.kvs())))
            }
        }
    }

    fn remove(&self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.removal(&|answer| self.judge(answer)).run(entries)
    }

    fn scan(
        &self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let judge = |answer: &Answer| self.judge(answer);
        match node {
            None => below(&self.client, self.keys.leases(), judge, &mut |found| {
                let Some(address) = self.keys.address(found.key()) else {
                    warn_of_foreign(found);
                    return ControlFlow::Continue(());
                };
                let entry = document::entry(address, found);
                if entry.holder.is_none() {
                    warn_of_foreign(found);
                }
                each(entry)
            }),
            Some(node) => below(&self.client, &self.keys.of_node(node), judge, &mut |found| {
                match Holding::read(found) {
                    Ok(holding) => holding.entries().into_iter().try_for_each(&mut *each),
                    Err(_) => {
                        warn_of_foreign(found);
                        ControlFlow::Continue(())
                    }
                }
            }),
        }
    }

    fn ready(&self) -> Result<()> {
        let looked = self.look().and_then(|(answer, latest)| {
            self.judge(&answer)?;
            self.memory.judge_latest(latest)?;
            self.memory.note_latest(&answer, latest);
            Ok(())
        });
        looked.map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))
    }

    fn accept(&self) -> Result<bool> {
        let (answer, latest) = self.look()?;
        self.memory.accept(&answer, latest)?;
        Ok(true)
    }
}

impl Etcd {
    /// Asks something that changes nothing of the store that is known.
    fn ask(&self, txn: &Txn) -> Result<Answer> {
        let answer = self.client.read(txn)?;
        self.judge(&answer)?;
        Ok(answer)
    }

    /// Reads something that every call may read, and the revision of the latest claim; 0 when there is
    /// none.
    fn look(&self) -> Result<(Answer, i64)> {
        let any = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
        let reads =
            [TxnOp::get(self.keys.latest(), None), TxnOp::get(self.keys.owners(), Some(any))];
        let answer = self.client.read(&Txn::new().and_then(reads))?;
        let found = found_by_key(&answer.response);
        let latest = found.get(self.keys.latest().as_bytes()).map_or(0, KeyValue::mod_revision);
        Ok((answer, latest))
    }

    fn judge(&self, answer: &Answer) -> Result<()> {
        self.memory.note_endpoint(self.client.preferred());
        if self.trusting { Ok(()) } else { self.memory.judge(answer, self.releasing) }
    }

    fn removal<'a>(&'a self, judge: &'a dyn Fn(&Answer) -> Result<()>) -> Removal<'a> {
        Removal { client: &self.client, keys: &self.keys, judge }
    }

    /// What the owner holds by its `own` key, as far as the keys of the addresses that were `asked` for
    /// are still its own. Where that key was deleted by hand, those of the addresses tell.
    fn holding(
        &self,
        owner: &Owner,
        own: &[KeyValue],
        leases: &[KeyValue],
        asked: &BTreeSet<IpAddr>,
    ) -> Result<(Vec<Lease>, Seen)> {
        let Some(found) = own.first() else {
            let left = leases.iter().filter_map(|found| {
                document::left_to(owner, self.keys.address(found.key())?, found)
            });
            let (held, items): (Vec<Lease>, Vec<Item>) = left.unzip();
            let document = OwnerDocument::written(owner, 0, items);
            return Ok((held, Seen { revision: None, document: Some(document) }));
        };
        let holding = Holding::read(found)?;
        let is_its = |lease: &Lease| {
            let key = self.keys.lease(lease.address.addr());
            let found = leases.iter().find(|found| found.key() == key.as_bytes());
            let seen = Revision::read(&lease.revision).map(|seen| seen.revision);
            found.map(KeyValue::mod_revision) == seen
        };
        let mut held = holding.leases();
        held.retain(|lease| !asked.contains(&lease.address.addr()) || is_its(lease));
        let Holding { revision, mut document } = holding;
        let stays = |item: &Item| held.iter().any(|lease| lease.address == item.address);
        document.leases.retain(stays);
        Ok((held, Seen { revision: Some(revision), document: Some(document) }))
    }

    /// A pool of which nothing is known but where this node's cursor stands.
    fn unknown(&self, want: &Want) -> PoolView {
        PoolView { set: None, cursor: self.memory.cursor(want.index), used: Used::Unknown }
    }

    /// A commit that found something else than was seen: the owner's keys, or a store whose latest claim
    /// is older than the one that was known.
    fn stale(
        &self,
        owner: &Owner,
        change: &Change<'_>,
        mut found: Vec<KeyValue>,
    ) -> Result<Commit<Seen>> {
        let is_latest = |found: &mut KeyValue| found.key() == self.keys.latest().as_bytes();
        let newest = found.extract_if(.., is_latest).next();
        if !self.trusting && !change.claim.is_empty() {
            self.memory.judge_latest(newest.map_or(0, |found| found.mod_revision()))?;
        }
        let (own, leases): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|found| self.keys.address(found.key()).is_none());
        let asked = [&change.keep, &change.leave, &change.drop];
        let asked = asked.into_iter().flatten().map(|lease| lease.address.addr()).collect();
        let (held, token) = self.holding(owner, &own, &leases, &asked)?;
        let token = self.removal(&|answer| self.judge(answer)).take_off_lost(&own, token)?;
        let pools = change.claim.iter().map(|claim| self.unknown(claim.want)).collect();
        // The pools of the leases that stayed are not shown.
        let complete = change.keep.is_empty();
        let view = complete.then_some(View { held, pools, token });
        Ok(Commit::Lost { taken: Vec::new(), view })
    }

    /// A commit that found all candidates of a claim taken.
    fn lost(
        &self,
        owner: &Owner,
        change: &Change<'_>,
        seen: Seen,
        place: usize,
        shown: Option<&[KeyValue]>,
    ) -> Commit<Seen> {
        let claim = &change.claim[place];
        let holder = |address: IpAddr| match (claim.next, shown) {
            (Look::Window(..), _) | (_, None) => None,
            (_, Some(found)) => found.first().map(|found| document::entry(address, found)),
        };
        let taken = claim.candidates.iter();
        let taken: Vec<Taken> = taken
            .map(|address| Taken { claim: place, address: *address, holder: holder(*address) })
            .collect();
        // Its own without its owner's key: only a look at the address shows that it is held.
        let own = self.keys.owner(owner);
        let holders = taken.iter().filter_map(|taken| taken.holder.as_ref()?.holder.as_ref());
        let is_own = holders.filter_map(|h| self.keys.owner_of_holder(h)).any(|key| key == own);
        // A view shows the pools of all claims, and these only where nothing was kept or dropped.
        let fresh = change.keep.is_empty() && change.leave.is_empty() && change.drop.is_empty();
        let view = (fresh && !is_own).then(|| {
            let mut pools: Vec<PoolView> =
                change.claim.iter().map(|claim| self.unknown(claim.want)).collect();
            if let (Look::Window(from, to), Some(found)) = (claim.next, shown) {
                pools[place].used = Used::Window(from, to, self.addresses(found));
            }
            View { held: Vec::new(), pools, token: seen }
        });
        Commit::Lost { taken, view }
    }

    /// Takes back claims that were made in a store which is not the known one; the error says that
    /// it is not.
    fn withdraw(&self, step: &Step<'_>, chosen: &[IpAddr], revision: i64, error: Error) -> Error {
        if chosen.is_empty() {
            return error;
        }
        let seen = Seen { revision: Some(revision), document: step.seen.document.clone() };
        let Commit::Done { kept, claimed } = done(step.change, chosen, revision) else {
            return error;
        };
        let leave = kept.into_iter().chain(step.change.leave.iter().cloned()).collect();
        let change = Change { drop: claimed, leave, ..Change::default() };
        let victims = BTreeMap::new();
        let back = Step { seen: &seen, change: &change, victims: &victims, ..*step };
        match self.client.write(&back.transaction()) {
            Ok(_) => error,
            Err(withdrawing) => error.and([withdrawing]),
        }
    }

    /// The owners that lose an address by this change, as they are.
    fn victims(&self, change: &Change<'_>) -> Result<BTreeMap<String, Option<Holding>>> {
        let holders =
            change.claim.iter().filter_map(|claim| claim.replaces.as_ref()?.holder.as_ref());
        let keys: BTreeSet<String> = holders.filter_map(|h| self.keys.owner_of_holder(h)).collect();
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let reads: Vec<TxnOp> = keys.iter().map(|key| TxnOp::get(key.as_str(), None)).collect();
        let answer = self.ask(&Txn::new().and_then(reads))?;
        let found = found_by_key(&answer.response);
        let victim = |key: String| {
            let holding = found.get(key.as_bytes()).map(Holding::read).transpose()?;
            Ok((key, holding))
        };
        keys.into_iter().map(victim).collect()
    }

    /// All addresses that are taken in the ranges of a pool.
    fn all_of(&self, want: &Want) -> Result<BTreeSet<IpAddr>> {
        let mut all = BTreeSet::new();
        for range in want.set.as_ref().map_or(&[][..], RangeSet::ranges) {
            let (first, end) = self.keys.window(range.start(), range.end());
            pages(&self.client, first, &end, true, |answer| self.judge(answer), &mut |found| {
                all.extend(self.keys.address(found.key()));
                ControlFlow::Continue(())
            })?;
        }
        Ok(all)
    }

    fn addresses(&self, found: &[KeyValue]) -> BTreeSet<IpAddr> {
        found.iter().filter_map(|found| self.keys.address(found.key())).collect()
    }
}

/// A commit that was done at a revision.
fn done(change: &Change<'_>, chosen: &[IpAddr], revision: i64) -> Commit<Seen> {
    let together = change.keep.len() + chosen.len();
    let leases = if change.leave.is_empty() { together } else { 0 };
    let revision = Revision { revision, leases }.to_json();
    let kept =
        change.keep.iter().map(|lease| Lease { revision: revision.clone(), ..lease.clone() });
    let claimed = change.claim.iter().zip(chosen);
    let claimed = claimed.map(|(claim, address)| claim.lease(*address, revision.clone()));
    Commit::Done { kept: kept.collect(), claimed: claimed.collect() }
}

fn warn_of_foreign(found: &KeyValue) {
    let key = String::from_utf8_lossy(found.key());
    warn!("the key {key} is not ours: it counts as taken and is left alone");
}
