//! One call of a delegate: as a process, which ends in its time whatever it does, or as a function.

use std::path::Path;
use std::time::{Duration, Instant};

use log::{LevelFilter, debug};
use serde_json::{Map, Value};

use super::plan::Step;
use super::process::{KillReason, Process, ProcessOutput, ProcessSpec};
use super::program::not_started;
use ipam_kit::cni::{Environment, Verb, parse_object};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode};
use ipam_kit::host::{Settings, show_duration};

/// A delegate that prints more than this on stdout is killed.
const STDOUT_LIMIT: usize = 1024 * 1024;

/// The advice for a delegate that does not say what is wrong.
const RUN_IT: &str = "run it by hand with the same input: it must print one JSON object on stdout, and logs on stderr";

/// One call of a delegate.
pub(crate) struct DelegateCall<'a> {
    pub step: &'a Step,
    pub verb: Verb,
    /// The variables of the call, except the verb and the time.
    pub environment: Environment,
    pub stdin: String,
    /// The host's settings, for a delegate that needs no process.
    pub settings: &'a Settings,
    /// How long it may run, unless its own timeout is shorter.
    pub time: Duration,
}

/// The object that a delegate printed; `None` on the verbs that allow an empty answer.
pub(crate) type DelegateOutput = Option<Map<String, Value>>;

/// The failure of a delegate.
#[derive(Debug)]
pub(crate) struct DelegateFailure {
    pub error: Error,
    pub kind: FailureKind,
}

/// How much is known of a failed delegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It did not run, or reached no server.
    NotRun,
    /// It reported itself that it failed.
    Reported,
    /// It did not report what it did, so a claim of it may still commit.
    Unsure,
}

/// An error of the chain itself, which leaves open nothing that a delegate did.
impl From<Error> for DelegateFailure {
    fn from(error: Error) -> Self {
        Self { error, kind: FailureKind::Reported }
    }
}

impl From<DelegateFailure> for Error {
    fn from(failure: DelegateFailure) -> Self {
        failure.error
    }
}

impl DelegateCall<'_> {
    /// Runs the delegate until it ends or its time is over.
    pub(crate) fn run(mut self) -> Result<DelegateOutput, DelegateFailure> {
        let began = Instant::now();
        let Step { name, program, built_in, timeout, .. } = self.step;
        self.time = timeout.map_or(self.time, |own| own.min(self.time));
        // A little less than is really left, so that a delegate of ours can still say why.
        let announced = self.time.saturating_sub(self.time / 20);
        self.environment.set("CNI_COMMAND", self.verb.as_str());
        self.environment.set(Deadline::VARIABLE, announced.as_millis().to_string());
        let answer = match built_in {
            // As a process it writes a log of its own.
            Some(built_in) if log::max_level() < LevelFilter::Debug && !self.step.is_verbose() => {
                let reply = built_in.answer(self.environment.clone(), &self.stdin, self.settings);
                self.read_end(ProcessOutput::of(reply, STDOUT_LIMIT))
            }
            _ => self.run_process(program),
        };
        let outcome = match &answer {
            Ok(_) => "done".to_owned(),
            Err(failure) => format!("error {}: {}", failure.error.code(), failure.error.in_full()),
        };
        debug!("{name} {} in {:.1?}: {outcome}", self.verb, began.elapsed());
        answer
    }

    fn run_process(&self, program: &Path) -> Result<DelegateOutput, DelegateFailure> {
        let spec = ProcessSpec {
            program,
            arguments: &[],
            environment: &self.environment,
            stdin: &self.stdin,
            time: self.time,
            stdout_limit: STDOUT_LIMIT,
        };
        match Process::start(&spec) {
            Ok(mut process) => process.answer(|end| self.read_end(end)),
            Err(error) => Err(DelegateFailure {
                error: not_started(program, error).within(&self.step.name),
                kind: FailureKind::NotRun,
            }),
        }
    }

    fn read_end(
        &self,
        end: Result<ProcessOutput, KillReason>,
    ) -> Result<DelegateOutput, DelegateFailure> {
        match end {
            Ok(output) => self.read(&output),
            Err(reason) => Err(self.killed(&reason)),
        }
    }

    fn killed(&self, reason: &KillReason) -> DelegateFailure {
        let error = match reason {
            KillReason::TimedOut => Error::new(
                ErrorCode::TIMED_OUT,
                format!("timed out after {}, killed", show_duration(self.time)),
            )
            .advise("check what it waits for, or raise ipam.timeout or its own timeout"),
            KillReason::TooLong => {
                Error::new(ErrorCode::DELEGATE, "printed more than 1 MiB, killed")
                    .advise("an answer is one JSON object; logs belong on stderr")
            }
        };
        self.failure(error, FailureKind::Unsure)
    }

    /// The answer in the output of an ended process.
    fn read(&self, output: &ProcessOutput) -> Result<DelegateOutput, DelegateFailure> {
        let is_quiet = output.stdout.iter().all(u8::is_ascii_whitespace);
        let object = match parse_object(&output.stdout, "its answer") {
            _ if is_quiet => None,
            Ok(object) => Some(object),
            Err(mut error) => {
                if !output.status.success() {
                    error = error.within(format_args!("it ended with {}", output.ending()));
                }
                let error = output.with_stderr(error.with_code(ErrorCode::DELEGATE));
                return Err(self.failure(error.advise(RUN_IT), FailureKind::Unsure));
            }
        };
        match object {
            None if output.status.success() && self.verb == Verb::Add => {
                let error = Error::new(ErrorCode::DELEGATE, "it succeeded without an answer");
                let error = output
                    .with_stderr(error)
                    .advise("a delegate must print a result on ADD: repair or replace it");
                Err(self.failure(error, FailureKind::Unsure))
            }
            Some(object)
                if output.status.success()
                    && object.contains_key("code")
                    && object.contains_key("msg") =>
            {
                // It may hold something or not.
                let (error, _) = reported_error(&object);
                let advice = format!(
                    "it ended with {}: a delegate that reports an error must exit with 1",
                    output.ending()
                );
                Err(self.failure(error.advise(advice), FailureKind::Unsure))
            }
            object if output.status.success() => Ok(object),
            Some(object) if object.contains_key("code") => {
                let (error, kind) = reported_error(&object);
                Err(self.failure(error, kind))
            }
            _ => {
                let message =
                    format!("it ended with {} and printed no error object", output.ending());
                let error = output.with_stderr(Error::new(ErrorCode::DELEGATE, message));
                Err(self.failure(error.advise(RUN_IT), FailureKind::Unsure))
            }
        }
    }

    fn failure(&self, error: Error, kind: FailureKind) -> DelegateFailure {
        DelegateFailure { error: error.within(&self.step.name), kind }
    }
}

/// The error that a delegate printed, and whether the outcome of its call is open.
pub(super) fn reported_error(object: &Map<String, Value>) -> (Error, FailureKind) {
    let code = object.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
    // Zero would tell the runtime that there is no error.
    let code = code.filter(|code| *code > 0);
    let code = code.map_or(ErrorCode::DELEGATE, ErrorCode::new);
    let details = string_member(object, "details").unwrap_or_default();
    let mut error =
        Error::new(code, string_member(object, "msg").unwrap_or("an error without a message"));
    if !details.is_empty() {
        error = error.caused_by(details.to_owned());
    }
    if code == ErrorCode::INCOMPATIBLE_VERSION && !details.contains("cniVersion") {
        error = error.advise("set cniVersion to a version that it supports");
    }
    let kind = match code {
        // One that met a defect of its own may have met it after its claim.
        ErrorCode::TRY_AGAIN | ErrorCode::TIMED_OUT | ErrorCode::INTERNAL => FailureKind::Unsure,
        // It asked no server for anything, and a DEL would ask none either.
        ErrorCode::UNREACHED => FailureKind::NotRun,
        _ => FailureKind::Reported,
    };
    (error, kind)
}

/// A member that is a string and not empty.
fn string_member<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str).filter(|string| !string.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_never_has_a_code_that_means_success() {
        for code in [json!(0), json!(-1), json!("100"), json!(1_u64 << 32), json!(null)] {
            let object = json!({"code": code, "msg": "m"});
            let (error, kind) = reported_error(object.as_object().unwrap());
            assert_eq!(
                (error.code(), kind),
                (ErrorCode::DELEGATE, FailureKind::Reported),
                "{object}"
            );
        }
    }
}
