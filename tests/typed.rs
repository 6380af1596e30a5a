//! What a person types to a delegate that completes it, and to one that does not.
//!
//! This test has no harness: started again with `DELEGATE` set, it is that delegate.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

use ipam_kit::cni::IpamResult;
use ipam_kit::delegate::CliCall;
use ipam_kit::{Delegate, Error, ErrorCode, Request, Result};
use ipam_testkit::world::{Outcome, start_raw, wait};

/// Answers its words with stdin behind them, or fails for `fail`.
struct Answers {
    completes: bool,
}

impl Delegate for Answers {
    fn add(&self, request: &Request) -> Result<IpamResult> {
        request.prev_result()
    }

    fn del(&self, _: &Request) -> Result<Option<IpamResult>> {
        Ok(None)
    }

    fn check(&self, _: &Request) -> Result<Option<IpamResult>> {
        Ok(None)
    }

    fn expand_args(&self, mut typed: Vec<OsString>) -> Vec<OsString> {
        if self.completes && typed.is_empty() {
            typed = vec!["read".into(), "-".into()];
        }
        if self.completes {
            typed.push("--json".into());
        }
        typed
    }

    fn cli(&self, call: &CliCall) -> Option<Result<String>> {
        if call.arguments.iter().any(|word| word == "fail") {
            return Some(Err(Error::new(ErrorCode::IO, "as asked")));
        }
        let words: Vec<_> = call.arguments.iter().map(|word| word.to_string_lossy()).collect();
        Some(Ok(words.join(" ") + "|" + &String::from_utf8_lossy(&call.stdin)))
    }
}

fn main() -> ExitCode {
    match std::env::var("DELEGATE").as_deref() {
        Ok(which) => ipam_kit::run("answers", Answers { completes: which == "completes" }),
        Err(_) => {
            words_are_answered_as_they_are_completed();
            words_are_answered_as_typed_where_nothing_completes_them();
            ExitCode::SUCCESS
        }
    }
}

fn typed(which: &str, words: &[&str]) -> Outcome {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env_clear().env("DELEGATE", which).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start_raw(command, b"given"))
}

fn words_are_answered_as_they_are_completed() {
    let outcome = typed("completes", &[]);
    assert_eq!((outcome.exit, &*outcome.stdout), (Some(0), "read - --json|given"), "{outcome:?}");
    assert_eq!(typed("completes", &["x"]).stdout, "x --json|");
    let failed = typed("completes", &["fail"]);
    assert_eq!(failed.stderr, "");
    assert_eq!(failed.failure(), (5, "as asked: ".to_owned()));
}

fn words_are_answered_as_typed_where_nothing_completes_them() {
    let outcome = typed("plain", &[]);
    assert_eq!((outcome.exit, &*outcome.stdout), (Some(0), ""));
    assert!(outcome.stderr.contains("a CNI IPAM delegate"), "{outcome:?}");
    assert_eq!(typed("plain", &["x"]).stdout, "x|");
    let failed = typed("plain", &["fail"]);
    assert_eq!((failed.exit, &*failed.stdout), (Some(1), ""));
    assert_eq!(failed.stderr, "answers: as asked\n");
}
