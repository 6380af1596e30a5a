//! A change as it is carried out, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::document::{Holding, Item, Revision, Seen, done};
use ipam_kit::allocate::ledger::{Change, Claim, Commit, Taken, View};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};
use log::debug;

use crate::allocation::Found;
use crate::claim::{Role, Step, revision};
use crate::held::holding;
use crate::ledger::Consul;
use crate::txn::{Ended, Failure, LARGEST, Op, Pair};

/// How many addresses go at once where a container has more than a transaction can take: only the
/// ancestor gives one so many.
const BATCH: usize = 60;

/// After how many lost races of one call it is asked whether the token sees what it meets.
const SUSPICIOUS: u32 = 3;

/// After how many lost races of one call what is remembered of a pool is not believed any more.
const BELIEVED: u32 = 2;

/// What to do after a transaction that was refused.
enum Next<'a> {
    /// The same again, with what was learned.
    Again,
    /// The same again: this is what these addresses of the owner are at.
    Meet(BTreeMap<IpAddr, Option<u64>>),
    End(Box<Commit<Seen>>),
    /// This key may not be written.
    Denied(&'a Op),
}

impl Consul {
    /// Makes a change; one by which a container loses more than a transaction can take in several.
    pub(crate) fn change_in_parts(
        &self,
        owner: &Owner,
        seen: &Seen,
        change: &Change<'_>,
    ) -> Result<Commit<Seen>> {
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
                Commit::Done { .. } => seen = Self::nothing(owner).1,
                Commit::Unknown => return Ok(Commit::Unknown),
                // What it shows is of this part alone.
                Commit::Lost { .. } | Commit::Outdated => return Ok(Commit::Outdated),
            }
        }
        Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() })
    }

    fn change(&self, owner: &Owner, seen: &Seen, change: &Change<'_>) -> Result<Commit<Seen>> {
        let takes = !change.claim.is_empty();
        if takes && !self.trusting {
            self.memory.judge()?;
        }
        let victims = self.victims(change)?;
        let definitions = self.relied_on(change);
        let chosen: Vec<IpAddr> = change.claim.iter().filter_map(|c| self.choose(c)).collect();
        let mut indexes = BTreeMap::new();
        loop {
            let folders = if takes { self.folders.borrow().clone() } else { BTreeSet::new() };
            let step = Step {
                keys: &self.keys,
                owner,
                seen,
                change,
                chosen: &chosen,
                definitions: &definitions,
                folders: &folders,
                indexes: &indexes,
                victims: &victims,
                indexed: self.indexed.get(),
                marked: !self.trusting,
            };
            let planned = step.ops();
            let ops: Vec<Op> = planned.iter().map(|(_, op)| op.clone()).collect();
            if ops.len() > LARGEST && !folders.is_empty() {
                // The next ADD of fewer pools makes them.
                self.folders.borrow_mut().clear();
                continue;
            }
            if ops.len() > LARGEST {
                return Err(too_many(ops.len()));
            }
            let failures = match self.store.write(&ops)? {
                None => return Ok(Commit::Unknown),
                Some(Ended::Done(written)) => {
                    let index = step.index_in(&written);
                    self.note_done(&step, index, &written)?;
                    return Ok(done(change, &chosen, revision(index)));
                }
                Some(Ended::Failed(failures)) => failures,
            };
            match self.after(&step, &planned, &failures)? {
                Next::Again => {}
                Next::Meet(met) => indexes.extend(met),
                Next::End(commit) => {
                    self.put_back(&step, &commit);
                    return Ok(*commit);
                }
                Next::Denied(op) => return Err(denied(op)),
            }
        }
    }

    /// An address for a claim: one that no other process of this node is about to take.
    fn choose(&self, claim: &Claim<'_>) -> Option<IpAddr> {
        if claim.want.requested.is_some() {
            return claim.candidates.first().copied();
        }
        self.cache_of(claim.want).take(&claim.candidates)
    }

    /// Lets other processes of this node take what was chosen and is not another's.
    fn put_back(&self, step: &Step<'_>, commit: &Commit<Seen>) {
        let lost: Vec<IpAddr> = match commit {
            Commit::Lost { taken, .. } => taken.iter().map(|taken| taken.address).collect(),
            _ => Vec::new(),
        };
        let chosen = step.change.claim.iter().zip(step.chosen);
        for (claim, address) in chosen.filter(|(_, address)| !lost.contains(address)) {
            self.cache_of(claim.want).give_back(*address);
        }
    }

    /// The ranges that a change relies on, by their pools' names.
    fn relied_on(&self, change: &Change<'_>) -> BTreeMap<String, u64> {
        let named = change.claim.iter().filter(|claim| claim.want.set.is_none());
        let of = |claim: &Claim<'_>| {
            let pool = claim.want.pool.clone()?;
            let read = self.definitions.borrow().get(&pool).map(|definition| definition.index);
            let believed = || self.believed.borrow().get(&pool).copied();
            let index = read.or_else(believed);
            // Nothing can be relied on that is not known any more.
            Some((pool, index.unwrap_or(0)))
        };
        named.filter_map(of).collect()
    }

    /// Takes in that a change was carried out.
    fn note_done(&self, step: &Step<'_>, index: u64, written: &[Pair]) -> Result<()> {
        let takes = !step.change.claim.is_empty();
        self.memory.note_server(self.store.preferred());
        if takes && step.indexed && step.marked {
            let node = &step.owner.scope.node;
            let (before, now) = step.marks_in(written);
            if !self.memory.goes_with(node, before) {
                self.forget_pools();
                return Err(self.withdraw(step, index, self.memory.note_set_back()));
            }
            let server = self.store.answering();
            now.into_iter().for_each(|mark| self.memory.note_mark(node, mark, &server));
        }
        self.folders.borrow_mut().clear();
        for (claim, address) in step.change.claim.iter().zip(step.chosen) {
            if claim.want.requested.is_some() {
                self.cache_of(claim.want).note_taken(*address);
            }
        }
        for lease in &step.change.drop {
            self.note_given_back(lease);
        }
        let (container, ifname) = (step.owner.container.as_str(), step.owner.ifname.as_str());
        if takes || !step.change.keep.is_empty() {
            self.memory.note_taken(step.owner);
        } else if step.change.leave.is_empty() {
            self.memory.forget_taken(container, ifname);
        }
        Ok(())
    }

    /// Takes back claims that were made in a store which is not the known one; the error says that it is
    /// not.
    fn withdraw(&self, step: &Step<'_>, index: u64, error: Error) -> Error {
        let made = done::<Seen>(step.change, step.chosen, revision(index));
        let Commit::Done { kept, claimed } = made else { return error };
        let seen = Seen { revision: Some(revision(index)), document: Some(step.document()) };
        let leave: Vec<Lease> = kept.into_iter().chain(step.change.leave.iter().cloned()).collect();
        let change = Change { drop: claimed, leave, ..Change::default() };
        let back = Step {
            seen: &seen,
            change: &change,
            chosen: &[],
            definitions: &BTreeMap::new(),
            folders: &BTreeSet::new(),
            // All of it is at the index of this very claim by now.
            indexes: &BTreeMap::new(),
            victims: &BTreeMap::new(),
            ..*step
        };
        let ops: Vec<Op> = back.ops().into_iter().map(|(_, op)| op).collect();
        change.drop.iter().for_each(|lease| self.note_given_back(lease));
        match self.store.write(&ops) {
            Ok(Some(Ended::Done(_))) => error,
            Ok(_) => error.and([Error::new(
                ErrorCode::TRY_AGAIN,
                "it is not known whether what was taken there was given back",
            )]),
            Err(withdrawing) => error.and([withdrawing]),
        }
    }

    /// What a refused transaction means. Consul tells of each operation that failed.
    fn after<'a>(
        &self,
        step: &Step<'_>,
        planned: &'a [(Role, Op)],
        failures: &[Failure],
    ) -> Result<Next<'a>> {
        let failed = |wanted: &dyn Fn(Role) -> bool| {
            failures
                .iter()
                .any(|failure| planned.get(failure.place).is_some_and(|(role, _)| wanted(*role)))
        };
        if failed(&|role| !matches!(role, Role::Claim(_) | Role::Folder)) {
            // What was looked at is not so: the look may have been behind.
            self.store.insist();
        }
        let denied = failures.iter().filter(|failure| failure.is_denied());
        let denied: Vec<&(Role, Op)> = denied.filter_map(|f| planned.get(f.place)).collect();
        if let Some((_, op)) = denied.first() {
            return Ok(self.after_denial(&denied).unwrap_or(Next::Denied(op)));
        }
        if failed(&|role| role == Role::Folder) {
            // Somebody else made it.
            self.folders.borrow_mut().clear();
            return Ok(Next::Again);
        }
        if failed(&|role| role == Role::Definition) {
            step.definitions.keys().for_each(|pool| {
                self.definitions.borrow_mut().remove(pool);
            });
            step.change.claim.iter().for_each(|claim| self.cache_of(claim.want).forget());
            return Ok(Next::End(Box::new(Commit::Outdated)));
        }
        if failed(&|role| role == Role::Owner) {
            self.note_hidden(step)?;
            return Ok(Next::End(Box::new(Commit::Outdated)));
        }
        if failed(&|role| role == Role::Victim) {
            return Ok(Next::End(Box::new(Commit::Outdated)));
        }
        if failed(&|role| role == Role::Lease) {
            return self.after_other_indexes(step);
        }
        self.after_taken(step, planned, failures)
    }

    /// The owner's key is as it was seen, and keys of its addresses are not: somebody wrote them anew, or the
    /// ancestor gave them to another.
    fn after_other_indexes<'a>(&self, step: &Step<'_>) -> Result<Next<'a>> {
        let Change { keep, drop, .. } = step.change;
        let leases: Vec<&Lease> = keep.iter().chain(drop).collect();
        if !leases.iter().all(|lease| is_as_seen(step.seen, lease)) {
            return Ok(Next::End(Box::new(Commit::Outdated)));
        }
        let key = |lease: &&Lease| self.keys.lease(lease.pool.as_deref(), lease.address.addr());
        let keys: Vec<String> = leases.iter().map(key).collect();
        let read = self.read_keys(&keys)?;
        let mut met = BTreeMap::new();
        for (lease, key) in leases.into_iter().zip(&keys) {
            let found = read.iter().find(|pair| pair.key == *key).and_then(Found::read);
            let own = found.filter(|found| found.is_of(step.owner)).map(|found| found.index);
            met.insert(lease.address.addr(), own);
        }
        let known = met.iter().all(|(address, index)| step.indexes.get(address) == Some(index));
        // Who has lost an address may have got others from the ancestor since.
        if met.values().any(Option::is_none) || known {
            self.verifies.set(true);
            return Ok(Next::End(Box::new(Commit::Outdated)));
        }
        Ok(Next::Meet(met))
    }

    /// What to do without a right; nothing helps where it is one to addresses.
    fn after_denial<'a>(&self, denied: &[&'a (Role, Op)]) -> Option<Next<'a>> {
        let all = |wanted: &dyn Fn(Role) -> bool| denied.iter().all(|(role, _)| wanted(*role));
        if all(&|role| role == Role::Folder) {
            debug!("the folders that the ancestor wants cannot be made: no right");
            self.folders.borrow_mut().clear();
            return Some(Next::Again);
        }
        let beside = |role| matches!(role, Role::Folder | Role::Owner | Role::Victim | Role::Mark);
        if self.indexed.get() && all(&beside) {
            self.folders.borrow_mut().clear();
            self.go_without_index();
            return Some(Next::End(Box::new(Commit::Outdated)));
        }
        None
    }

    /// Some addresses are another's.
    fn after_taken<'a>(
        &self,
        step: &Step<'_>,
        planned: &'a [(Role, Op)],
        failures: &[Failure],
    ) -> Result<Next<'a>> {
        let mut taken = Vec::new();
        for failure in failures {
            let Some((Role::Claim(place), op)) = planned.get(failure.place) else { continue };
            let (claim, address) = (&step.change.claim[*place], step.chosen[*place]);
            let mut holder = None;
            // Of a single one it is told who has it.
            if claim.want.requested.is_some() || claim.candidates.len() == 1 {
                let read = self.read_keys(&[op.key().to_owned()])?;
                let Some(found) = read.first().and_then(Found::read) else {
                    // It was given back meanwhile, or must not be seen.
                    self.judge_readable(op.key())?;
                    return Ok(Next::End(Box::new(Commit::Outdated)));
                };
                let met = Some(found.index);
                if found.is_of(step.owner) && step.indexes.get(&address) != Some(&met) {
                    return Ok(Next::Meet(BTreeMap::from([(address, met)])));
                }
                holder = Some(found.entry(&self.keys));
            } else {
                self.cache_of(claim.want).note_crowd();
                self.lost.set(self.lost.get() + 1);
                if self.lost.get().is_multiple_of(SUSPICIOUS) {
                    self.judge_readable(op.key())?;
                }
            }
            taken.push(Taken { claim: *place, address, holder });
        }
        if taken.is_empty() {
            let what: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
            return Err(Error::new(
                ErrorCode::BACKEND,
                format!("Consul refuses a change: {}", what.join("; ")),
            ));
        }
        let view = self.view_after(step);
        Ok(Next::End(Box::new(Commit::Lost { taken, view })))
    }

    /// The pools of all claims as far as they are remembered; only where nothing else is to be told.
    fn view_after(&self, step: &Step<'_>) -> Option<View<Seen>> {
        let Change { keep, leave, drop, .. } = step.change;
        if !(keep.is_empty() && leave.is_empty() && drop.is_empty()) {
            return None;
        }
        // Its key was as it was seen, or that would have been refused, too.
        self.fresh.replace(Some((Vec::new(), step.seen.clone())));
        // What was free a while ago may all be taken by now.
        if self.lost.get() >= BELIEVED {
            return None;
        }
        let shown =
            |claim: &Claim<'_>| self.remembered(claim.want, self.known_of(claim.want)?).ok();
        let pools = step.change.claim.iter().map(shown).collect::<Option<_>>()?;
        Some(View { held: Vec::new(), sure: false, pools, token: step.seen.clone() })
    }

    /// An owner's key that is there, and that no look shows, may not be read.
    fn note_hidden(&self, step: &Step<'_>) -> Result<()> {
        if step.seen.revision.is_some() || !self.looked.replace(true) {
            return Ok(());
        }
        self.judge_readable(&self.keys.owner(step.owner))
    }

    /// The owners that lose an address by this change, as they are.
    fn victims(&self, change: &Change<'_>) -> Result<BTreeMap<String, Option<Holding>>> {
        let holders =
            change.claim.iter().filter_map(|claim| claim.replaces.as_ref()?.holder.as_ref());
        let keys: BTreeSet<String> = holders.filter_map(|holder| self.owner_of(holder)).collect();
        if keys.is_empty() || !self.indexed.get() {
            return Ok(BTreeMap::new());
        }
        let keys: Vec<String> = keys.into_iter().collect();
        let read = self.read_keys(&keys)?;
        let victim = |key: String| {
            let found = read.iter().find(|pair| pair.key == key);
            Ok((key, found.map(holding).transpose()?))
        };
        keys.into_iter().map(victim).collect()
    }
}

/// Whether a lease is the one that its owner's key stands for.
fn is_as_seen(seen: &Seen, lease: &Lease) -> bool {
    let Some(its) = Revision::read(&lease.revision) else { return false };
    let Some(document) = &seen.document else { return seen.revision == Some(its.revision) };
    let same = |item: &&Item| item.address.addr() == lease.address.addr();
    let since =
        document.leases.iter().find(same).map(|item| item.since.map(|since| since.revision));
    since.is_some_and(|since| since.or(seen.revision) == Some(its.revision))
}

/// The token may not do it.
pub(crate) fn denied(op: &Op) -> Error {
    let message = format!("Consul does not let this token write {}", op.key());
    Error::new(ErrorCode::BACKEND, message)
        .advise("grant its policy key_prefix \"ipam/\" { policy = \"write\" }")
}

/// Consul does not carry out so much at once.
pub(crate) fn too_many(ops: usize) -> Error {
    let message = format!("{ops} changes at once, and Consul takes {LARGEST}");
    Error::new(ErrorCode::BACKEND, message).advise("ask for fewer pools at once")
}
