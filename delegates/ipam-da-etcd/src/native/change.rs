//! A change as it is carried out, and what became of it.

use etcd_client::KeyValue;
use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::ledger::{Change, Commit};

use super::view::{cursor, held};
use crate::claim::{Outcome, Step};
use crate::house::Token;
use crate::outcome::{as_before, pools_of_claims, refused, stale, taken, victims, written};
use crate::session::Session;

/// Makes a change.
pub(super) fn change(
    session: &mut Session,
    owner: &Owner,
    seen: &Seen,
    change: &Change<'_>,
) -> Result<Commit<Token>> {
    let victims = victims(session, change)?;
    let step = Step {
        keys: &session.keys,
        owner,
        seen,
        change,
        latest: session.latest(),
        victims: &victims,
        indexed: true,
        additions: &(),
    };
    let Some(answer) = session.client.write(&step.transaction())? else {
        return Ok(Commit::Unknown);
    };
    match step.outcome(&answer.response) {
        Outcome::Done(chosen) => written(session, owner, seen, change, &answer, &chosen),
        Outcome::Taken(place, shown) => {
            session.judge(&answer)?;
            let pools = pools_of_claims(change, |want| cursor(session, want));
            let view = as_before(change, seen.clone().into(), pools);
            Ok(taken(&session.keys, owner, change, (place, shown.as_deref()), view))
        }
        Outcome::Stale(found) => {
            session.judge(&answer)?;
            of_stale(session, owner, change, found)
        }
    }
}

/// A commit that found something else than was seen.
fn of_stale(
    session: &mut Session,
    owner: &Owner,
    change: &Change<'_>,
    found: Vec<KeyValue>,
) -> Result<Commit<Token>> {
    let shown = refused(session, owner, change, found)?;
    let held = held(&session.keys, owner, &shown)?;
    let pools = pools_of_claims(change, |want| cursor(session, want));
    let view = stale(session, change, &shown, held, pools)?;
    Ok(Commit::Lost { taken: Vec::new(), view })
}
