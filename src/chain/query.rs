//! Queries that a person could type too: a delegate's program with arguments instead of `CNI_COMMAND`.

use std::time::Duration;

use serde_json::Value;

use super::exec::reported_error;
use super::plan::Step;
use super::process::{KillReason, Process, ProcessOutput, ProcessSpec};
use super::program::not_started;
use super::session::Session;
use ipam_kit::cni::Environment;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::show_duration;

/// A list of all that a large ledger holds is long, but no memory is filled with it.
const STDOUT_LIMIT: usize = 64 * 1024 * 1024;

/// The time for `about`.
const ABOUT: Duration = Duration::from_secs(5);

/// Asks an allocator for its rows; `stdin` is its configuration.
///
/// # Errors
/// The program's own error, or 110 when it does not answer, and 111 when it takes too long.
pub(crate) fn ask(
    session: &Session<'_>,
    step: &Step,
    arguments: &[&str],
    stdin: &str,
) -> Result<Value> {
    let environment = &session.environment;
    Query { step, arguments, environment, stdin, time: session.timeout() }.run()
}

/// Asks a delegate for `about --json`. A foreign program may not know it and wait: it gets a few
/// seconds.
///
/// # Errors
/// As for [`ask`].
pub(crate) fn about(session: &Session<'_>, step: &Step) -> Result<Value> {
    let environment = &session.environment;
    let time = session.timeout().min(ABOUT);
    Query { step, arguments: &["about", "--json"], environment, stdin: "", time }.run()
}

struct Query<'a> {
    step: &'a Step,
    arguments: &'a [&'a str],
    environment: &'a Environment,
    stdin: &'a str,
    time: Duration,
}

impl Query<'_> {
    fn run(&self) -> Result<Value> {
        let Step { name, program, .. } = self.step;
        let spec = ProcessSpec {
            program,
            arguments: self.arguments,
            environment: self.environment,
            stdin: self.stdin,
            time: self.time,
            stdout_limit: STDOUT_LIMIT,
        };
        let mut process =
            Process::start(&spec).map_err(|error| not_started(program, error).within(name))?;
        let answer = process.answer(|end| match end {
            Ok(output) => self.read(&output),
            Err(reason) => Err(self.killed(&reason)),
        });
        answer.map_err(|error| error.within(name))
    }

    fn killed(&self, reason: &KillReason) -> Error {
        match reason {
            KillReason::TimedOut => Error::new(
                ErrorCode::TIMED_OUT,
                format!("timed out after {}, killed", show_duration(self.time)),
            ),
            KillReason::TooLong => {
                Error::new(ErrorCode::DELEGATE, "printed more than 64 MiB, killed")
            }
        }
    }

    fn read(&self, output: &ProcessOutput) -> Result<Value> {
        match serde_json::from_slice(&output.stdout) {
            Ok(answer) if output.status.success() => Ok(answer),
            Ok(Value::Object(error)) if error.contains_key("code") => Err(reported_error(&error).0),
            _ if output.status.success() && output.stdout.is_empty() => Err(self.unanswered("")),
            _ => Err(output
                .with_stderr(self.unanswered(&format!(", but ended with {}", output.ending())))),
        }
    }

    fn unanswered(&self, how: &str) -> Error {
        let verb = self.arguments.first().copied().unwrap_or_default();
        Error::new(ErrorCode::DELEGATE, format!("it does not answer {verb} in JSON{how}"))
            .advise("it may be older than ipam-delegated: install both from one release")
    }
}
