//! One delegate as a process, which ends in its time whatever it does.

use std::path::Path;
use std::time::{Duration, Instant};

use log::debug;
use serde_json::{Map, Value};

use super::process::{Ended, Killed, Process, Start};
use super::program::not_started;
use ipam_kit::cni::{Environment, Verb, parse_object};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode};
use ipam_kit::host::show_duration;

/// A delegate that prints more than this on stdout is killed.
const STDOUT_LIMIT: usize = 1024 * 1024;

/// What to do about a delegate that does not say what is wrong.
const RUN_IT: &str = "run it by hand with the same input: it must print one JSON object on stdout, and logs on stderr";

/// One call of a delegate.
pub(crate) struct Call<'a> {
    pub name: &'a str,
    pub program: &'a Path,
    pub verb: Verb,
    pub environment: Environment,
    pub stdin: String,
    pub time: Duration,
}

/// What a delegate printed: an object, or nothing on the verbs that allow that.
pub(crate) type Answer = Option<Map<String, Value>>;

/// A delegate that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: Error,
    pub ending: Ending,
}

/// How a failed delegate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was not run.
    NotRun,
    /// It said what is wrong.
    Told,
    /// It did not say what it did, so a claim of it may still commit.
    Unsure,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, ending: Ending::Told }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl Call<'_> {
    /// Runs the delegate until it ends or its time is over.
    pub(crate) fn run(mut self) -> Result<Answer, Failure> {
        let began = Instant::now();
        // A little less than is really left, so that a delegate of ours can still say why.
        let told = self.time.saturating_sub(self.time / 20);
        self.environment.set(Deadline::VARIABLE, told.as_millis().to_string());
        let start = Start {
            program: self.program,
            arguments: &[],
            environment: &self.environment,
            stdin: &self.stdin,
            time: self.time,
            stdout_limit: STDOUT_LIMIT,
        };
        let answer = match Process::start(&start) {
            Ok(mut process) => process.answer(|end| match end {
                Ok(ended) => self.read(&ended),
                Err(killed) => Err(self.killed(&killed)),
            }),
            Err(error) => Err(Failure {
                error: not_started(self.program, error).within(self.name),
                ending: Ending::NotRun,
            }),
        };
        let outcome = match &answer {
            Ok(_) => "done".to_owned(),
            Err(failure) => format!("error {}: {}", failure.error.code(), failure.error.in_full()),
        };
        debug!("{} {} in {:.1?}: {outcome}", self.name, self.verb, began.elapsed());
        answer
    }

    fn killed(&self, killed: &Killed) -> Failure {
        let error = match killed {
            Killed::TimedOut => Error::new(
                ErrorCode::TIMED_OUT,
                format!("not done after {}, killed", show_duration(self.time)),
            )
            .advise("look at what it waits for, or raise ipam.timeout or its own timeout"),
            Killed::TooLong => {
                Error::new(ErrorCode::DELEGATE, "it printed more than 1 MiB, killed")
                    .advise("an answer is one JSON object; logs belong on stderr")
            }
        };
        Failure { error: error.within(self.name), ending: Ending::Unsure }
    }

    /// What the ended process amounts to.
    fn read(&self, ended: &Ended) -> Result<Answer, Failure> {
        let fail = |error: Error, ending| Err(Failure { error: error.within(self.name), ending });
        let quiet = ended.stdout.iter().all(u8::is_ascii_whitespace);
        let object = match parse_object(&ended.stdout, "its answer") {
            _ if quiet => None,
            Ok(object) => Some(object),
            Err(mut error) => {
                if !ended.status.success() {
                    error = error.within(format_args!("it ended with {}", ended.status));
                }
                let error = ended.explain(error.with_code(ErrorCode::DELEGATE));
                return fail(error.advise(RUN_IT), Ending::Unsure);
            }
        };
        if ended.status.success() {
            match &object {
                None if self.verb == Verb::Add => {
                    let error = Error::new(ErrorCode::DELEGATE, "it succeeded without an answer");
                    let error = ended.explain(error).advise("ADD must print a result");
                    return fail(error, Ending::Unsure);
                }
                // Whether it holds something is anybody's guess.
                Some(object) if object.contains_key("code") && object.contains_key("msg") => {
                    let (error, _) = error_of(object);
                    let advice =
                        format!("it ended with {}: an error must end with 1", ended.status);
                    return fail(error.advise(advice), Ending::Unsure);
                }
                _ => return Ok(object),
            }
        }
        match object {
            Some(object) if object.contains_key("code") => {
                let (error, ending) = error_of(&object);
                fail(error, ending)
            }
            _ => {
                let error = Error::new(
                    ErrorCode::DELEGATE,
                    format!("it ended with {} and no error object", ended.status),
                );
                fail(ended.explain(error).advise(RUN_IT), Ending::Unsure)
            }
        }
    }
}

impl Ended {
    /// Adds the end of its stderr to the causes of an error that has no advice yet.
    pub(super) fn explain(&self, error: Error) -> Error {
        let tail = String::from_utf8_lossy(&self.stderr_tail);
        if tail.trim().is_empty() {
            return error;
        }
        let stderr = format!("stderr: {}", tail.trim());
        let details = error.details();
        let causes = if details.is_empty() { stderr } else { format!("{details}; {stderr}") };
        error.caused_by(causes)
    }
}

/// The delegate's own error, and whether it leaves open what it did.
pub(crate) fn error_of(object: &Map<String, Value>) -> (Error, Ending) {
    let code = object.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
    // Zero would tell the runtime that there is no error.
    let code = code.filter(|code| *code > 0);
    let code = code.map_or(ErrorCode::DELEGATE, ErrorCode::new);
    let text = |key| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let message = if text("msg").is_empty() { "an error without a message" } else { text("msg") };
    let mut error = Error::new(code, message);
    if !text("details").is_empty() {
        error = error.caused_by(text("details").to_owned());
    }
    if code == ErrorCode::INCOMPATIBLE_VERSION && !text("details").contains("cniVersion") {
        error = error.advise("set cniVersion to a version that it supports");
    }
    let ending = match code {
        // One that met a defect of its own may have met it after its claim.
        ErrorCode::TRY_AGAIN | ErrorCode::TIMED_OUT | ErrorCode::INTERNAL => Ending::Unsure,
        // As good as not run: where nobody was asked for anything, a DEL would ask nobody either.
        ErrorCode::UNREACHED => Ending::NotRun,
        _ => Ending::Told,
    };
    (error, ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_never_has_a_code_that_means_success() {
        for code in [json!(0), json!(-1), json!("100"), json!(1_u64 << 32), json!(null)] {
            let object = json!({"code": code, "msg": "m"});
            let (error, ending) = error_of(object.as_object().unwrap());
            assert_eq!((error.code(), ending), (ErrorCode::DELEGATE, Ending::Told), "{object}");
        }
    }
}
