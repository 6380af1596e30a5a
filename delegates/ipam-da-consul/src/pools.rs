//! The definitions of pools, read in this call or remembered, and where this node remembers pools.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use ipam_kit::allocate::{Lease, PoolRequest};
use ipam_kit::cni::NetworkName;
use ipam_kit::keys::MisspeltKey;
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
use crate::txn::{LARGEST, Op, Pair, TxnFailure, TxnOutcome, find};

/// The pools of a store.
#[derive(Debug)]
pub(crate) struct Pools {
    /// The folder of their caches.
    folder: PathBuf,
    /// The network's name, for pools without a name.
    network: String,
    /// The definitions that this call has read, by the pool's name.
    definitions: BTreeMap<String, Definition>,
    /// The misspelt keys of each definition.
    misspelt: BTreeMap<String, Vec<MisspeltKey>>,
    /// Folder keys that passcod needs and that do not exist.
    missing_folders: BTreeSet<String>,
}

/// The number of pools without names whose caches learn of a released address.
const NUMBERED: u32 = 8;

impl Pools {
    /// Returns the pools whose caches are in this folder.
    pub(crate) fn at(folder: PathBuf, network: &NetworkName) -> Self {
        Self {
            folder,
            network: network.to_string(),
            definitions: BTreeMap::new(),
            misspelt: BTreeMap::new(),
            missing_folders: BTreeSet::new(),
        }
    }

    /// Reads keys, as far as they exist, and in the same request the definitions of `unread` pools.
    ///
    /// # Errors
    /// No server answers in time; a pool is missing or wrong; the token may not read a definition.
    pub(crate) fn read(
        &mut self,
        store: &mut KvStore,
        keys: &[String],
        unread: &BTreeSet<String>,
    ) -> Result<Vec<Pair>> {
        if unread.is_empty() {
            return store.read_keys(keys);
        }
        let folders: BTreeSet<String> =
            unread.iter().flat_map(|pool| ConsulKeys::folders(pool)).collect();
        // A `get` of a missing key fails the transaction; the next one leaves that key out.
        let mut existing = folders.clone();
        loop {
            let mut ops: Vec<Op> =
                unread.iter().map(|pool| Op::Get(ConsulKeys::definition(pool))).collect();
            ops.extend(existing.iter().map(|folder| Op::Get(folder.clone())));
            ops.extend(keys.iter().map(|key| Op::GetTree(key.clone())));
            if ops.len() > LARGEST {
                return Err(too_many(ops.len()));
            }
            match store.read(&ops)? {
                TxnOutcome::Done(pairs) => {
                    self.missing_folders.extend(folders.difference(&existing).cloned());
                    for pool in unread {
                        self.take_definition(pool, &pairs, &existing)?;
                    }
                    return Ok(pairs.into_iter().filter(|pair| keys.contains(&pair.key)).collect());
                }
                TxnOutcome::Failed(failures) => {
                    leave_out_missing(store, unread, &ops, &failures, &mut existing)?;
                }
            }
        }
    }

    /// Keeps the definition of a pool, which is among `pairs`. Forgets the pool's cache if it has
    /// another definition.
    fn take_definition(
        &mut self,
        pool: &str,
        pairs: &[Pair],
        existing: &BTreeSet<String>,
    ) -> Result<()> {
        let key = ConsulKeys::definition(pool);
        // A key that exists and is not shown may not be read.
        let pair = find(pairs, &key).ok_or_else(|| unreadable(&key))?;
        let [_, folder] = ConsulKeys::folders(pool);
        if existing.contains(&folder) && find(pairs, &folder).is_none() {
            return Err(unreadable(&folder));
        }
        let definition = Definition::read(pair)?;
        definition.set(pool)?;
        let cache = Cache::at(self.folder.join(escape(pool)));
        if cache.read().is_some_and(|cached| cached.definition.as_ref() != Some(&definition)) {
            cache.forget();
        }
        self.definitions.insert(pool.to_owned(), definition);
        Ok(())
    }

    /// Returns the ranges of a pool: those of the request, else those in Consul, which are read if
    /// need be.
    ///
    /// # Errors
    /// As [`Pools::read`].
    pub(crate) fn read_ranges(
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
        self.ranges_of(request, &cached)
    }

    /// Returns the ranges of a pool: those of the request, else those of a definition that is
    /// known.
    ///
    /// # Errors
    /// A range is wrong; the pool has neither ranges nor a name.
    pub(crate) fn ranges_of(
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
                "missing name: the ranges of a pool are found in Consul by its name",
            ));
        };
        let Some(definition) = self.definition_of(request, cached) else {
            let message = format!("pool {pool:?} was not read");
            return Err(Error::new(ErrorCode::INTERNAL, message));
        };
        let misspelt = definition.misspelt(pool);
        let set = definition.set(pool);
        self.misspelt.insert(pool.clone(), misspelt);
        set
    }

    /// Fails for a definition with a wrong range, and keeps its misspelt keys.
    ///
    /// # Errors
    /// A range is wrong.
    pub(crate) fn check_definition(&mut self, pool: &str, definition: &Definition) -> Result<()> {
        self.misspelt.insert(pool.to_owned(), definition.misspelt(pool));
        definition.set(pool).map(drop)
    }

    /// Returns the misspelt keys of a pool's definition, as far as it was read.
    pub(crate) fn misspelt(&self, request: &PoolRequest) -> Vec<MisspeltKey> {
        let pool = request.pool.as_ref().filter(|_| request.set.is_none());
        pool.and_then(|pool| self.misspelt.get(pool).cloned()).unwrap_or_default()
    }

    /// Returns the names of pools whose definitions are unread. With `reads_anyway` another read
    /// happens in any case, and remembered definitions are read again.
    pub(crate) fn unread(&self, requests: &[PoolRequest], reads_anyway: bool) -> BTreeSet<String> {
        let mut unread = BTreeSet::new();
        for request in requests.iter().filter(|request| request.set.is_none()) {
            if !self.was_read(request) && (reads_anyway || !self.remembers_definition(request)) {
                unread.extend(request.pool.clone());
            }
        }
        unread
    }

    /// Returns whether this call has read a pool's definition.
    pub(crate) fn was_read(&self, request: &PoolRequest) -> bool {
        request.pool.as_ref().is_some_and(|pool| self.definitions.contains_key(pool))
    }

    fn remembers_definition(&self, request: &PoolRequest) -> bool {
        self.cached(request).is_some_and(|cached| cached.definition.is_some())
    }

    /// Returns the index of a pool's definition, if the ranges are in Consul.
    pub(crate) fn definition_index(
        &self,
        request: &PoolRequest,
        cached: &CachedPool,
    ) -> Option<u64> {
        self.definition_of(request, cached).map(|definition| definition.index)
    }

    /// Returns a pool's definition, read in this call or remembered.
    fn definition_of<'a>(
        &'a self,
        request: &PoolRequest,
        cached: &'a CachedPool,
    ) -> Option<&'a Definition> {
        let pool = request.pool.as_ref().filter(|_| request.set.is_none())?;
        self.definitions.get(pool).or(cached.definition.as_ref())
    }

    /// Forgets the definition of a pool that this call has read.
    pub(crate) fn forget_definition(&mut self, pool: &str) {
        self.definitions.remove(pool);
    }

    /// Returns the folder keys that passcod needs and that do not exist: the next claim makes them.
    pub(crate) fn missing_folders(&self) -> &BTreeSet<String> {
        &self.missing_folders
    }

    /// Leaves missing folder keys to others.
    pub(crate) fn skip_missing_folders(&mut self) {
        self.missing_folders.clear();
    }

    /// Returns the memory of a pool, if the pool still has the same ranges.
    pub(crate) fn cached(&self, request: &PoolRequest) -> Option<CachedPool> {
        let ranges = request.set.as_ref().map(RangeSet::to_string);
        self.cache_of(request).read().filter(|cached| cached.ranges == ranges)
    }

    /// Returns the cache of a pool. Pools that bring their ranges share a name, and differ by
    /// number.
    pub(crate) fn cache_of(&self, request: &PoolRequest) -> Cache {
        let pool = escape(request.pool.as_deref().unwrap_or(&self.network));
        match request.set {
            None => Cache::at(self.folder.join(pool)),
            Some(_) => Cache::at(self.folder.join(format!("{pool}#{}", request.index))),
        }
    }

    /// Remembers free addresses of a pool as they were read now.
    pub(crate) fn remember_free(
        &self,
        request: &PoolRequest,
        set: &RangeSet,
        cached: &CachedPool,
        free: &BTreeSet<IpAddr>,
        wide: bool,
    ) {
        let ranges = match self.definition_of(request, cached) {
            Some(definition) => RangeSource::Definition(definition),
            None => RangeSource::Request(set),
        };
        self.cache_of(request).remember_free(ranges, free, wide);
    }

    /// Remembers that an address was released. A lease does not have the number of a pool that
    /// brought its ranges, so each of their caches learns of it.
    pub(crate) fn remember_released(&self, lease: &Lease) {
        let pool = escape(lease.pool.as_deref().unwrap_or(&self.network));
        Cache::at(self.folder.join(&pool)).put_back(lease.address.addr());
        for number in 0..NUMBERED {
            let cache = Cache::at(self.folder.join(format!("{pool}#{number}")));
            cache.put_back(lease.address.addr());
        }
    }

    /// Forgets the memory of all pools: the store was restored, or is another one.
    pub(crate) fn forget_all(&self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            debug!("cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// Takes keys that do not exist out of `existing` after a read that failed, so that it can be made
/// again.
///
/// # Errors
/// A pool does not exist; Consul refuses the read for another reason.
fn leave_out_missing(
    store: &mut KvStore,
    unread: &BTreeSet<String>,
    ops: &[Op],
    failures: &[TxnFailure],
    existing: &mut BTreeSet<String>,
) -> Result<()> {
    // The first operations are those of the pools.
    let missing_pool = failures.iter().find_map(|failure| unread.iter().nth(failure.op_index));
    if let Some(pool) = missing_pool {
        if store.requires_proof() {
            return Err(definition::no_such_pool(pool));
        }
        // A leader that was just elected shows less than there is.
        store.require_proof();
        return Ok(());
    }
    let before = existing.len();
    for op in failures.iter().filter_map(|failure| ops.get(failure.op_index)) {
        existing.remove(op.key());
    }
    if existing.len() == before { Err(refused(ops, failures)) } else { Ok(()) }
}
