//! The view of a pool: the node's memory of it, or a listing of its keys.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Hint, PoolView, Scan, Used};
use ipam_kit::allocate::search::Search;
use ipam_kit::allocate::{PoolRequest, Strategy};
use ipam_kit::cni::address;
use ipam_kit::pool::{Range, RangeSet};

use crate::cache_file::{CachedPool, HINTS};
use crate::errors::foreign;
use crate::keys::{ConsulKeys, ROOT, split};
use crate::pools::Pools;
use crate::session::ConsulSession;
use crate::window::{Window, windows};

/// How many free addresses make a listing worth its request: fewer last for a few claims only.
const ENOUGH: usize = 64;

/// With fewer free addresses than this, nodes that claim at the same time would collide too often.
const FEW: usize = 256;

/// The view of a pool.
#[derive(Debug)]
pub(crate) struct ShownPool {
    pub(crate) view: PoolView,
    /// The index of the pool's definition, if the ranges are in Consul.
    pub(crate) definition_index: Option<u64>,
}

/// Shows a pool, as far as `scan` asks.
///
/// # Errors
/// No server answers in time; the pool's ranges are wrong; its folder has a foreign key.
pub(crate) fn scan_pool(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    request: &PoolRequest,
    scan: Scan,
) -> Result<ShownPool> {
    let cached = session.pools.cached(request).unwrap_or_default();
    let set = session.pools.ranges_of(request, &cached)?;
    if request.requested.is_some() && cached == CachedPool::default() {
        // Nothing is listed for a requested address; the next one needs the ranges alone.
        session.pools.remember_free(request, &set, &cached, &BTreeSet::new(), false);
    }
    if scan == Scan::None {
        return show_cached(&mut session.pools, request, cached);
    }
    let folder = keys.folder(request.pool.as_deref());
    let mut pool = PoolScan { session, request, folder, set, cached };
    let view = match scan {
        Scan::Range(from, to) if pool.session.memory.is_indexed() => {
            let width = address::distance(from, to).unwrap_or(u128::MAX).saturating_add(1);
            pool.list_windows(from, width)?
        }
        _ => pool.list_all()?,
    };
    let definition_index = pool.session.pools.definition_index(request, &pool.cached);
    Ok(ShownPool { view, definition_index })
}

/// Shows a pool as this node remembers it.
///
/// # Errors
/// The pool's ranges are wrong.
pub(crate) fn show_cached(
    pools: &mut Pools,
    request: &PoolRequest,
    cached: CachedPool,
) -> Result<ShownPool> {
    let set = pools.ranges_of(request, &cached)?;
    let definition_index = pools.definition_index(request, &cached);
    let is_too_narrow = cached.contended && !cached.wide && cached.free.len() < FEW;
    let mut free = if is_too_narrow { BTreeSet::new() } else { cached.free };
    free.retain(|address| set.find(*address).is_some());
    if request.strategy == Strategy::RoundRobin {
        // What was released lies behind the cursor, and is given again late.
        let cursor = cached.cursor.and_then(|cursor| position(&set, cursor));
        free.retain(|address| position(&set, *address) > cursor);
    }
    let view = PoolView {
        set: request.set.is_none().then_some(set),
        cursor: cached.cursor,
        used: Used::Unknown,
        hint: Some(Hint { free, contended: cached.contended }),
        kept: None,
        ..PoolView::default()
    };
    Ok(ShownPool { view, definition_index })
}

/// Returns the position of an address in a range set; `None` outside.
fn position(set: &RangeSet, address: IpAddr) -> Option<(usize, IpAddr)> {
    let range = set.ranges().iter().position(|range| range.spans(address))?;
    Some((range, address))
}

/// A pool whose keys are listed.
struct PoolScan<'a> {
    session: &'a mut ConsulSession,
    request: &'a PoolRequest,
    /// The key of the pool's folder.
    folder: String,
    set: RangeSet,
    /// The node's memory of the pool.
    cached: CachedPool,
}

impl PoolScan<'_> {
    /// Lists windows of the pool, from an address on, until one shows enough; else the whole pool.
    fn list_windows(&mut self, from: IpAddr, width: u128) -> Result<PoolView> {
        let contended = self.request.strategy == Strategy::Random || self.cached.contended;
        for window in windows(from, width, contended) {
            let taken = self.list_taken(&format!("{}{}", self.folder, window.prefix))?;
            let is_whole_pool = self.set.ranges().iter().all(|range| shows(&window, range));
            let is_widest = window.is_widest;
            let used = if is_whole_pool {
                Used::All(taken)
            } else {
                Used::Windows(window.stretches, taken)
            };
            let (view, free) = self.remember_free(used);
            let is_enough = if is_whole_pool {
                free > 0 || self.has_current_ranges()
            } else {
                contended || free >= ENOUGH || (free > 0 && is_widest)
            };
            if is_enough {
                return Ok(view);
            }
        }
        self.list_all()
    }

    /// Lists the whole pool.
    fn list_all(&mut self) -> Result<PoolView> {
        // The definition may have grown: it is read before a pool is called full.
        if !self.has_current_ranges()
            && let Some(pool) = self.request.pool.clone()
        {
            let ConsulSession { store, pools, .. } = &mut *self.session;
            pools.read(store, &[], &BTreeSet::from([pool]))?;
            self.set = pools.ranges_of(self.request, &self.cached)?;
        }
        let taken = self.list_taken(&self.folder.clone())?;
        Ok(self.remember_free(Used::All(taken)).0)
    }

    /// Returns whether the ranges came with the request or were read in this call.
    fn has_current_ranges(&self) -> bool {
        self.request.set.is_some() || self.session.pools.was_read(self.request)
    }

    /// Returns the addresses of the keys that begin with `prefix`.
    fn list_taken(&mut self, prefix: &str) -> Result<BTreeSet<IpAddr>> {
        let mut taken = BTreeSet::new();
        self.session.store.list_keys(prefix, &mut |key| {
            match split(key) {
                Some((pool, address)) if self.folder == format!("{ROOT}{pool}/") => {
                    taken.insert(address);
                }
                // Of a pool whose name begins with this one's.
                Some(_) => {}
                None if key == self.folder => {}
                None => return Err(foreign(key)),
            }
            Ok(())
        })?;
        Ok(taken)
    }

    /// Returns a view of the listing, and the number of free addresses that are remembered.
    fn remember_free(&self, used: Used) -> (PoolView, usize) {
        let Self { request, set, cached, .. } = self;
        let view = PoolView {
            cursor: cached.cursor,
            used,
            hint: Some(Hint { free: BTreeSet::new(), contended: cached.contended }),
            kept: None,
            set: request.set.is_none().then(|| set.clone()),
            ..PoolView::default()
        };
        // Nodes that met would choose the same addresses again.
        let strategy = if cached.contended { Strategy::Random } else { request.strategy };
        let random = RandomState::new().build_hasher().finish();
        let search = Search { set, strategy, random, avoid: &BTreeSet::new() };
        let free: BTreeSet<IpAddr> = search.candidates(&view, HINTS).into_iter().collect();
        let is_wide = cached.contended || matches!(view.used, Used::All(_));
        self.session.pools.remember_free(request, set, cached, &free, is_wide);
        (view, free.len())
    }
}

/// Returns whether a window shows all of a range.
fn shows(window: &Window, range: &Range) -> bool {
    window.stretches.iter().any(|(from, to)| *from <= range.start() && range.end() <= *to)
}
