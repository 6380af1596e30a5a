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

use crate::cached::{HINTS, Known};
use crate::errors::foreign;
use crate::keys::{Keys, ROOT, split};
use crate::pools::Shown;
use crate::session::Session;
use crate::window::windows;

/// How many free addresses are worth a look.
const ENOUGH: usize = 64;

/// A pool that is looked into.
struct Room<'a> {
    session: &'a mut Session,
    want: &'a PoolRequest,
    /// The key of its folder.
    folder: String,
    set: RangeSet,
    /// What was remembered of it.
    cached: Known,
}

/// What is shown of a pool.
///
/// # Errors
/// No server answers in time; the pool's ranges are wrong; a key of its folder is no address.
pub(crate) fn show(
    keys: &Keys,
    session: &mut Session,
    want: &PoolRequest,
    look: Scan,
) -> Result<Shown> {
    let cached = session.pools.known_of(want).unwrap_or_default();
    let set = session.pools.set_of(want, &cached)?;
    if want.requested.is_some() && cached == Known::default() {
        // Nothing is listed for it, and the next one needs the ranges alone.
        session.pools.renew(want, &set, &cached, &BTreeSet::new(), false);
    }
    if look == Scan::None {
        return session.pools.remembered(want, cached);
    }
    let folder = keys.folder(want.pool.as_deref());
    let mut room = Room { session, want, folder, set, cached };
    let view = match look {
        Scan::Range(from, to) if room.session.memory.is_indexed() => {
            let asked = address::distance(from, to).unwrap_or(u128::MAX).saturating_add(1);
            room.read_window(from, asked)?
        }
        _ => room.read_whole()?,
    };
    let index = room.session.pools.index_of(want, &room.cached);
    Ok(Shown { view, index })
}

impl Room<'_> {
    fn read_window(&mut self, from: IpAddr, asked: u128) -> Result<PoolView> {
        let crowded = self.want.strategy == Strategy::Random || self.cached.crowded;
        for window in windows(from, asked, crowded) {
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
            let is_read = self.want.set.is_some() || self.session.pools.was_read(self.want);
            let is_enough = crowded || free >= ENOUGH || (free > 0 && window.is_widest);
            let is_settled = if is_all { free > 0 || is_read } else { is_enough };
            if is_settled {
                return Ok(view);
            }
        }
        self.read_whole()
    }

    fn read_whole(&mut self) -> Result<PoolView> {
        let Session { store, pools, .. } = &mut *self.session;
        // Before a pool is called full, its ranges may have become more.
        let is_read = self.want.set.is_some() || pools.was_read(self.want);
        if let Some(pool) = self.want.pool.clone().filter(|_| !is_read) {
            pools.read(store, &[], &BTreeSet::from([pool]))?;
            self.set = pools.set_of(self.want, &self.cached)?;
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
        let Self { want, set, cached, .. } = self;
        let view = PoolView {
            cursor: cached.cursor,
            used,
            hint: Some(Hint { free: BTreeSet::new(), contended: cached.crowded }),
            set: want.set.is_none().then(|| set.clone()),
        };
        let none = BTreeSet::new();
        // Nodes that meet would choose among the same addresses.
        let strategy = if cached.crowded { Strategy::Random } else { want.strategy };
        let random = RandomState::new().build_hasher().finish();
        let search = Search { set, strategy, random, avoid: &none };
        let free: BTreeSet<IpAddr> = search.candidates(&view, HINTS).into_iter().collect();
        let wide = cached.crowded || matches!(view.used, Used::All(_));
        self.session.pools.renew(want, set, cached, &free, wide);
        (view, free.len())
    }
}
