//! Verbs that a standard plugin may not know: CHECK, GC and STATUS.

use std::time::{Duration, Instant};

use log::debug;
use serde_json::Value;

use super::exec::{DelegateCall, DelegateFailure, DelegateOutput, FailureKind};
use super::plan::Step;
use super::session::Session;
use ipam_kit::cni::{Verb, Version};
use ipam_kit::error::{Error, ErrorCode, Result};

/// Runs a delegate. A standard plugin that does not know the verb has nothing to say.
pub(crate) fn run_if_known(
    session: &Session<'_>,
    verb: Verb,
    step: &Step,
    stdin: String,
    time: Duration,
) -> Result<DelegateOutput, DelegateFailure> {
    let began = Instant::now();
    let environment = session.environment.clone();
    let settings = &session.request.settings;
    let output = DelegateCall { step, verb, environment, stdin, settings, time }.run();
    match output {
        Err(failure) if is_unknown_verb(verb, &failure.error) => {
            debug!("{} does not support {verb}", step.name);
            if verb == Verb::Status {
                // Older than the version that has STATUS, it may refuse that of an ADD as well.
                let time = step.timeout.map_or(time, |own| own.min(time));
                let left = time.saturating_sub(began.elapsed());
                refuse_version(session, step, session.request.network.version(), left)?;
            }
            Ok(None)
        }
        output => output,
    }
}

/// Fails where a delegate's program cannot be started, or says that it does not support a version.
///
/// # Errors
/// Error 1 names the versions that it supports.
pub(crate) fn refuse_version(
    session: &Session<'_>,
    step: &Step,
    version: Version,
    time: Duration,
) -> Result<()> {
    let network = session.request.network.with("cniVersion", version.as_str().into());
    let stdin = Value::Object(network.config().clone()).to_string();
    let environment = session.environment.clone();
    let settings = &session.request.settings;
    let call = DelegateCall { step, verb: Verb::Version, environment, stdin, settings, time };
    let answer = match call.run() {
        Ok(answer) => answer.unwrap_or_default(),
        Err(DelegateFailure { error, kind: FailureKind::NotRun }) => return Err(error),
        // Its versions are not known.
        Err(DelegateFailure { error, .. }) => {
            debug!("{}", error.in_full());
            return Ok(());
        }
    };
    let supported = answer.get("supportedVersions").and_then(Value::as_array);
    let supported: Vec<&str> = supported.into_iter().flatten().filter_map(Value::as_str).collect();
    if supported.is_empty() || supported.contains(&version.as_str()) {
        return Ok(());
    }
    let name = &*step.name;
    let listed = supported.join(", ");
    let message = format!("{name} does not support cniVersion {version}, only {listed}");
    let newest = Version::ALL.iter().rev().find(|known| supported.contains(&known.as_str()));
    let advice = match newest {
        Some(newest) => format!("set cniVersion to \"{newest}\", or install a newer {name}"),
        None => format!("install another {name}"),
    };
    Err(Error::new(ErrorCode::INCOMPATIBLE_VERSION, message).advise(advice))
}

/// Whether a standard plugin's error only says that it does not know the verb.
fn is_unknown_verb(verb: Verb, error: &Error) -> bool {
    match verb {
        Verb::Check | Verb::Gc | Verb::Status => {
            let no_container =
                !verb.has_attachment() && error.code() == ErrorCode::UNKNOWN_CONTAINER;
            no_container
                || error.code() == ErrorCode::INVALID_ENVIRONMENT
                || error.in_full().contains("unknown CNI_COMMAND")
        }
        _ => false,
    }
}
