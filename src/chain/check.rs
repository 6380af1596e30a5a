//! CHECK and STATUS.

use log::warn;

use super::optional::run_if_known;
use super::record::{AttemptState, Held, Opened, RecordFile};
use super::refreshed_run::{RefreshedRun, recorded_step, refresh_run};
use super::release::run_refreshed;
use super::run_all::{run_all, run_planned};
use super::served::{refuse_repeated_allocator, refuse_without_allocator};
use super::session::Session;
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::cni::{IpamResult, Verb};
use ipam_kit::contract::DelegateInput;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::presence::Presence;

/// Asks every delegate whether the attachment still holds its addresses.
pub(crate) fn check(session: &Session<'_>) -> Result<()> {
    let opened = RecordFile::open_to_look(&session.record_place()?)?;
    let deadline = Deadline::after(session.timeout());
    let Opened { record, file: _locked } = match opened {
        Presence::Held(opened) if !opened.record.attempts.is_empty() => opened,
        Presence::Held(_) | Presence::Absent => return check_configured(session, deadline),
        Presence::Unreadable(error) => {
            warn!("{}; CHECK uses the present configuration", error.in_full());
            return check_configured(session, deadline);
        }
    };
    let Some((attempt, held)) = record.held() else {
        let state = record.state().as_str();
        return Err(Error::new(
            ErrorCode::NOT_HELD,
            format!("{} holds no address: its record is {state}", session.attachment()?),
        )
        .advise("re-create the container"));
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
            refuse_unlisted(attempt, &prev_result)?;
            prev_result
        }
        None => IpamResult::parse(&held.result, "recorded result")?,
    };
    for (i, ran) in attempt.runs.iter().enumerate() {
        let Some(granted) = &ran.granted else { continue };
        let time = deadline.share(attempt.runs.len() - i);
        let refreshed = refresh_run(session, &ran.run, network);
        let checked = run_refreshed(session, refreshed, &prev_result, time, |refreshed, time| {
            let RefreshedRun { run, present_ipam: present, .. } = refreshed;
            let (leases, present) = (granted.leases.clone(), present.clone());
            let static_addresses = granted.static_addresses();
            let input =
                DelegateInput { leases, static_addresses, present, ..DelegateInput::default() };
            let stdin = run.stdin(network, &prev_result, input)?;
            let step = recorded_step(session, run);
            let checked = run_if_known(session, Verb::Check, &step, stdin, time);
            checked.map(drop).map_err(|failure| refreshed.explain_failure(failure))
        });
        checked.map_err(|failure| failure.error)?;
    }
    Ok(())
}

/// Refuses a runtime's `prevResult` that lacks an address that was given.
fn refuse_unlisted(attempt: &AttemptState, prev_result: &IpamResult) -> Result<()> {
    for granted in attempt.grants() {
        for ip in granted.ips.iter().chain(&granted.static_ips) {
            let listed = parse_cidr(ip).is_ok_and(|net| prev_result.has(net.addr()));
            if !listed {
                return Err(Error::new(
                    ErrorCode::NOT_HELD,
                    format!("{} gave {ip}, which prevResult does not list", granted.delegate),
                )
                .advise(
                    "the runtime has cached the result of another ADD: re-create the container",
                ));
            }
        }
    }
    Ok(())
}

fn check_configured(session: &Session<'_>, deadline: Deadline) -> Result<()> {
    session.refuse_unproved_absence()?;
    let prev_result = session.prev_result()?.unwrap_or_default();
    // An allocator that knows no pools finds its leases by the owner alone.
    let failures = run_all(session, Verb::Check, &prev_result, deadline)?;
    for warning in failures.but_selectors(false)? {
        warn!("{}", warning.in_full());
    }
    Ok(())
}

/// The length of a file's name, in bytes.
const NAME_MAX: usize = 255;

/// Asks every delegate whether an ADD could be served, and looks at the state folder.
pub(crate) fn status(session: &Session<'_>) -> Result<()> {
    session.state.writable().map_err(|error| {
        Error::new(
            ErrorCode::UNAVAILABLE,
            format!("the state folder {} is not writable", session.state.root().display()),
        )
        .caused_by(error)
        .advise("make it writable by root: each ADD writes a record there")
    })?;
    let plan = session.plan()?;
    refuse_without_allocator(&plan.steps)?;
    refuse_repeated_allocator(&plan.steps)?;
    let name = session.request.network.name().as_str();
    if name.len() > NAME_MAX {
        let message = format!("it has {} bytes, expected at most 255", name.len());
        return Err(Error::config("name", message)
            .advise("shorten it to 255 bytes: it is the name of a folder"));
    }
    let deadline = Deadline::after(session.timeout());
    run_planned(session, &plan, Verb::Status, &IpamResult::default(), deadline)?.join()
}
