//! What is seen before a commit, in one round trip.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use etcd_client::{KeyValue, Txn, TxnOp, TxnOpResponse};
use ipam_kit::Result;
use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::ledger::{Look, PoolView, Question, Used, View};
use ipam_kit::allocate::{Strategy, Want};
use ipam_kit::host::{lock, open_own};
use ipam_kit::pool::{RangeConfig, RangeSet};

use log::debug;
use rustix::fs::OFlags;

use crate::claim::read_window;
use crate::document::Revision;
use crate::held::Read;
use crate::ledger::Etcd;
use crate::memory;
use crate::page::{READS, pages};

/// How long a process of this node may have its turn: one that was stopped keeps the others from nothing.
const PATIENCE: Duration = Duration::from_secs(3);

impl Etcd {
    /// What the owner holds and what is known of the pools.
    pub(crate) fn view_of(&self, question: &Question<'_>) -> Result<View<Seen>> {
        let old = !self.keys.is_native();
        let hints = match old && question.known.is_empty() {
            true => self.hints.of(question.owner)?,
            false => BTreeSet::new(),
        };
        if !question.want.is_empty() {
            self.wait_on_node();
        }
        self.note_along(question.want);
        let cursors = self.cursors_to_read(question.want);
        let blind = question.looks.iter().all(|look| *look == Look::Nowhere)
            && hints.is_empty()
            && cursors.iter().all(|(index, _)| self.along.borrow().cursors.contains_key(index));
        // In a store that will be refused nothing is written.
        let may_guess = question.may_guess && (self.trusting || !self.memory.is_set_back());
        if may_guess && blind && !question.want.is_empty() {
            let pools = question.want.iter().map(|want| self.unknown(want)).collect();
            return Ok(View { held: Vec::new(), sure: false, pools, token: Seen::default() });
        }
        if may_guess && let Some(known) = Revision::of_all(question.known) {
            let token = Seen { revision: Some(known.revision), document: None };
            let held = question.known.to_vec();
            return Ok(View { held, sure: false, pools: Vec::new(), token });
        }
        let mut reads = Vec::new();
        let mut asks = |asked: Vec<TxnOp>| {
            reads.extend(asked);
            reads.len()
        };
        let own = self.indexed.get().then(|| self.keys.read_owner(question.owner));
        let owners = asks(own.into_iter().collect());
        let windows: Vec<usize> =
            question.looks.iter().map(|look| asks(self.read_look(*look))).collect();
        let requested = question.want.iter().filter_map(|want| want.requested);
        let known = question.known.iter().map(|lease| lease.address.addr());
        let named: BTreeSet<IpAddr> = known.chain(requested).chain(hints).collect();
        let leases =
            asks(named.iter().map(|address| TxnOp::get(self.keys.lease(*address), None)).collect());
        asks(cursors.values().map(|key| TxnOp::get(key.as_str(), None)).collect());
        let mut answers = Vec::new();
        for batch in reads.chunks(READS) {
            answers.extend(self.ask(&Txn::new().and_then(batch))?.response.op_responses());
        }
        let mut answers = answers.into_iter();
        let mut so_far = 0;
        let mut until = |place: usize| {
            let count = place - std::mem::replace(&mut so_far, place);
            let gets = answers.by_ref().take(count).filter_map(|answer| match answer {
                TxnOpResponse::Get(mut get) => Some(get.take_kvs()),
                _ => None,
            });
            gets.flatten().collect::<Vec<KeyValue>>()
        };
        let siblings = until(owners);
        let mut shown = Vec::new();
        for place in windows {
            shown.push(until(place));
        }
        let leases = until(leases);
        let now = self.cursors_in(&until(usize::MAX));
        let mut along = self.along.borrow_mut();
        along.cursors.retain(|index, _| !cursors.contains_key(index));
        along.cursors.extend(now);
        drop(along);
        let mut pools = Vec::new();
        for ((want, look), shown) in question.want.iter().zip(question.looks).zip(shown) {
            let used = match look {
                Look::Nowhere => Used::Unknown,
                Look::Window(from, to) => Used::Windows(vec![(*from, *to)], self.addresses(&shown)),
                Look::Everywhere => Used::All(self.all_of(want)?),
            };
            pools.push(PoolView { used, ..self.unknown(want) });
        }
        let key = self.keys.owner(question.owner);
        let (own, siblings): (Vec<_>, Vec<_>) =
            siblings.into_iter().partition(|found| found.key() == key.as_bytes());
        let read = Read { own: own.first(), siblings: &siblings, leases: &leases };
        let mut held = self.holding(question.owner, read, &named)?;
        // Nobody tells all that the owner has: what a replaced plugin gave, perhaps an address for each
        // ADD, or we without an index. The runtime remembers one.
        let nobody = held.0.is_empty() || (question.known.is_empty() && own.is_empty());
        if old && self.forgets && nobody {
            held = self.left_behind(question.owner, &siblings, held)?;
        }
        let (held, token) = held;
        self.forget_unless(question.owner, !held.is_empty() || !question.want.is_empty());
        // Every read of ours is linearizable: none asks for less, and etcd's leader answers none before it
        // has committed something itself.
        Ok(View { held, sure: true, pools, token })
    }

    /// Waits for the other processes of this node, where each claim has to go on from the one before and
    /// they would get in each other's way. In vain it goes on all the same.
    fn wait_on_node(&self) {
        let overwrites = self.keys.overwrites();
        if !overwrites || self.node_turn.borrow().is_some() {
            return;
        }
        let until = Instant::now() + PATIENCE.min(self.deadline.left() / 2);
        let made = memory::make(&self.folder);
        let file = made.and_then(|()| {
            open_own(&self.folder.join("turn"), OFlags::WRONLY | OFlags::CREATE, 0o600)
        });
        match file.and_then(|file| Ok((lock(&file, until)?, file))) {
            Ok((true, file)) => {
                self.node_turn.replace(Some(file));
                // Whoever was before us has moved the cursor.
                self.memory.refresh();
            }
            Ok((false, _)) => debug!("another process of this node has its turn all the time"),
            Err(error) => debug!("no turns on this node: {error}"),
        }
    }

    fn read_look(&self, look: Look) -> Vec<TxnOp> {
        match look {
            Look::Window(from, to) => read_window(&self.keys, from, to),
            Look::Nowhere | Look::Everywhere => Vec::new(),
        }
    }

    /// A pool of which nothing is known but where the cursor stands.
    pub(crate) fn unknown(&self, want: &Want) -> PoolView {
        let seen = self.along.borrow().cursor(want.index);
        // Networks that share a cursor each go round by themselves.
        let its = |cursor: &IpAddr| want.set.as_ref().is_none_or(|set| set.find(*cursor).is_some());
        let cursor = seen.filter(its).or_else(|| self.memory.cursor(want.index));
        PoolView { cursor, ..PoolView::default() }
    }

    /// The old cursors to read, by their range sets: where this node has none of its own; all of a plugin
    /// that takes what comes next unseen.
    fn cursors_to_read(&self, wants: &[Want]) -> BTreeMap<u32, String> {
        let all = self.keys.overwrites();
        let to_read = |want: &Want| {
            let strange = want.strategy == Strategy::RoundRobin
                && !self.along.borrow().cursors.contains_key(&want.index);
            let key = self.keys.cursor(want.index).filter(|_| all || strange)?;
            Some((want.index, key))
        };
        wants.iter().filter_map(to_read).collect()
    }

    /// Notes what is to be written along with a claim of these pools.
    fn note_along(&self, wants: &[Want]) {
        if self.keys.is_native() {
            return;
        }
        let mut along = self.along.borrow_mut();
        let known = wants
            .iter()
            .filter_map(|want| Some((want.index, self.memory.cursor(want.index)?)))
            .map(|(index, cursor)| (index, cursor.to_string().into_bytes()));
        along.cursors.extend(known);
        if self.keys.ranges().is_some() && self.shown_all && !wants.is_empty() {
            let set = |want: &Want| {
                let configs = want.set.as_ref()?.ranges().iter().map(|range| range.to_config());
                Some(configs.collect::<Vec<RangeConfig>>())
            };
            let sets: Option<Vec<_>> = wants.iter().map(set).collect();
            along.ranges = sets.and_then(|sets| serde_json::to_string(&sets).ok());
        }
    }

    /// The values of the old cursors among some keys, by their range sets.
    pub(crate) fn cursors_in(&self, found: &[KeyValue]) -> BTreeMap<u32, Vec<u8>> {
        let first = self.keys.cursor(0);
        let Some(place) = first.as_deref().and_then(|first| first.strip_suffix('0')) else {
            return BTreeMap::new();
        };
        let index = |found: &KeyValue| found.key_str().ok()?.strip_prefix(place)?.parse().ok();
        found.iter().filter_map(|found| Some((index(found)?, found.value().to_vec()))).collect()
    }

    /// All addresses that are taken in the ranges of a pool.
    fn all_of(&self, want: &Want) -> Result<BTreeSet<IpAddr>> {
        let mut all = BTreeSet::new();
        let ranges = want.set.as_ref().map_or(&[][..], RangeSet::ranges);
        for (first, end) in ranges.iter().flat_map(|r| self.keys.window(r.start(), r.end())) {
            pages(&self.client, first, &end, true, |answer| self.judge(answer), &mut |found| {
                all.extend(self.keys.address(found.key()));
                ControlFlow::Continue(())
            })?;
        }
        Ok(all)
    }

    pub(crate) fn addresses(&self, found: &[KeyValue]) -> BTreeSet<IpAddr> {
        found.iter().filter_map(|found| self.keys.address(found.key())).collect()
    }
}
