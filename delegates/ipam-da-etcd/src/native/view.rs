//! What is seen before a commit, in one round trip.

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{View, ViewQuery};

use crate::held::{Held, Shown};
use crate::keys::Keys;
use crate::session::Session;
use crate::sight::{build_view, guess, named_addresses, see};
use crate::token::Token;

/// What the owner holds and what is known of the pools.
pub(super) fn view(
    session: &mut Session,
    query: &ViewQuery<'_>,
    earlier: &Token,
) -> Result<View<Token>> {
    if let Some(view) = guess(session, query, false, earlier) {
        return Ok(view);
    }
    let sight = see(session, query, named_addresses(query), Vec::new())?;
    let held = held(&session.keys, query.owner, &sight.shown)?;
    Ok(build_view(session, query, sight.used, held, earlier))
}

/// What the owner holds by its own key; by those of the addresses where that one was deleted by
/// hand.
pub(super) fn held(keys: &Keys, owner: &Owner, shown: &Shown) -> Result<Held> {
    let mut held = shown.by_own_key(keys, owner)?;
    if shown.own.is_none() {
        for (_, lease, item) in shown.by_addresses(keys, owner) {
            held.add(lease, item);
        }
    }
    Ok(held)
}
