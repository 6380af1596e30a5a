//! A change as it is carried out, and what became of it.

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit};

use super::view::held;
use crate::commit_txn::{CommitTxn, CommitTxnOutcome};
use crate::outcome::{
    finish_commit, read_previous_holders, read_refusal, report_taken, view_after_refusal,
};
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// Makes a change.
pub(super) fn change(
    session: &mut EtcdSession,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
) -> Result<Commit<EtcdViewToken>> {
    let previous_holders = read_previous_holders(session, change)?;
    let step = CommitTxn {
        keys: &session.keys,
        owner,
        seen: &token.seen,
        change,
        latest: session.latest(),
        previous_holders: &previous_holders,
        indexed: true,
        additions: &(),
    };
    let Some(answer) = session.client.write(&step.transaction())? else {
        return Ok(Commit::Unknown);
    };
    match step.outcome(&answer.response) {
        CommitTxnOutcome::Done(chosen) => {
            finish_commit(session, owner, &token.seen, change, &answer, &chosen)
        }
        CommitTxnOutcome::Taken(place, shown) => {
            session.check_answer(&answer)?;
            Ok(report_taken(session, owner, token, change, (place, shown.as_deref())))
        }
        CommitTxnOutcome::Stale(found) => {
            session.check_answer(&answer)?;
            let shown = read_refusal(session, owner, change, found)?;
            let held = held(&session.keys, owner, &shown)?;
            let view = view_after_refusal(session, token, change, &shown, held)?;
            Ok(Commit::Lost { taken: Vec::new(), view })
        }
    }
}
