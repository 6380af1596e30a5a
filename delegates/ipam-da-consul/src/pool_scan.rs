//! What is looked at of a pool, by its keys.

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
use crate::pools::ShownPool;
use crate::session::ConsulSession;
use crate::window::windows;

/// How many free addresses are worth a look.
const ENOUGH: usize = 64;

/// A pool that is looked into.
struct PoolScan<'a> {
    session: &'a mut ConsulSession,
    request: &'a PoolRequest,
    /// The key of its folder.
    folder: String,
    set: RangeSet,
    /// What was remembered of it.
    cached: CachedPool,
}

/// What is shown of a pool.
///
/// # Errors
/// No server answers in time; the pool's ranges are wrong; a key of its folder is no address.
pub(crate) fn scan_pool(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    request: &PoolRequest,
    look: Scan,
) -> Result<ShownPool> {
    let cached = session.pools.cached(request).unwrap_or_default();
    let set = session.pools.set_of(request, &cached)?;
    if request.requested.is_some() && cached == CachedPool::default() {
        // Nothing is listed for it, and the next one needs the ranges alone.
        session.pools.renew(request, &set, &cached, &BTreeSet::new(), false);
    }
    if look == Scan::None {
        return session.pools.remembered(request, cached);
    }
    let folder = keys.folder(request.pool.as_deref());
    let mut scan = PoolScan { session, request, folder, set, cached };
    let view = match look {
        Scan::Range(from, to) if scan.session.memory.is_indexed() => {
            let asked = address::distance(from, to).unwrap_or(u128::MAX).saturating_add(1);
            scan.read_window(from, asked)?
        }
        _ => scan.read_whole()?,
    };
    let index = scan.session.pools.index_of(request, &scan.cached);
    Ok(ShownPool { view, index })
}

impl PoolScan<'_> {
    fn read_window(&mut self, from: IpAddr, asked: u128) -> Result<PoolView> {
        let contended = self.request.strategy == Strategy::Random || self.cached.contended;
        for window in windows(from, asked, contended) {
            let taken = self.read_taken(&format!("{}{}", self.folder, window.text))?;
            let within = |range: &Range| {
                let shows =
                    |(from, to): &(IpAddr, IpAddr)| *from <= range.start() && range.end() <= *to;
                window.stretches.iter().any(shows)
            };
            let is_all = self.set.ranges().iter().all(within);
            let used = match is_all {
                true => Used::All(taken),
                false => Used::Windows(window.stretches, taken),
            };
            let (view, free) = self.remember(used);
            // A few addresses would last for a few claims only.
            let is_read = self.request.set.is_some() || self.session.pools.was_read(self.request);
            let is_enough = contended || free >= ENOUGH || (free > 0 && window.is_widest);
            let is_settled = if is_all { free > 0 || is_read } else { is_enough };
            if is_settled {
                return Ok(view);
            }
        }
        self.read_whole()
    }

    fn read_whole(&mut self) -> Result<PoolView> {
        let ConsulSession { store, pools, .. } = &mut *self.session;
        // Before a pool is called full, its ranges may have become more.
        let is_read = self.request.set.is_some() || pools.was_read(self.request);
        if let Some(pool) = self.request.pool.clone().filter(|_| !is_read) {
            pools.read(store, &[], &BTreeSet::from([pool]))?;
            self.set = pools.set_of(self.request, &self.cached)?;
        }
        let taken = self.read_taken(&self.folder.clone())?;
        Ok(self.remember(Used::All(taken)).0)
    }

    /// The addresses that keys with this beginning are of.
    fn read_taken(&mut self, prefix: &str) -> Result<BTreeSet<IpAddr>> {
        let mut taken = BTreeSet::new();
        self.session.store.keys(prefix, &mut |key| {
            match split(key) {
                Some((pool, address)) if self.folder == format!("{ROOT}{pool}/") => {
                    taken.insert(address);
                }
                // Of a pool whose name goes on where this one's ends.
                Some(_) => {}
                None if key == self.folder => {}
                None => return Err(foreign(key)),
            }
            Ok(())
        })?;
        Ok(taken)
    }

    /// A view of what was read, of which the free addresses are remembered; and how many these are.
    fn remember(&self, used: Used) -> (PoolView, usize) {
        let Self { request, set, cached, .. } = self;
        let view = PoolView {
            cursor: cached.cursor,
            used,
            hint: Some(Hint { free: BTreeSet::new(), contended: cached.contended }),
            set: request.set.is_none().then(|| set.clone()),
        };
        let none = BTreeSet::new();
        // Nodes that meet would choose among the same addresses.
        let strategy = if cached.contended { Strategy::Random } else { request.strategy };
        let random = RandomState::new().build_hasher().finish();
        let search = Search { set, strategy, random, avoid: &none };
        let free: BTreeSet<IpAddr> = search.candidates(&view, HINTS).into_iter().collect();
        let wide = cached.contended || matches!(view.used, Used::All(_));
        self.session.pools.renew(request, set, cached, &free, wide);
        (view, free.len())
    }
}
