//! What is seen before a commit, in one round trip.

use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Question, View};
use ipam_kit::allocate::{Owner, Want};

use crate::held::{Held, Shown};
use crate::house::Token;
use crate::keys::Keys;
use crate::session::Session;
use crate::sight::{guess, named, pools, see, unknown};

/// What the owner holds and what is known of the pools.
pub(super) fn view(session: &mut Session, question: &Question<'_>) -> Result<View<Token>> {
    if let Some((held, seen)) = guess(session, question, false) {
        let pools = unknown(question.want.iter(), |want| cursor(session, want));
        return Ok(View { held, sure: false, pools, token: seen.into() });
    }
    let sight = see(session, question, named(question), Vec::new())?;
    let pools = pools(question.want, sight.used, |want| cursor(session, want));
    let Held { leases, seen, .. } = held(&session.keys, question.owner, &sight.shown)?;
    // Every read of ours is linearizable: none asks for less, and etcd's leader answers none before it
    // has committed something itself.
    Ok(View { held: leases, sure: true, pools, token: seen.into() })
}

/// What the owner holds by its own key; by those of the addresses where that one was deleted by hand.
pub(super) fn held(keys: &Keys, owner: &Owner, shown: &Shown) -> Result<Held> {
    let mut held = shown.by_own_key(keys, owner)?;
    if shown.own.is_none() {
        for (_, lease, item) in shown.by_addresses(keys, owner) {
            held.add(lease, item);
        }
    }
    Ok(held)
}

/// The address that this node has last given out of a pool.
pub(super) fn cursor(session: &Session, want: &Want) -> Option<IpAddr> {
    session.memory.cursor(want.index)
}
