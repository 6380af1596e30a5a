//! What is seen before a commit, with the plugin's cursors and by what this node knows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::TxnOp;
use ipam_kit::Result;
use ipam_kit::allocate::Want;
use ipam_kit::allocate::ledger::{Question, View};
use ipam_kit::pool::RangeConfig;

use super::call::Beside;
use super::held::{forget_unless, held, left_behind};
use crate::house::{Along, Token};
use crate::memory::Memory;
use crate::session::Session;
use crate::sight::{guess, named, pools, see, unknown};

/// What the owner holds and what is known of the pools.
pub(super) fn view(
    beside: &mut Beside,
    session: &mut Session,
    question: &Question<'_>,
    earlier: &Along,
) -> Result<View<Token>> {
    let hints = match question.known.is_empty() {
        true => beside.hints.of(question.owner)?,
        false => BTreeSet::new(),
    };
    if !question.want.is_empty() && beside.keys.overwrites && beside.node_turn.take() {
        // Whoever was before us has moved the cursor.
        session.memory.refresh();
    }
    let mut along = along(beside, &session.memory, question.want, earlier);
    let cursors = beside.keys.cursors_to_read(question.want, &along);
    let reads_more =
        !hints.is_empty() || cursors.keys().any(|index| !along.cursors.contains_key(index));
    if let Some((held, seen)) = guess(session, question, reads_more) {
        let pools = unknown(question.want.iter(), |want| cursor(&session.memory, &along, want));
        return Ok(View { held, sure: false, pools, token: Token { seen, along } });
    }
    let asked = named(question).into_iter().chain(hints).collect();
    let more = cursors.values().map(|key| TxnOp::get(key.as_str(), None)).collect();
    let sight = see(session, question, asked, more)?;
    along.cursors.retain(|index, _| !cursors.contains_key(index));
    along.cursors.extend(beside.keys.cursors_in(&sight.more));
    let pools = pools(question.want, sight.used, |want| cursor(&session.memory, &along, want));
    let mut held = held(beside, &session.keys, question.owner, &sight.shown)?;
    // Nobody tells all that the owner has: what a replaced plugin gave, perhaps an address for each
    // ADD, or we without an index. The runtime remembers one.
    let nobody = held.leases.is_empty() || (question.known.is_empty() && sight.shown.own.is_none());
    if beside.forgets && nobody {
        held = left_behind(beside, session, question.owner, &sight.shown.siblings, held)?;
    }
    let holds = !held.leases.is_empty() || !question.want.is_empty();
    forget_unless(beside, question.owner, holds);
    let token = Token { seen: held.seen, along };
    Ok(View { held: held.leases, sure: true, pools, token })
}

/// The address last given out of a pool, as far as the plugin's cursor or this node tells.
pub(super) fn cursor(memory: &Memory, along: &Along, want: &Want) -> Option<IpAddr> {
    // Networks that share a cursor each go round by themselves.
    let its = |cursor: &IpAddr| want.set.as_ref().is_none_or(|set| set.find(*cursor).is_some());
    along.cursor(want.index).filter(its).or_else(|| memory.cursor(want.index))
}

/// What is to be written along with a claim of these pools, as far as it is known so far.
fn along(beside: &Beside, memory: &Memory, wants: &[Want], earlier: &Along) -> Along {
    let mut along = earlier.clone();
    let known = wants.iter().filter_map(|want| Some((want.index, memory.cursor(want.index)?)));
    along.cursors.extend(known.map(|(index, cursor)| (index, cursor.to_string().into_bytes())));
    if beside.keys.ranges().is_some() && beside.shown_all && !wants.is_empty() {
        let set = |want: &Want| {
            let configs = want.set.as_ref()?.ranges().iter().map(|range| range.to_config());
            Some(configs.collect::<Vec<RangeConfig>>())
        };
        let sets: Option<Vec<_>> = wants.iter().map(set).collect();
        along.ranges = sets.and_then(|sets| serde_json::to_string(&sets).ok());
    }
    along
}
