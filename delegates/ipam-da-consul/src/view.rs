//! The leases of an owner and free addresses, before a change or instead of one: guessed, or read.

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Need, Scan, View, ViewQuery};
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::owner_index::LeaseRevision;
use ipam_kit::cni::Verb;

use crate::call::CallScope;
use crate::keys::check_name;
use crate::owner_view::{item_of_unindexed, read_owner};
use crate::pool_scan::{scan_pool, show_cached};
use crate::session::ConsulSession;
use crate::view_token::ViewToken;

/// Answers a query: by a guess where the query allows one, else by what the store shows. It does
/// not repeat the `earlier` view's read of the owner.
///
/// # Errors
/// No server answers in time; a pool is missing or wrong; the token may not read something.
pub(crate) fn view(
    call: &CallScope,
    session: &mut ConsulSession,
    query: &ViewQuery<'_>,
    earlier: Option<ViewToken>,
) -> Result<View<ViewToken>> {
    for request in query.requests {
        if let Some(name) = &request.pool {
            check_name(name, &request.path)?;
        }
    }
    // What was read before a proof was required proves nothing.
    let earlier = earlier.filter(|_| query.need == Need::Claim || session.store.requires_proof());
    if query.need == Need::Proof {
        session.store.require_proof();
    }
    if query.may_guess
        && let Some(view) = guess(call, session, query)
    {
        return Ok(view);
    }
    let earlier = earlier.and_then(ViewToken::into_owner);
    let unread = session.pools.unread(query.requests, earlier.is_none());
    let owner = match earlier {
        Some(owner) if unread.is_empty() => owner,
        _ => read_owner(call, session, query, &unread)?,
    };
    let held = owner.held.clone();
    let mut token = ViewToken::of_owner(owner);
    let mut pools = Vec::new();
    for (request, scan) in query.requests.iter().zip(query.scans) {
        let shown = scan_pool(&call.keys, session, request, *scan)?;
        token.guard_definition(request, &shown);
        pools.push(shown.view);
    }
    if call.verb == Verb::Del && held.is_empty() {
        session.memory.forget_owner(query.owner.container.as_str(), query.owner.ifname.as_str());
    }
    Ok(View { held, sure: session.store.requires_proof(), pools, token })
}

/// Makes a view without any request to the store, if the node remembers enough. Without pools: the
/// leases of the record, if the record has all of them. With pools: nothing held, by an owner that
/// this node does not know, and addresses that were free not long ago.
fn guess(
    call: &CallScope,
    session: &mut ConsulSession,
    query: &ViewQuery<'_>,
) -> Option<View<ViewToken>> {
    let ViewQuery { owner, known, requests, scans, .. } = *query;
    let is_indexed = session.memory.is_indexed();
    if requests.is_empty() {
        let all = LeaseRevision::of_all(known)?;
        let guard = if is_indexed {
            OwnerGuard { revision: Some(all.revision), owner_index: None }
        } else {
            let mut guard = OwnerGuard::without_key(owner);
            for lease in known {
                guard.add(item_of_unindexed(lease));
            }
            guard
        };
        let token = ViewToken::of_guess(guard);
        return Some(View { held: known.to_vec(), sure: false, pools: Vec::new(), token });
    }
    let is_blind = scans.iter().all(|scan| *scan == Scan::None);
    if !is_blind || !is_indexed || session.memory.knows_owner(owner) || call.may_be_cached(owner) {
        return None;
    }
    let mut token = ViewToken::of_guess(OwnerGuard::default());
    let mut pools = Vec::new();
    for request in requests {
        let cached = session.pools.cached(request)?;
        let has_ranges = request.set.is_some() || cached.definition.is_some();
        let shown = show_cached(&mut session.pools, request, cached).ok()?;
        if !has_ranges || (!shown.view.is_known() && request.requested.is_none()) {
            return None;
        }
        token.guard_definition(request, &shown);
        pools.push(shown.view);
    }
    Some(View { held: Vec::new(), sure: false, pools, token })
}
