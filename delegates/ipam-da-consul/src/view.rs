//! What is looked at before a change, or instead of one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_kit::allocate::document::{Revision, Seen};
use ipam_kit::allocate::ledger::{Hint, Look, Need, PoolView, Question, Used, View};
use ipam_kit::allocate::search::Search;
use ipam_kit::allocate::{Lease, Owner, Strategy, Want};
use ipam_kit::cni::address;
use ipam_kit::pool::{Range, RangeSet};
use ipam_kit::{Error, ErrorCode, Result};

use crate::cache::{HINTS, Known, Ranges};
use crate::change::too_many;
use crate::claim::folders;
use crate::held::{State, refused};
use crate::keys::{Keys, ROOT, judge_name, split};
use crate::ledger::Consul;
use crate::pool::{self, Definition};
use crate::txn::{Ended, LARGEST, Op, Pair};
use crate::window::windows;

/// How many free addresses are worth a look.
const ENOUGH: usize = 64;

/// A crowd that chooses among fewer free addresses than this would meet too often, in a pool of more.
const FEW: usize = 256;

impl Consul {
    pub(crate) fn view_of(&self, question: &Question<'_>) -> Result<View<Seen>> {
        for want in question.want {
            want.pool.as_deref().map_or(Ok(()), |name| judge_name(name, &want.path))?;
        }
        if question.need == Need::Proof {
            self.store.insist();
        }
        if question.may_guess
            && let Some(view) = self.guess(question)
        {
            return Ok(view);
        }
        // What was read of the owner holds until something is committed.
        let fresh = self.fresh.borrow().clone().filter(|_| !question.may_guess);
        let unknown = self.unknown_pools(question.want, fresh.is_none());
        let state = match fresh {
            Some(state) if unknown.is_empty() => state,
            _ => self.look(question, &unknown)?,
        };
        let mut views = Vec::new();
        for (want, look) in question.want.iter().zip(question.looks) {
            views.push(self.pool_view(want, *look)?);
        }
        let (held, token) = state;
        if self.forgets && held.is_empty() {
            let Owner { container, ifname, .. } = question.owner;
            self.memory.forget_taken(container.as_str(), ifname.as_str());
        }
        if question.may_guess || self.fresh.borrow().is_some() {
            self.fresh.replace(Some((held.clone(), token.clone())));
        }
        Ok(View { held, sure: self.store.insists(), pools: views, token })
    }

    /// What needs no request: leases that the record knows all of, or that an owner of whom nobody here
    /// has heard holds nothing, with addresses that were free not long ago.
    fn guess(&self, question: &Question<'_>) -> Option<View<Seen>> {
        let Question { owner, known, want, looks, .. } = *question;
        if want.is_empty() {
            let of = Revision::of_all(known)?;
            let revision = self.indexed.get().then_some(of.revision);
            let token = match revision {
                Some(_) => Seen { revision, document: None },
                None => {
                    let (_, mut seen) = Self::nothing(owner);
                    known.iter().for_each(|lease| seen.add(crate::held::bare(lease)));
                    seen
                }
            };
            return Some(View { held: known.to_vec(), sure: false, pools: Vec::new(), token });
        }
        let blind = looks.iter().all(|look| *look == Look::Nowhere);
        if !blind || !self.indexed.get() || self.memory.has_taken(owner) || self.is_cached(owner) {
            return None;
        }
        let mut pools = Vec::new();
        for want in want {
            let known = self.known_of(want)?;
            self.believe(want, &known);
            let usable = want.set.is_some() || known.definition.is_some();
            let view = self.remembered(want, known).ok()?;
            if !usable || (!view.is_known() && want.requested.is_none()) {
                return None;
            }
            pools.push(view);
        }
        Some(View { held: Vec::new(), sure: false, pools, token: Seen::default() })
    }

    /// Relies on the ranges that are remembered.
    fn believe(&self, want: &Want, known: &Known) {
        if let (Some(pool), Some(definition)) = (&want.pool, &known.definition) {
            self.believed.borrow_mut().insert(pool.clone(), definition.index);
        }
    }

    /// What is remembered of a pool, if it has the same ranges still.
    pub(crate) fn known_of(&self, want: &Want) -> Option<Known> {
        let brought = want.set.as_ref().map(RangeSet::to_string);
        self.cache_of(want).read().filter(|known| known.brought == brought)
    }

    /// The names of pools whose ranges are to be read: where something is asked anyway, of all that were not
    /// in this call.
    fn unknown_pools(&self, wants: &[Want], asks_anyway: bool) -> BTreeSet<String> {
        let unknown = |want: &&Want| {
            let remembered = || self.known_of(want).is_some_and(|known| known.definition.is_some());
            let name = want.pool.as_ref().filter(|_| want.set.is_none());
            name.is_some_and(|name| {
                !self.definitions.borrow().contains_key(name) && (asks_anyway || !remembered())
            })
        };
        wants.iter().filter(unknown).filter_map(|want| want.pool.clone()).collect()
    }

    /// Reads what an owner holds and the ranges of pools, in one request where the owner has a key.
    fn look(&self, question: &Question<'_>, unknown: &BTreeSet<String>) -> Result<State> {
        let owner = question.owner;
        let own = self.keys.owner(owner);
        let hinted = self.hinted(question)?;
        let mut keys: Vec<String> = hinted.iter().cloned().collect();
        let mark = self.keys.mark(&owner.scope.node);
        if self.indexed.get() {
            keys.push(own.clone());
            keys.extend(self.checks.then(|| mark.clone()));
        }
        let read = self.read_with_definitions(&keys, unknown)?;
        let found = read.iter().find(|pair| pair.key == own);
        let leases: Vec<Pair> = read.iter().filter(|p| hinted.contains(&p.key)).cloned().collect();
        let mut state = self.state(owner, found, &leases)?;
        if self.verifies.get() && !state.0.is_empty() {
            state = self.verified(owner, state, &hinted, &leases)?;
        }
        // An owner without a key may hold what the ancestor gave, or what we did where we may have none.
        let unsure = !self.indexed.get() || (found.is_none() && self.memory.has_taken(owner));
        let may_hold = self.forgets || (!question.want.is_empty() && unsure);
        if state.0.is_empty() && (may_hold || (self.checks && leases.is_empty())) {
            let pools = self.pools_of(question);
            let found = self.search(owner, &pools)?;
            self.adopt(owner, &found, &mut state);
        }
        if self.forgets {
            self.tidy(owner, &state)?;
        }
        let shown: BTreeSet<IpAddr> = state.0.iter().map(|lease| lease.address.addr()).collect();
        let lacks = |lease: &Lease| !shown.contains(&lease.address.addr());
        if self.checks && (shown.is_empty() || question.known.iter().any(lacks)) {
            self.judge_absence(owner, read.iter().find(|pair| pair.key == mark))?;
        }
        Ok(state)
    }

    /// Reads keys as far as they are there, and the ranges of pools with the folders that the ancestor wants.
    fn read_with_definitions(
        &self,
        keys: &[String],
        unknown: &BTreeSet<String>,
    ) -> Result<Vec<Pair>> {
        if unknown.is_empty() {
            return self.read_keys(keys);
        }
        let wanted: BTreeSet<String> = unknown.iter().flat_map(|pool| folders(pool)).collect();
        let mut present = wanted.clone();
        loop {
            let definitions = unknown.iter().map(|pool| Op::Get(Keys::definition(pool)));
            let standing = present.iter().map(|folder| Op::Get(folder.clone()));
            let trees = keys.iter().map(|key| Op::GetTree(key.clone()));
            let ops: Vec<Op> = definitions.chain(standing).chain(trees).collect();
            if ops.len() > LARGEST {
                return Err(too_many(ops.len()));
            }
            let pairs = match self.store.read(&ops)? {
                Ended::Done(pairs) => pairs,
                Ended::Failed(failures) => {
                    let before = present.len();
                    for failure in &failures {
                        if let Some(pool) = unknown.iter().nth(failure.place) {
                            return Err(pool::missing(pool));
                        }
                        if let Some(op) = ops.get(failure.place) {
                            present.remove(op.key());
                        }
                    }
                    if present.len() == before {
                        return Err(refused(&ops, &failures));
                    }
                    continue;
                }
            };
            self.folders.borrow_mut().extend(wanted.difference(&present).cloned());
            for pool in unknown {
                self.learn_definition(pool, &pairs, &present)?;
            }
            return Ok(pairs.into_iter().filter(|pair| keys.contains(&pair.key)).collect());
        }
    }

    fn learn_definition(
        &self,
        pool: &str,
        pairs: &[Pair],
        present: &BTreeSet<String>,
    ) -> Result<()> {
        let find = |key: &str| pairs.iter().find(|pair| pair.key == key);
        let key = Keys::definition(pool);
        // What is there and not shown may not be read.
        let pair = find(&key).ok_or_else(|| pool::denied(&key))?;
        let [_, folder] = folders(pool);
        if present.contains(&folder) && find(&folder).is_none() {
            return Err(pool::denied(&folder));
        }
        let definition = Definition::read(pair)?;
        definition.set(pool)?;
        let cache = self.cache_named(pool);
        if cache.read().is_some_and(|known| known.definition.as_ref() != Some(&definition)) {
            cache.forget();
        }
        self.definitions.borrow_mut().insert(pool.to_owned(), definition);
        Ok(())
    }

    /// What is shown of a pool.
    fn pool_view(&self, want: &Want, look: Look) -> Result<PoolView> {
        let cached = self.known_of(want).unwrap_or_default();
        let set = self.set_of(want, &cached)?;
        self.believe(want, &cached);
        if want.requested.is_some() && cached == Known::default() {
            // Nothing is listed for it, and the next one needs the ranges alone.
            let definition = self.definition_of(want, &cached);
            let ranges = definition.as_ref().map_or(Ranges::Brought(&set), Ranges::Stand);
            self.cache_of(want).renew(ranges, &BTreeSet::new(), false);
        }
        match look {
            Look::Nowhere => self.remembered(want, cached),
            Look::Window(from, to) if self.indexed.get() => {
                let asked = address::distance(from, to).unwrap_or(u128::MAX).saturating_add(1);
                self.window_of(want, set, cached, from, asked)
            }
            _ => self.whole_pool(want, set, cached),
        }
    }

    fn window_of(
        &self,
        want: &Want,
        set: RangeSet,
        cached: Known,
        from: IpAddr,
        asked: u128,
    ) -> Result<PoolView> {
        let crowded = want.strategy == Strategy::Random || cached.crowded;
        for window in windows(from, asked, crowded) {
            let prefix = format!("{}{}", self.keys.folder(want.pool.as_deref()), window.text);
            let taken = self.taken(want, &prefix)?;
            let within = |range: &Range| {
                let shows =
                    |(from, to): &(IpAddr, IpAddr)| *from <= range.start() && range.end() <= *to;
                window.stretches.iter().any(shows)
            };
            let is_all = set.ranges().iter().all(within);
            let used = match is_all {
                true => Used::All(taken),
                false => Used::Windows(window.stretches, taken),
            };
            let (view, free) = self.remember(want, set.clone(), cached.clone(), used);
            // A few addresses would last for a few claims only.
            let is_sure = free > 0 || want.set.is_some() || self.was_read(want);
            let is_enough = crowded || free >= ENOUGH || (free > 0 && window.is_widest);
            let is_settled = if is_all { is_sure } else { is_enough };
            if is_settled {
                return Ok(view);
            }
        }
        self.whole_pool(want, set, cached)
    }

    fn whole_pool(&self, want: &Want, set: RangeSet, cached: Known) -> Result<PoolView> {
        // Before a pool is called full, its ranges may have become more.
        let mut set = set;
        let named = want.pool.clone().filter(|_| want.set.is_none() && !self.was_read(want));
        if let Some(pool) = named {
            self.read_with_definitions(&[], &BTreeSet::from([pool]))?;
            set = self.set_of(want, &cached)?;
        }
        let folder = self.keys.folder(want.pool.as_deref());
        let taken = self.taken(want, &folder)?;
        Ok(self.remember(want, set, cached, Used::All(taken)).0)
    }

    /// Whether a pool's ranges were read in this call.
    fn was_read(&self, want: &Want) -> bool {
        want.pool.as_ref().is_some_and(|pool| self.definitions.borrow().contains_key(pool))
    }

    /// The addresses that keys with this beginning are of.
    fn taken(&self, want: &Want, prefix: &str) -> Result<BTreeSet<IpAddr>> {
        let folder = self.keys.folder(want.pool.as_deref());
        let mut taken = BTreeSet::new();
        self.store.keys(prefix, &mut |key| {
            match split(key) {
                Some((pool, address)) if folder == format!("{ROOT}{pool}/") => {
                    taken.insert(address);
                }
                // Of a pool whose name goes on where this one's ends.
                Some(_) => {}
                None if key == folder => {}
                None => return Err(foreign(key)),
            }
            Ok(())
        })?;
        Ok(taken)
    }

    /// A view of what was read, of which the free addresses are remembered; and how many these are.
    fn remember(&self, want: &Want, set: RangeSet, cached: Known, used: Used) -> (PoolView, usize) {
        let view = PoolView {
            cursor: cached.cursor,
            used,
            hint: Some(Hint { free: BTreeSet::new(), contended: cached.crowded }),
            set: want.set.is_none().then(|| set.clone()),
        };
        let none = BTreeSet::new();
        // Nodes that meet would choose among the same addresses.
        let strategy = if cached.crowded { Strategy::Random } else { want.strategy };
        let search = Search { set: &set, strategy, random: self.random, avoid: &none };
        let free: BTreeSet<IpAddr> = search.candidates(&view, HINTS).into_iter().collect();
        let definition = self.definition_of(want, &cached);
        let ranges = definition.as_ref().map_or(Ranges::Brought(&set), Ranges::Stand);
        let wide = cached.crowded || matches!(view.used, Used::All(_));
        self.cache_of(want).renew(ranges, &free, wide);
        (view, free.len())
    }

    /// A view by what is remembered.
    pub(crate) fn remembered(&self, want: &Want, cached: Known) -> Result<PoolView> {
        let set = self.set_of(want, &cached)?;
        let narrow = cached.crowded && !cached.wide && cached.free.len() < FEW;
        let mut its: BTreeSet<IpAddr> =
            cached.free.into_iter().filter(|address| set.find(*address).is_some()).collect();
        if want.strategy == Strategy::RoundRobin {
            // Behind the address given last lies what was given back, which is reused late.
            let place = |address: IpAddr| {
                let range = set.ranges().iter().position(|range| range.spans(address));
                range.map(|range| (range, address))
            };
            let cursor = cached.cursor.and_then(place);
            its.retain(|address| place(*address) > cursor);
        }
        if narrow {
            its.clear();
        }
        Ok(PoolView {
            set: want.set.is_none().then_some(set),
            cursor: cached.cursor,
            used: Used::Unknown,
            hint: Some(Hint { free: its, contended: cached.crowded }),
        })
    }

    /// The ranges of a pool: those that it brings, else those that stand in Consul.
    fn set_of(&self, want: &Want, cached: &Known) -> Result<RangeSet> {
        if let Some(set) = &want.set {
            return Ok(set.clone());
        }
        let Some(pool) = &want.pool else {
            return Err(Error::config(
                &want.path,
                "expected a name: pools are known to Consul by it",
            ));
        };
        match self.definition_of(want, cached) {
            Some(definition) => self.read_definition(pool, &definition),
            None => Err(Error::new(ErrorCode::INTERNAL, format!("the pool {pool:?} was not read"))),
        }
    }

    /// The ranges of a pool, as they stand in Consul where the pool does not bring them.
    pub(crate) fn ranges_of(&self, want: &Want) -> Result<RangeSet> {
        let cached = self.known_of(want).unwrap_or_default();
        if want.set.is_none()
            && self.definition_of(want, &cached).is_none()
            && let Some(pool) = &want.pool
        {
            judge_name(pool, &want.path)?;
            self.read_with_definitions(&[], &BTreeSet::from([pool.clone()]))?;
        }
        self.set_of(want, &cached)
    }

    /// What is known of a pool's ranges, read in this call or before.
    fn definition_of(&self, want: &Want, cached: &Known) -> Option<Definition> {
        let pool = want.pool.as_ref().filter(|_| want.set.is_none())?;
        self.definitions.borrow().get(pool).cloned().or_else(|| cached.definition.clone())
    }

    /// Keys of addresses that an owner is said to hold: by the record, or by the runtime's cache, which knows
    /// what the ancestor gave.
    fn hinted(&self, question: &Question<'_>) -> Result<BTreeSet<String>> {
        let Question { owner, known, want, .. } = *question;
        let told = known.iter().filter(|lease| lease.pool.is_some() || !lease.revision.is_null());
        let mut keys: BTreeSet<String> = told
            .map(|lease| self.keys.lease(lease.pool.as_deref(), lease.address.addr()))
            .collect();
        let mut addresses: BTreeSet<IpAddr> =
            known.iter().filter(|l| l.revision.is_null()).map(|l| l.address.addr()).collect();
        if !want.is_empty() {
            let cached = self.cache.of(&owner.scope.network, &owner.container, &owner.ifname)?;
            addresses.extend(cached.into_iter().flat_map(|cached| cached.addresses));
        }
        let pools = self.pools_of(question);
        for address in addresses.iter().take(8) {
            keys.extend(pools.iter().take(4).map(|pool| self.keys.lease(Some(pool), *address)));
        }
        Ok(keys)
    }

    /// The folders of the pools that a question is about; none where nobody says.
    fn pools_of(&self, question: &Question<'_>) -> Vec<String> {
        let network = || self.keys.network().to_string();
        let of = |pool: &Option<String>| pool.clone().unwrap_or_else(network);
        let wanted = question.want.iter().map(|want| of(&want.pool));
        let known = question.known.iter().filter(|lease| !lease.revision.is_null());
        let known = known.map(|lease| of(&lease.pool));
        let asked = self.asked.iter().cloned();
        wanted.chain(known).chain(asked).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn is_cached(&self, owner: &Owner) -> bool {
        // What cannot be read may say so; then there is a look, which fails if it stays so.
        let cached = self.cache.of(&owner.scope.network, &owner.container, &owner.ifname);
        cached.map_or(true, |cached| cached.is_some())
    }
}

/// A key in a pool's folder that is about no address.
pub(crate) fn foreign(key: &str) -> Error {
    Error::new(ErrorCode::BACKEND, format!("the key {key} is no address of its pool"))
        .advise(format!("look at it (consul kv get '{key}') and delete the key if nobody needs it"))
}
