//! A change as it is carried out, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::document::{Seen, done};
use ipam_kit::allocate::ledger::{Change, Commit, Look, Taken, Used, View};
use ipam_kit::{Error, ErrorCode, Result};

use crate::claim::{Outcome, Step};
use crate::document::{Holding, holding};
use crate::held::Read;
use crate::ledger::Etcd;
use crate::lock::Turn;
use crate::page::found_by_key;

/// How many addresses go at once; a transaction may have 128 operations, with those inside it.
const BATCH: usize = 60;

/// After how many refusals we queue in for a replaced plugin's lock.
const REFUSALS: u32 = 8;

/// The wait after the first of them, twice as long after each further one, up to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// What has to be left of a call's time for another try.
const LAST: Duration = Duration::from_millis(500);

impl Etcd {
    /// Makes a change; one by which a container loses more than a transaction can take in several.
    pub(crate) fn change_in_parts(
        &self,
        owner: &Owner,
        seen: &Seen,
        change: &Change<'_>,
    ) -> Result<Commit<Seen>> {
        // Only a replaced plugin gives a container so many.
        let only_drops =
            change.claim.is_empty() && change.keep.is_empty() && change.leave.is_empty();
        if change.drop.len() <= BATCH || !only_drops {
            return self.change(owner, seen, change);
        }
        let mut seen = seen.clone();
        for part in change.drop.chunks(BATCH) {
            let part = Change { drop: part.to_vec(), ..Change::default() };
            match self.change(owner, &seen, &part)? {
                // The owner's key has gone with the first.
                Commit::Done { .. } => seen = Seen::default(),
                Commit::Unknown => return Ok(Commit::Unknown),
                Commit::Outdated => return Ok(Commit::Outdated),
                // What it shows is of this part alone.
                Commit::Lost { .. } => return Ok(Commit::Lost { taken: Vec::new(), view: None }),
            }
        }
        Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() })
    }

    /// Makes a change, and notes what the owner holds where the store has no place for it.
    fn change(&self, owner: &Owner, seen: &Seen, change: &Change<'_>) -> Result<Commit<Seen>> {
        let claims = !change.claim.is_empty();
        if claims && !self.keys.is_native() && !self.indexed.get() {
            // Whoever is killed, or gets no answer, finds by this what it has taken.
            let tried = change.claim.iter().flat_map(|claim| &claim.candidates);
            self.note_held(owner, change, tried.copied());
        }
        let done = self.carry_out(owner, seen, change);
        match &done {
            Ok(Commit::Done { claimed, .. }) => {
                let taken = claimed.iter().map(|lease| lease.address.addr());
                self.note_held(owner, change, taken);
            }
            Ok(Commit::Lost { .. } | Commit::Outdated) | Err(_) if claims => {
                let stays = change.drop.iter().map(|lease| lease.address.addr());
                self.note_held(owner, change, stays);
            }
            Ok(Commit::Lost { .. } | Commit::Outdated | Commit::Unknown) | Err(_) => {}
        }
        done
    }

    /// Makes a change, in its turn where a replaced plugin keeps its processes apart.
    fn carry_out(&self, owner: &Owner, seen: &Seen, change: &Change<'_>) -> Result<Commit<Seen>> {
        let victims = self.victims(change)?;
        let along = self.along.borrow().clone();
        let indexed = self.indexed.get();
        let latest = (!self.trusting && indexed).then(|| self.memory.latest());
        loop {
            let turn = self.turn.borrow();
            let step = Step {
                keys: &self.keys,
                owner,
                seen,
                change,
                latest,
                victims: &victims,
                indexed,
                along: &along,
                lock: self.lock.as_ref().map(|lock| (lock, turn.as_ref())),
            };
            let written = self.client.write(&step.transaction()).map_err(|error| {
                // The time went by in waiting.
                let waited = error.code() == ErrorCode::TIMED_OUT && self.refused.get() > 0;
                match self.lock.as_ref().filter(|_| waited) {
                    Some(lock) => lock.taken().and([error]),
                    None => error,
                }
            });
            let Some(answer) = written? else { return Ok(Commit::Unknown) };
            let found = match step.outcome(&answer.response) {
                Outcome::Done(chosen) => {
                    if let Err(error) = self.judge(&answer) {
                        return Err(self.withdraw(&step, &chosen, answer.revision, error));
                    }
                    drop(turn);
                    if !chosen.is_empty() && !self.trusting {
                        let indexes = change.claim.iter().map(|claim| claim.want.index);
                        let given = indexes.zip(chosen.iter().copied()).collect();
                        self.memory.note(&answer, self.client.answering(), given, indexed);
                    }
                    self.node_turn.replace(None);
                    self.turn.replace(None);
                    return Ok(done(change, &chosen, answer.revision));
                }
                Outcome::Taken(place, shown) => {
                    self.judge(&answer)?;
                    let claim = &change.claim[place];
                    let found = shown.as_deref().unwrap_or_default();
                    if step.goes_on(claim) && self.note_moved(claim.want.index, found) {
                        drop(turn);
                        self.count_refusal();
                        return Ok(self.passed(change, seen.clone()));
                    }
                    return Ok(self.lost(owner, change, seen.clone(), place, shown.as_deref()));
                }
                Outcome::Stale(found) => found,
            };
            drop(turn);
            self.judge(&answer)?;
            if !self.is_kept_out(&found)? {
                return self.stale(owner, change, found);
            }
        }
    }

    /// Whether it was a replaced plugin's lock alone that a change was refused for. Then there has been
    /// a pause, and after some of them we stand in its queue.
    fn is_kept_out(&self, found: &[KeyValue]) -> Result<bool> {
        let Some(lock) = &self.lock else { return Ok(false) };
        let held = lock.is_held(found, self.turn.borrow().as_ref());
        let lost = self.turn.borrow().as_ref().is_some_and(|turn| !turn.is_among(found));
        if lost {
            // etcd has ended its lease meanwhile, or a replaced plugin took it for its own.
            self.turn.replace(None);
        }
        if !held {
            return Ok(lost);
        }
        let [first, mut last] = PAUSES;
        if self.turn.borrow().is_some() {
            last /= 5;
        }
        let refused = self.refused.get().min(REFUSALS);
        let pause = (first * 2_u32.saturating_pow(refused)).min(last);
        if self.client.left() < (pause * 5).max(LAST) {
            return Err(lock.taken());
        }
        self.client.pause(pause);
        self.count_refusal();
        Ok(true)
    }

    /// After some refusals we queue in as a replaced plugin does.
    fn count_refusal(&self) {
        let refused = self.refused.get().saturating_add(1);
        self.refused.set(refused);
        if let Some(lock) = self.lock.as_ref().filter(|_| refused > REFUSALS)
            && self.turn.borrow().is_none()
        {
            self.turn.replace(Turn::take(&self.client, lock));
        }
    }

    /// Whether the cursor of a plugin that takes what comes next unseen is not where it was seen; it is
    /// noted where it is now.
    fn note_moved(&self, index: u32, found: &[KeyValue]) -> bool {
        let now = self.cursors_in(found).remove(&index);
        let mut along = self.along.borrow_mut();
        let before = match &now {
            Some(now) => along.cursors.insert(index, now.clone()),
            None => along.cursors.remove(&index),
        };
        now != before
    }

    /// A claim that somebody else's has passed by: nothing is known of its candidates, but where the cursor
    /// is by now.
    fn passed(&self, change: &Change<'_>, seen: Seen) -> Commit<Seen> {
        Commit::Lost { taken: Vec::new(), view: self.view_of_claims(change, seen) }
    }

    /// The pools of all claims, of which nothing is known; only where nothing was kept or dropped.
    fn view_of_claims(&self, change: &Change<'_>, seen: Seen) -> Option<View<Seen>> {
        let fresh = change.keep.is_empty() && change.leave.is_empty() && change.drop.is_empty();
        let pools = change.claim.iter().map(|claim| self.unknown(claim.want)).collect();
        fresh.then_some(View { held: Vec::new(), sure: false, pools, token: seen })
    }

    /// Notes on this node what an owner holds, or perhaps does, where the store does not let us: what a change
    /// leaves it, and this.
    fn note_held(&self, owner: &Owner, change: &Change<'_>, more: impl Iterator<Item = IpAddr>) {
        if self.keys.is_native() {
            return;
        }
        let stays = change.keep.iter().chain(&change.leave).map(|lease| lease.address.addr());
        let held: BTreeSet<IpAddr> = stays.chain(more).collect();
        if self.indexed.get() || held.is_empty() {
            self.hints.forget(owner);
        } else {
            self.hints.note(owner, &held);
        }
    }

    /// A commit that found something else than was seen: the owner's keys, or a store whose latest claim
    /// is older than the one that was known.
    fn stale(
        &self,
        owner: &Owner,
        change: &Change<'_>,
        found: Vec<KeyValue>,
    ) -> Result<Commit<Seen>> {
        let of_key = |key: &str| found.iter().find(|found| found.key() == key.as_bytes());
        let latest = of_key(self.keys.latest());
        if !self.trusting && self.indexed.get() && !change.claim.is_empty() {
            self.memory.judge_latest(latest.map_or(0, KeyValue::mod_revision))?;
        }
        let (key, beside) =
            (self.keys.owner(owner), self.keys.of_container(owner.container.as_str()));
        let own = of_key(&key);
        let is_sibling = |found: &&KeyValue| {
            found.key().starts_with(beside.as_bytes()) && found.key() != key.as_bytes()
        };
        let siblings: Vec<KeyValue> = found.iter().filter(is_sibling).cloned().collect();
        let leases: Vec<KeyValue> =
            found.iter().filter(|f| self.keys.address(f.key()).is_some()).cloned().collect();
        let asked = [&change.keep, &change.leave, &change.drop];
        let asked = asked.into_iter().flatten().map(|lease| lease.address.addr()).collect();
        let read = Read { own, leases: &leases, siblings: &siblings };
        let (held, token) = self.holding(owner, read, &asked)?;
        self.forget_unless(owner, !held.is_empty() || !change.claim.is_empty());
        let token = self.removal(&|answer| self.judge(answer)).take_off_lost(own, token)?;
        let pools = change.claim.iter().map(|claim| self.unknown(claim.want)).collect();
        // The pools of the leases that stayed are not shown, nor what a replaced plugin has given instead
        // of all that was known.
        let is_del = change.keep.is_empty() && change.claim.is_empty();
        let to_look = is_del && held.is_empty() && !self.keys.is_native();
        let complete = change.keep.is_empty() && !to_look;
        let view = complete.then_some(View { held, sure: true, pools, token });
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
            (_, Some(found)) => {
                let found = found.iter().find(|f| self.keys.address(f.key()) == Some(address));
                found.map(|found| self.keys.codec().entry(address, found))
            }
        };
        let taken = claim.candidates.iter();
        let taken: Vec<Taken> = taken
            .map(|address| Taken { claim: place, address: *address, holder: holder(*address) })
            .collect();
        let may_be_own = |taken: &Taken| {
            let holder = taken.holder.as_ref().and_then(|entry| entry.holder.as_ref());
            holder.is_some_and(|its| {
                its.ifname.is_none() && its.container == owner.container.as_str()
            })
        };
        // Of the same container as far as its key tells, and nothing else was looked at so far.
        if seen.document.is_none() && taken.iter().any(may_be_own) {
            return Commit::Lost { taken: Vec::new(), view: None };
        }
        // Its own without its owner's key: only a look at the address shows that it is held.
        let own = self.keys.owner(owner);
        let holders = taken.iter().filter_map(|taken| taken.holder.as_ref()?.holder.as_ref());
        let is_own = holders.filter_map(|h| self.keys.owner_of_holder(h)).any(|key| key == own);
        let mut view = self.view_of_claims(change, seen).filter(|_| !is_own);
        if let (Some(view), Look::Window(from, to), Some(found)) = (&mut view, claim.next, shown) {
            view.pools[place].used = Used::Windows(vec![(from, to)], self.addresses(found));
        }
        Commit::Lost { taken, view }
    }

    /// Takes back claims that were made in a store which is not the known one; the error says that
    /// it is not.
    fn withdraw(&self, step: &Step<'_>, chosen: &[IpAddr], revision: i64, error: Error) -> Error {
        if chosen.is_empty() {
            return error;
        }
        let seen = Seen { revision: Some(revision), document: step.seen.document.clone() };
        let Commit::Done { kept, claimed } = done::<Seen>(step.change, chosen, revision) else {
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
            let holding = found.get(key.as_bytes()).map(holding).transpose()?;
            Ok((key, holding))
        };
        keys.into_iter().map(victim).collect()
    }
}
