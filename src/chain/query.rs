//! A question to a delegate that a person could ask too: its program with arguments instead of
//! `CNI_COMMAND`.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::exec::error_of;
use super::process::{Ended, Killed, Process, Start};
use super::program::not_started;
use ipam_kit::cni::Environment;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::show_duration;

/// A list of all that a large ledger holds is long, but no memory is filled with it.
const STDOUT_LIMIT: usize = 64 * 1024 * 1024;

/// One question.
pub(crate) struct Question<'a> {
    pub name: &'a str,
    pub program: &'a Path,
    pub arguments: &'a [&'a str],
    pub environment: &'a Environment,
    pub stdin: &'a str,
    pub time: Duration,
}

impl Question<'_> {
    /// Asks, and reads the answer as JSON.
    ///
    /// # Errors
    /// The program's own error, or 110 when it does not answer, and 111 when it takes too long.
    pub(super) fn ask(&self) -> Result<Value> {
        let start = Start {
            program: self.program,
            arguments: self.arguments,
            environment: self.environment,
            stdin: self.stdin,
            time: self.time,
            stdout_limit: STDOUT_LIMIT,
        };
        let answer = Process::start(&start)
            .map_err(|error| not_started(self.program, error))
            .and_then(|mut process| {
                process.answer(|end| match end {
                    Ok(ended) => self.read(&ended),
                    Err(killed) => Err(self.killed(&killed)),
                })
            });
        answer.map_err(|error| error.within(self.name))
    }

    fn killed(&self, killed: &Killed) -> Error {
        match killed {
            Killed::TimedOut => Error::new(
                ErrorCode::TIMED_OUT,
                format!("not done after {}, killed", show_duration(self.time)),
            ),
            Killed::TooLong => {
                Error::new(ErrorCode::DELEGATE, "it printed more than 64 MiB, killed")
            }
        }
    }

    fn read(&self, ended: &Ended) -> Result<Value> {
        let answer = serde_json::from_slice(&ended.stdout);
        match answer {
            Ok(answer) if ended.status.success() => Ok(answer),
            Ok(Value::Object(error)) if error.contains_key("code") => Err(error_of(&error).0),
            _ if ended.status.success() && ended.stdout.is_empty() => Err(self.unanswered("")),
            _ => Err(ended.explain(self.unanswered(&format!(", but ended with {}", ended.status)))),
        }
    }

    fn unanswered(&self, how: &str) -> Error {
        let verb = self.arguments.first().copied().unwrap_or_default();
        Error::new(ErrorCode::DELEGATE, format!("it does not answer {verb} in JSON{how}"))
            .advise("it may be older than this program: install both from one build")
    }
}
