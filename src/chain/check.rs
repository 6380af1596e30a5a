//! CHECK and STATUS.

use super::configured::walk;
use super::record::{AttemptState, Held, Opened};
use super::served::refuse_without_allocator;
use super::session::{Session, open_record};
use crate::cni::address::parse_cidr;
use crate::cni::{IpamResult, Verb};
use crate::delegate::Deadline;
use crate::error::{Error, ErrorCode, Result};

/// Asks every delegate whether the attachment still holds what it gave.
pub(super) fn check(session: &Session<'_>) -> Result<()> {
    let opened = open_record(&session.record_path()?)?;
    let deadline = Deadline::after(session.timeout());
    let Some(Opened { file, record, .. }) = opened else {
        return check_configured(session, deadline);
    };
    if record.attempts.is_empty() {
        let outcome = check_configured(session, deadline);
        file.remove_if_empty();
        return outcome;
    }
    let Some((attempt, held)) = record.held() else {
        let state = record.state().as_str();
        return Err(Error::new(
            ErrorCode::NOT_HELD,
            format!("{} holds no address: its record is {state}", session.attachment()?),
        )
        .advise("ADD it again"));
    };
    check_recorded(session, attempt, held, deadline)
}

fn check_recorded(
    session: &Session<'_>,
    attempt: &AttemptState,
    held: &Held,
    deadline: Deadline,
) -> Result<()> {
    let network = &session.request.network;
    let prev_result = match session.prev_result()? {
        Some(prev_result) => {
            refuse_unlisted(held, &prev_result)?;
            prev_result
        }
        None => IpamResult::parse(&held.result, "recorded result")?,
    };
    for (i, (run, gave)) in attempt.runs.iter().zip(&held.gave).enumerate() {
        let time = deadline.share(attempt.runs.len() - i);
        let renewed = session.renewed(run, network);
        let run = &renewed.run;
        let stdin = run.stdin(network, &renewed.shown(&prev_result), &gave.leases)?;
        let outcome = session.exec(Verb::Check, &session.recorded_step(run), stdin, time);
        outcome.map_err(|failure| renewed.explain(failure).error)?;
    }
    Ok(())
}

/// Refuses a runtime's `prevResult` that lacks an address that was given.
fn refuse_unlisted(held: &Held, prev_result: &IpamResult) -> Result<()> {
    let given =
        held.gave.iter().flat_map(|gave| gave.ips.iter().map(move |ip| (&gave.delegate, ip)));
    for (delegate, ip) in given {
        let listed = parse_cidr(ip).is_ok_and(|net| prev_result.has(net.addr()));
        if !listed {
            return Err(Error::new(
                ErrorCode::NOT_HELD,
                format!("{delegate} gave {ip}, which prevResult does not list"),
            )
            .advise("the runtime's cached result is of another ADD: re-create the attachment"));
        }
    }
    Ok(())
}

fn check_configured(session: &Session<'_>, deadline: Deadline) -> Result<()> {
    let prev_result = session.prev_result()?.unwrap_or_default();
    walk(session, Verb::Check, &prev_result, deadline)?.all()
}

/// Asks every delegate whether an ADD could be served, and looks at the state folder.
pub(super) fn status(session: &Session<'_>) -> Result<()> {
    session.state.writable().map_err(|error| {
        Error::new(
            ErrorCode::UNAVAILABLE,
            format!("the state folder {} is not writable", session.state.root().display()),
        )
        .caused_by(error)
        .advise("an ADD would fail: it records what it takes there")
    })?;
    refuse_without_allocator(&session.plan()?.steps)?;
    let deadline = Deadline::after(session.timeout());
    walk(session, Verb::Status, &IpamResult::default(), deadline)?.all()
}
