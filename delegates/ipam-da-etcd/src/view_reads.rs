//! The reads of a view, in one round trip, and when it needs none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::PoolRequest;
use ipam_kit::allocate::ledger::{PoolView, Scan, Used, View, ViewQuery};
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::owner_index::LeaseRevision;
use ipam_kit::pool::RangeSet;

use crate::keys::EtcdKeys;
use crate::owner_leases::{OwnerKeys, OwnerLeases};
use crate::page::{READS, flatten, read_window};
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// The reads of a view.
#[derive(Debug)]
pub(crate) struct ViewReads {
    /// Of the owner.
    pub(crate) owner: OwnerKeys,
    /// Of the pools.
    pub(crate) used: Vec<Used>,
    /// Other keys that were read.
    pub(crate) more: Vec<KeyValue>,
}

/// Guesses a view, since a guarded commit follows: the owner of an ADD holds nothing and no address
/// is taken, or an owner holds the leases of the record. `None` if something must be read: a pool,
/// or `reads_more`. `token` is of the view before.
pub(crate) fn view_without_reading(
    session: &EtcdSession,
    query: &ViewQuery<'_>,
    reads_more: bool,
    token: &EtcdViewToken,
) -> Option<View<EtcdViewToken>> {
    // A store that was set back will be refused, so nothing is written to it.
    if !query.may_guess || (!session.accepts_any_store && session.memory.is_set_back()) {
        return None;
    }
    let scans_pools = query.scans.iter().any(|scan| *scan != Scan::None);
    let (held, seen) = if scans_pools || reads_more || query.requests.is_empty() {
        let revision = Some(LeaseRevision::of_all(query.known)?.revision);
        (query.known.to_vec(), OwnerGuard { revision, owner_index: None })
    } else {
        (Vec::new(), OwnerGuard::default())
    };
    let pools = pools_by_cursor(session, query.requests, token);
    Some(View { held, sure: false, pools, token: token.with(seen) })
}

/// Returns the addresses that a query names.
pub(crate) fn addresses_in_query(query: &ViewQuery<'_>) -> BTreeSet<IpAddr> {
    let known = query.known.iter().map(|lease| lease.address.addr());
    known.chain(query.requests.iter().filter_map(|pool| pool.requested)).collect()
}

/// Reads the owner's keys, the keys of some addresses, what the query scans of its pools, and some
/// `more` keys.
///
/// # Errors
/// As [`EtcdSession::read`].
pub(crate) fn read_for_view(
    session: &mut EtcdSession,
    query: &ViewQuery<'_>,
    addresses_read: BTreeSet<IpAddr>,
    more: Vec<TxnOp>,
) -> Result<ViewReads> {
    let keys = &session.keys;
    let own = session.indexed.then(|| keys.read_owner(query.owner));
    let mut groups: Vec<Vec<TxnOp>> = vec![own.into_iter().collect()];
    groups.extend(query.scans.iter().map(|scan| read_scan(keys, *scan)));
    groups.push(
        addresses_read.iter().map(|address| TxnOp::get(keys.lease(*address), None)).collect(),
    );
    groups.push(more);
    let mut found = read_groups(session, groups)?.into_iter();
    let owners = found.next().unwrap_or_default();
    let mut used = Vec::new();
    for (scan, pool) in query.scans.iter().zip(query.requests) {
        let taken = found.next().unwrap_or_default();
        used.push(match scan {
            Scan::None => Used::Unknown,
            Scan::Range(from, to) => {
                Used::Windows(vec![(*from, *to)], addresses(&session.keys, &taken))
            }
            Scan::Full => Used::All(read_whole_pool(session, pool)?),
        });
    }
    let leases = found.next().unwrap_or_default();
    let more = found.next().unwrap_or_default();
    let owner = OwnerKeys::new(&session.keys, query.owner, owners, leases, addresses_read);
    Ok(ViewReads { owner, used, more })
}

/// Builds the view from the store's own keys: the owner's leases, and the reads of the pools.
pub(crate) fn build_view(
    session: &EtcdSession,
    query: &ViewQuery<'_>,
    used: Vec<Used>,
    held: OwnerLeases,
    token: &EtcdViewToken,
) -> View<EtcdViewToken> {
    let mut pools = pools_by_cursor(session, query.requests, token);
    for (pool, used) in pools.iter_mut().zip(used) {
        pool.used = used;
    }
    // Every read of ours is linearizable, and a new leader of etcd answers only after a commit of
    // its own. So what a read does not show is not there.
    View { held: held.leases, sure: true, pools, token: token.with(held.guard) }
}

/// Pools of which only the cursors are known.
pub(crate) fn pools_by_cursor<'a>(
    session: &EtcdSession,
    requests: impl IntoIterator<Item = &'a PoolRequest>,
    token: &EtcdViewToken,
) -> Vec<PoolView> {
    let mut pools = Vec::new();
    for PoolRequest { index, set, .. } in requests {
        let seen = token.compat_writes.cursor(*index);
        // Networks that share a cursor each go round in their own ranges.
        let seen = seen.filter(|cursor| set.as_ref().is_none_or(|set| set.find(*cursor).is_some()));
        let cursor = seen.or_else(|| session.memory.cursor(*index));
        pools.push(PoolView { cursor, ..PoolView::default() });
    }
    pools
}

/// Returns the addresses that some keys are for.
pub(crate) fn addresses(keys: &EtcdKeys, found: &[KeyValue]) -> BTreeSet<IpAddr> {
    found.iter().filter_map(|found| keys.address(found.key())).collect()
}

fn read_scan(keys: &EtcdKeys, scan: Scan) -> Vec<TxnOp> {
    match scan {
        Scan::Range(from, to) => read_window(keys, from, to),
        Scan::None | Scan::Full => Vec::new(),
    }
}

/// Reads some groups of keys, and returns what each found.
fn read_groups(session: &mut EtcdSession, groups: Vec<Vec<TxnOp>>) -> Result<Vec<Vec<KeyValue>>> {
    let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    let reads: Vec<TxnOp> = groups.into_iter().flatten().collect();
    let mut answers = Vec::new();
    for batch in reads.chunks(READS) {
        answers.extend(session.read(&Txn::new().and_then(batch))?.response.op_responses());
    }
    let mut answers = answers.into_iter();
    Ok(sizes.into_iter().map(|size| flatten(answers.by_ref().take(size))).collect())
}

/// Returns all addresses that are taken in the ranges of a pool.
fn read_whole_pool(session: &mut EtcdSession, pool: &PoolRequest) -> Result<BTreeSet<IpAddr>> {
    let mut all = BTreeSet::new();
    let ranges = pool.set.as_ref().map_or(&[][..], RangeSet::ranges);
    let windows = ranges.iter().flat_map(|r| session.keys.window(r.start(), r.end()));
    for (first, end) in windows.collect::<Vec<_>>() {
        session.each_between(first, &end, true, &mut |keys, found| {
            all.extend(keys.address(found.key()));
            ControlFlow::Continue(())
        })?;
    }
    Ok(all)
}
