//! What is seen before a commit, with the plugin's cursors and by what this node knows.

use std::collections::BTreeSet;

use etcd_client::TxnOp;
use ipam_kit::Result;
use ipam_kit::allocate::PoolRequest;
use ipam_kit::allocate::ledger::{View, ViewQuery};
use ipam_kit::pool::RangeConfig;

use super::call::Beside;
use super::held::{forget_unless, held, left_behind};
use crate::sight::{build_view, guess, named_addresses, see};
use crate::token::{Along, Token};

/// What the owner holds and what is known of the pools.
pub(super) fn view(
    beside: &mut Beside,
    query: &ViewQuery<'_>,
    earlier: &Token,
) -> Result<View<Token>> {
    let hints = match query.known.is_empty() {
        true => beside.hints.of(query.owner)?,
        false => BTreeSet::new(),
    };
    if !query.requests.is_empty() && beside.keys.overwrites && beside.node_turn.take() {
        // Whoever was before us has moved the cursor.
        beside.session.memory.refresh();
    }
    let mut token = earlier.clone();
    note_along(beside, query.requests, &mut token.along);
    let cursors = beside.keys.cursors_to_read(query.requests, &token.along);
    let reads_more =
        !hints.is_empty() || cursors.keys().any(|index| !token.along.cursors.contains_key(index));
    if let Some(view) = guess(&beside.session, query, reads_more, &token) {
        return Ok(view);
    }
    let asked = named_addresses(query).into_iter().chain(hints).collect();
    let more = cursors.values().map(|key| TxnOp::get(key.as_str(), None)).collect();
    let sight = see(&mut beside.session, query, asked, more)?;
    token.along.cursors.retain(|index, _| !cursors.contains_key(index));
    token.along.cursors.extend(beside.keys.cursors_in(&sight.more));
    let mut held = held(beside, query.owner, &sight.shown)?;
    // Nobody tells all that the owner has: what a replaced plugin gave, perhaps an address for each
    // ADD, or we without an index. The runtime remembers one.
    let may_have_more =
        held.leases.is_empty() || (query.known.is_empty() && sight.shown.own.is_none());
    if beside.forgets && may_have_more {
        held = left_behind(beside, query.owner, &sight.shown.siblings, held)?;
    }
    let holds = !held.leases.is_empty() || !query.requests.is_empty();
    forget_unless(beside, query.owner, holds);
    Ok(build_view(&beside.session, query, sight.used, held, &token))
}

/// Notes what is to be written along with a claim of these pools, as far as it is known without a
/// look.
fn note_along(beside: &Beside, wants: &[PoolRequest], along: &mut Along) {
    let cursor = |want: &PoolRequest| Some((want.index, beside.session.memory.cursor(want.index)?));
    let known = wants.iter().filter_map(cursor);
    along.cursors.extend(known.map(|(index, cursor)| (index, cursor.to_string().into_bytes())));
    if beside.keys.ranges().is_some() && beside.shown_all && !wants.is_empty() {
        let set = |want: &PoolRequest| {
            let configs = want.set.as_ref()?.ranges().iter().map(|range| range.to_config());
            Some(configs.collect::<Vec<RangeConfig>>())
        };
        let sets: Option<Vec<_>> = wants.iter().map(set).collect();
        along.ranges = sets.and_then(|sets| serde_json::to_string(&sets).ok());
    }
}
