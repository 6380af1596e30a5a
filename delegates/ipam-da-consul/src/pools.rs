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

use crate::cache::{Cache, RangeSource};
use crate::cache_file::CachedPool;
use crate::definition::{self, Definition};
use crate::errors::{refused, too_many, unreadable};
use crate::keys::{ConsulKeys, check_name};
use crate::store::KvStore;
use crate::txn::{LARGEST, Op, Pair, TxnOutcome};

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
    /// Folder keys that passcod needs and that are missing.
    missing: BTreeSet<String>,
}

/// What is shown of a pool.
#[derive(Debug)]
pub(crate) struct ShownPool {
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
    pub(crate) fn cache_of(&self, request: &PoolRequest) -> Cache {
        let pool = request.pool.as_deref().unwrap_or(&self.network);
        let name = match request.set {
            None => escape(pool),
            Some(_) => format!("{}#{}", escape(pool), request.index),
        };
        Cache::at(self.folder.join(name))
    }

    /// What is remembered of a pool, if it has the same ranges still.
    pub(crate) fn cached(&self, request: &PoolRequest) -> Option<CachedPool> {
        let brought = request.set.as_ref().map(RangeSet::to_string);
        self.cache_of(request).read().filter(|known| known.brought == brought)
    }

    /// Remembers free addresses of a pool, as they were read now.
    pub(crate) fn renew(
        &self,
        request: &PoolRequest,
        set: &RangeSet,
        cached: &CachedPool,
        free: &BTreeSet<IpAddr>,
        wide: bool,
    ) {
        let definition = self.definition_of(request, cached);
        let ranges = definition.map_or(RangeSource::Request(set), RangeSource::Definition);
        self.cache_of(request).renew(ranges, free, wide);
    }

    /// Notes that an address was given back. Of a pool that brought its ranges, nobody knows the number by now.
    pub(crate) fn remember_released(&self, lease: &Lease) {
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

    /// Folder keys that passcod needs and that are missing.
    pub(crate) fn missing(&self) -> &BTreeSet<String> {
        &self.missing
    }

    /// Leaves missing folder keys to others.
    pub(crate) fn forget_missing(&mut self) {
        self.missing.clear();
    }

    /// The misspelt keys of the ranges of a pool that stand in Consul, as far as they were read.
    pub(crate) fn misspelt(&self, request: &PoolRequest) -> Vec<Misspelt> {
        let pool = request.pool.as_ref().filter(|_| request.set.is_none());
        pool.and_then(|pool| self.misspelt.get(pool).cloned()).unwrap_or_default()
    }

    /// Whether a pool's ranges were read in this call.
    pub(crate) fn was_read(&self, request: &PoolRequest) -> bool {
        request.pool.as_ref().is_some_and(|pool| self.definitions.contains_key(pool))
    }

    /// The names of pools whose ranges are to be read: where something is asked anyway, of all that were not
    /// in this call.
    pub(crate) fn unknown(&self, requests: &[PoolRequest], asks_anyway: bool) -> BTreeSet<String> {
        let unknown = |request: &&PoolRequest| {
            let remembered =
                || self.cached(request).is_some_and(|known| known.definition.is_some());
            request.set.is_none() && !self.was_read(request) && (asks_anyway || !remembered())
        };
        requests.iter().filter(unknown).filter_map(|request| request.pool.clone()).collect()
    }

    /// Reads keys as far as they are there, and the ranges of pools with the folders that passcod needs.
    pub(crate) fn read(
        &mut self,
        store: &mut KvStore,
        keys: &[String],
        unknown: &BTreeSet<String>,
    ) -> Result<Vec<Pair>> {
        if unknown.is_empty() {
            return store.read_keys(keys);
        }
        let wanted: BTreeSet<String> =
            unknown.iter().flat_map(|pool| ConsulKeys::folders(pool)).collect();
        let mut present = wanted.clone();
        loop {
            let definitions = unknown.iter().map(|pool| Op::Get(ConsulKeys::definition(pool)));
            let standing = present.iter().map(|folder| Op::Get(folder.clone()));
            let trees = keys.iter().map(|key| Op::GetTree(key.clone()));
            let ops: Vec<Op> = definitions.chain(standing).chain(trees).collect();
            if ops.len() > LARGEST {
                return Err(too_many(ops.len()));
            }
            let pairs = match store.read(&ops)? {
                TxnOutcome::Done(pairs) => pairs,
                TxnOutcome::Failed(failures) => {
                    match failures.iter().find_map(|failure| unknown.iter().nth(failure.place)) {
                        // A leader that was just elected shows less than is there.
                        Some(_) if !store.requires_proof() => {
                            store.require_proof();
                            continue;
                        }
                        Some(pool) => return Err(definition::missing(pool)),
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
        let key = ConsulKeys::definition(pool);
        // What is there and not shown may not be read.
        let pair = find(&key).ok_or_else(|| unreadable(&key))?;
        let [_, folder] = ConsulKeys::folders(pool);
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
    pub(crate) fn ranges_of(
        &mut self,
        store: &mut KvStore,
        request: &PoolRequest,
    ) -> Result<RangeSet> {
        let cached = self.cached(request).unwrap_or_default();
        if request.set.is_none()
            && self.definition_of(request, &cached).is_none()
            && let Some(pool) = &request.pool
        {
            check_name(pool, &request.path)?;
            self.read(store, &[], &BTreeSet::from([pool.clone()]))?;
        }
        self.set_of(request, &cached)
    }

    /// The ranges of a pool: those that it brings, else those that stand in Consul.
    pub(crate) fn set_of(
        &mut self,
        request: &PoolRequest,
        cached: &CachedPool,
    ) -> Result<RangeSet> {
        if let Some(set) = &request.set {
            return Ok(set.clone());
        }
        let Some(pool) = &request.pool else {
            return Err(Error::config(
                &request.path,
                "expected a name: pools are known to Consul by it",
            ));
        };
        let Some(definition) = self.definition_of(request, cached) else {
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
    pub(crate) fn check_ranges(&mut self, pool: &str, definition: &Definition) -> Result<()> {
        self.misspelt.insert(pool.to_owned(), definition.misspelt(pool));
        definition.set(pool).map(drop)
    }

    /// The index of a pool's ranges, where they stand in Consul.
    pub(crate) fn index_of(&self, request: &PoolRequest, cached: &CachedPool) -> Option<u64> {
        self.definition_of(request, cached).map(|definition| definition.index)
    }

    /// What is known of a pool's ranges, read in this call or before.
    fn definition_of<'a>(
        &'a self,
        request: &PoolRequest,
        cached: &'a CachedPool,
    ) -> Option<&'a Definition> {
        let pool = request.pool.as_ref().filter(|_| request.set.is_none())?;
        self.definitions.get(pool).or(cached.definition.as_ref())
    }

    /// A pool by what is remembered of it.
    pub(crate) fn remembered(
        &mut self,
        request: &PoolRequest,
        cached: CachedPool,
    ) -> Result<ShownPool> {
        let set = self.set_of(request, &cached)?;
        let index = self.index_of(request, &cached);
        let narrow = cached.contended && !cached.wide && cached.free.len() < FEW;
        let mut its = cached.free;
        its.retain(|address| set.find(*address).is_some());
        if request.strategy == Strategy::RoundRobin {
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
            set: request.set.is_none().then_some(set),
            cursor: cached.cursor,
            used: Used::Unknown,
            hint: Some(Hint { free: its, contended: cached.contended }),
        };
        Ok(ShownPool { view, index })
    }
}
