//! A change as it is carried out, and what became of it.

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit};

use super::view::held;
use crate::claim::{Outcome, Step};
use crate::outcome::{conclude, read_refusal, read_victims, report_taken, view_after_refusal};
use crate::session::Session;
use crate::token::Token;

/// Makes a change.
pub(super) fn change(
    session: &mut Session,
    owner: &Owner,
    token: &Token,
    change: &Change<'_>,
) -> Result<Commit<Token>> {
    let victims = read_victims(session, change)?;
    let step = Step {
        keys: &session.keys,
        owner,
        seen: &token.seen,
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
        Outcome::Done(chosen) => conclude(session, owner, &token.seen, change, &answer, &chosen),
        Outcome::Taken(place, shown) => {
            session.judge(&answer)?;
            Ok(report_taken(session, owner, token, change, (place, shown.as_deref())))
        }
        Outcome::Stale(found) => {
            session.judge(&answer)?;
            let shown = read_refusal(session, owner, change, found)?;
            let held = held(&session.keys, owner, &shown)?;
            let view = view_after_refusal(session, token, change, &shown, held)?;
            Ok(Commit::Lost { taken: Vec::new(), view })
        }
    }
}
