//! What is known of pools, by this call and by earlier ones of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use ipam_kit::allocate::ledger::{Hint, PoolView, Used};
use ipam_kit::allocate::{Lease, PoolRequest, Strategy};
use ipam_kit::cni::NetworkName;
use ipam_kit::keys::Misspelt;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_servers::escape;
use log::debug;

use crate::cache::{Cache, Ranges};
use crate::cached::Known;
use crate::errors::{refused, too_many, unreadable};
use crate::keys::{Keys, judge_name};
use crate::pool::{self, Definition};
use crate::store::Store;
use crate::txn::{Ended, LARGEST, Op, Pair};

/// The pools of a store.
#[derive(Debug)]
pub(crate) struct Pools {
    /// Where their caches are.
    folder: PathBuf,
    /// Whose pool it is that has no name.
    network: String,
    /// What was read of them in this call, by name.
    definitions: BTreeMap<String, Definition>,
    /// The misspelt keys of each pool's definition.
    misspelt: BTreeMap<String, Vec<Misspelt>>,
    /// Folder keys that the ancestor wants and that are missing.
    missing: BTreeSet<String>,
}

/// What is shown of a pool.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) view: PoolView,
    /// The index of its ranges, where they stand in Consul.
    pub(crate) index: Option<u64>,
}

/// How many pools without names a network may have until their addresses are reused late.
const NUMBERS: u32 = 8;

/// A crowd that chooses among fewer free addresses than this would meet too often, in a pool of more.
const FEW: usize = 256;

impl Pools {
    /// The pools whose caches are in this folder.
    pub(crate) fn at(folder: PathBuf, network: &NetworkName) -> Self {
        Self {
            folder,
            network: network.to_string(),
            definitions: BTreeMap::new(),
            misspelt: BTreeMap::new(),
            missing: BTreeSet::new(),
        }
    }

    /// What this node remembers of a pool: of one that brings its ranges, by its number, too.
    pub(crate) fn cache_of(&self, want: &PoolRequest) -> Cache {
        let pool = want.pool.as_deref().unwrap_or(&self.network);
        let name = match want.set {
            None => escape(pool),
            Some(_) => format!("{}#{}", escape(pool), want.index),
        };
        Cache::at(self.folder.join(name))
    }

    /// What is remembered of a pool, if it has the same ranges still.
    pub(crate) fn known_of(&self, want: &PoolRequest) -> Option<Known> {
        let brought = want.set.as_ref().map(RangeSet::to_string);
        self.cache_of(want).read().filter(|known| known.brought == brought)
    }

    /// Remembers free addresses of a pool, as they were read now.
    pub(crate) fn renew(
        &self,
        want: &PoolRequest,
        set: &RangeSet,
        cached: &Known,
        free: &BTreeSet<IpAddr>,
        wide: bool,
    ) {
        let definition = self.definition_of(want, cached);
        let ranges = definition.map_or(Ranges::Brought(set), Ranges::Stand);
        self.cache_of(want).renew(ranges, free, wide);
    }

    /// Notes that an address was given back. Of a pool that brought its ranges, nobody knows the number by now.
    pub(crate) fn note_given_back(&self, lease: &Lease) {
        let pool = escape(lease.pool.as_deref().unwrap_or(&self.network));
        let numbered = (0..NUMBERS).map(|number| format!("{pool}#{number}"));
        for name in [pool.clone()].into_iter().chain(numbered) {
            Cache::at(self.folder.join(name)).give_back(lease.address.addr());
        }
    }

    /// Forgets what is remembered of all pools: the store is another one, or another again.
    pub(crate) fn forget_all(&self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            debug!("{} cannot be removed: {error}", self.folder.display());
        }
    }

    /// Forgets what was read of a pool's ranges.
    pub(crate) fn forget_definition(&mut self, pool: &str) {
        self.definitions.remove(pool);
    }

    /// Folder keys that the ancestor wants and that are missing.
    pub(crate) fn missing(&self) -> &BTreeSet<String> {
        &self.missing
    }

    /// Leaves missing folder keys to others.
    pub(crate) fn forget_missing(&mut self) {
        self.missing.clear();
    }

    /// The misspelt keys of the ranges of a pool that stand in Consul, as far as they were read.
    pub(crate) fn misspelt(&self, want: &PoolRequest) -> Vec<Misspelt> {
        let pool = want.pool.as_ref().filter(|_| want.set.is_none());
        pool.and_then(|pool| self.misspelt.get(pool).cloned()).unwrap_or_default()
    }

    /// Whether a pool's ranges were read in this call.
    pub(crate) fn was_read(&self, want: &PoolRequest) -> bool {
        want.pool.as_ref().is_some_and(|pool| self.definitions.contains_key(pool))
    }

    /// The names of pools whose ranges are to be read: where something is asked anyway, of all that were not
    /// in this call.
    pub(crate) fn unknown(&self, wants: &[PoolRequest], asks_anyway: bool) -> BTreeSet<String> {
        let unknown = |want: &&PoolRequest| {
            let remembered = || self.known_of(want).is_some_and(|known| known.definition.is_some());
            want.set.is_none() && !self.was_read(want) && (asks_anyway || !remembered())
        };
        wants.iter().filter(unknown).filter_map(|want| want.pool.clone()).collect()
    }

    /// Reads keys as far as they are there, and the ranges of pools with the folders that the ancestor wants.
    pub(crate) fn read(
        &mut self,
        store: &mut Store,
        keys: &[String],
        unknown: &BTreeSet<String>,
    ) -> Result<Vec<Pair>> {
        if unknown.is_empty() {
            return store.read_keys(keys);
        }
        let wanted: BTreeSet<String> =
            unknown.iter().flat_map(|pool| Keys::folders(pool)).collect();
        let mut present = wanted.clone();
        loop {
            let definitions = unknown.iter().map(|pool| Op::Get(Keys::definition(pool)));
            let standing = present.iter().map(|folder| Op::Get(folder.clone()));
            let trees = keys.iter().map(|key| Op::GetTree(key.clone()));
            let ops: Vec<Op> = definitions.chain(standing).chain(trees).collect();
            if ops.len() > LARGEST {
                return Err(too_many(ops.len()));
            }
            let pairs = match store.read(&ops)? {
                Ended::Done(pairs) => pairs,
                Ended::Failed(failures) => {
                    match failures.iter().find_map(|failure| unknown.iter().nth(failure.place)) {
                        // A leader that was just elected shows less than is there.
                        Some(_) if !store.insists() => {
                            store.insist();
                            continue;
                        }
                        Some(pool) => return Err(pool::missing(pool)),
                        None => {}
                    }
                    let before = present.len();
                    for failure in &failures {
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
            self.missing.extend(wanted.difference(&present).cloned());
            for pool in unknown {
                self.learn(pool, &pairs, &present)?;
            }
            return Ok(pairs.into_iter().filter(|pair| keys.contains(&pair.key)).collect());
        }
    }

    fn learn(&mut self, pool: &str, pairs: &[Pair], present: &BTreeSet<String>) -> Result<()> {
        let find = |key: &str| pairs.iter().find(|pair| pair.key == key);
        let key = Keys::definition(pool);
        // What is there and not shown may not be read.
        let pair = find(&key).ok_or_else(|| unreadable(&key))?;
        let [_, folder] = Keys::folders(pool);
        if present.contains(&folder) && find(&folder).is_none() {
            return Err(unreadable(&folder));
        }
        let definition = Definition::read(pair)?;
        definition.set(pool)?;
        let cache = Cache::at(self.folder.join(escape(pool)));
        if cache.read().is_some_and(|known| known.definition.as_ref() != Some(&definition)) {
            cache.forget();
        }
        self.definitions.insert(pool.to_owned(), definition);
        Ok(())
    }

    /// The ranges of a pool, as they stand in Consul where the pool does not bring them.
    pub(crate) fn ranges_of(&mut self, store: &mut Store, want: &PoolRequest) -> Result<RangeSet> {
        let cached = self.known_of(want).unwrap_or_default();
        if want.set.is_none()
            && self.definition_of(want, &cached).is_none()
            && let Some(pool) = &want.pool
        {
            judge_name(pool, &want.path)?;
            self.read(store, &[], &BTreeSet::from([pool.clone()]))?;
        }
        self.set_of(want, &cached)
    }

    /// The ranges of a pool: those that it brings, else those that stand in Consul.
    pub(crate) fn set_of(&mut self, want: &PoolRequest, cached: &Known) -> Result<RangeSet> {
        if let Some(set) = &want.set {
            return Ok(set.clone());
        }
        let Some(pool) = &want.pool else {
            return Err(Error::config(
                &want.path,
                "expected a name: pools are known to Consul by it",
            ));
        };
        let Some(definition) = self.definition_of(want, cached) else {
            let message = format!("the pool {pool:?} was not read");
            return Err(Error::new(ErrorCode::INTERNAL, message));
        };
        let (misspelt, set) = (definition.misspelt(pool), definition.set(pool));
        self.misspelt.insert(pool.clone(), misspelt);
        set
    }

    /// Judges the ranges of a pool, as they stand in Consul.
    ///
    /// # Errors
    /// A range is wrong.
    pub(crate) fn judge(&mut self, pool: &str, definition: &Definition) -> Result<()> {
        self.misspelt.insert(pool.to_owned(), definition.misspelt(pool));
        definition.set(pool).map(drop)
    }

    /// The index of a pool's ranges, where they stand in Consul.
    pub(crate) fn index_of(&self, want: &PoolRequest, cached: &Known) -> Option<u64> {
        self.definition_of(want, cached).map(|definition| definition.index)
    }

    /// What is known of a pool's ranges, read in this call or before.
    fn definition_of<'a>(
        &'a self,
        want: &PoolRequest,
        cached: &'a Known,
    ) -> Option<&'a Definition> {
        let pool = want.pool.as_ref().filter(|_| want.set.is_none())?;
        self.definitions.get(pool).or(cached.definition.as_ref())
    }

    /// A pool by what is remembered of it.
    pub(crate) fn remembered(&mut self, want: &PoolRequest, cached: Known) -> Result<Shown> {
        let set = self.set_of(want, &cached)?;
        let index = self.index_of(want, &cached);
        let narrow = cached.crowded && !cached.wide && cached.free.len() < FEW;
        let mut its = cached.free;
        its.retain(|address| set.find(*address).is_some());
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
        let view = PoolView {
            set: want.set.is_none().then_some(set),
            cursor: cached.cursor,
            used: Used::Unknown,
            hint: Some(Hint { free: its, contended: cached.crowded }),
        };
        Ok(Shown { view, index })
    }
}
