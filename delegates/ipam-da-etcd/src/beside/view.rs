//! What is seen before a commit, with the plugin's cursors and by what this node knows.

use std::collections::BTreeSet;

use etcd_client::TxnOp;
use ipam_kit::Result;
use ipam_kit::allocate::PoolRequest;
use ipam_kit::allocate::ledger::{Question, View};
use ipam_kit::pool::RangeConfig;

use super::call::Beside;
use super::held::{forget_unless, held, left_behind};
use crate::sight::{build_view, guess, named_addresses, see};
use crate::token::{Along, Token};

/// What the owner holds and what is known of the pools.
pub(super) fn view(
    beside: &mut Beside,
    question: &Question<'_>,
    earlier: &Token,
) -> Result<View<Token>> {
    let hints = match question.known.is_empty() {
        true => beside.hints.of(question.owner)?,
        false => BTreeSet::new(),
    };
    if !question.want.is_empty() && beside.keys.overwrites && beside.node_turn.take() {
        // Whoever was before us has moved the cursor.
        beside.session.memory.refresh();
    }
    let mut token = earlier.clone();
    note_along(beside, question.want, &mut token.along);
    let cursors = beside.keys.cursors_to_read(question.want, &token.along);
    let reads_more =
        !hints.is_empty() || cursors.keys().any(|index| !token.along.cursors.contains_key(index));
    if let Some(view) = guess(&beside.session, question, reads_more, &token) {
        return Ok(view);
    }
    let asked = named_addresses(question).into_iter().chain(hints).collect();
    let more = cursors.values().map(|key| TxnOp::get(key.as_str(), None)).collect();
    let sight = see(&mut beside.session, question, asked, more)?;
    token.along.cursors.retain(|index, _| !cursors.contains_key(index));
    token.along.cursors.extend(beside.keys.cursors_in(&sight.more));
    let mut held = held(beside, question.owner, &sight.shown)?;
    // Nobody tells all that the owner has: what a replaced plugin gave, perhaps an address for each
    // ADD, or we without an index. The runtime remembers one.
    let may_have_more =
        held.leases.is_empty() || (question.known.is_empty() && sight.shown.own.is_none());
    if beside.forgets && may_have_more {
        held = left_behind(beside, question.owner, &sight.shown.siblings, held)?;
    }
    let holds = !held.leases.is_empty() || !question.want.is_empty();
    forget_unless(beside, question.owner, holds);
    Ok(build_view(&beside.session, question, sight.used, held, &token))
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
