//! The answers of allocators to STATUS and to `lint`.

use std::time::Duration;

use serde_json::Value;

use super::findings::Findings;
use crate::chain::optional::run_if_known;
use crate::chain::plan::Step;
use crate::chain::query;
use crate::chain::session::Session;
use crate::operator::ask::rows;
use crate::operator::dry_run::DryRunStage;
use ipam_kit::cni::Verb;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

impl Findings {
    /// STATUS of our allocators, with the pools that the selectors chose: an error if every ADD
    /// would fail on this node's configuration, folders or files. Tells whether all their stores
    /// can be reached, full or not.
    pub(super) fn of_allocators(
        &mut self,
        session: &Session<'_>,
        stages: &[DryRunStage],
        time: Duration,
    ) -> bool {
        let mut all = true;
        let deadline = Deadline::after(time);
        for (i, DryRunStage { step, input, .. }) in stages.iter().enumerate() {
            let Some(input) = input.as_ref().filter(|_| step.is_allocator()) else { continue };
            let time = deadline.share(stages.len() - i);
            let Err(failure) = run_if_known(session, Verb::Status, step, input.to_string(), time)
            else {
                continue;
            };
            let error = Error::from(failure);
            all &= error.code() == ErrorCode::EXHAUSTED;
            match error.code() {
                ErrorCode::INVALID_CONFIG | ErrorCode::IO | ErrorCode::UNAVAILABLE => {
                    self.error(&error);
                }
                _ => self.push("warning", &error.in_full()),
            }
        }
        all
    }

    /// Adds the findings of our allocators about their pools.
    pub(super) fn of_pools(&mut self, session: &Session<'_>, stages: &[DryRunStage]) {
        for DryRunStage { step, input, .. } in stages {
            let Some(input) = input.as_ref().filter(|_| step.is_allocator()) else { continue };
            let name = &*step.name;
            let findings = match findings_of(session, step, input) {
                Ok(findings) => findings,
                // One that is older than this question has other codes than an allocator's own.
                Err(error) if error.code() == ErrorCode::DELEGATE => continue,
                Err(error) => {
                    self.push("warning", &error.in_full());
                    continue;
                }
            };
            // An input without a pool is reported where the selectors are tried.
            for finding in findings.iter().filter(|finding| !is_about_no_pool(finding)) {
                let [level, message] = ["level", "message"].map(|key| finding[key].as_str());
                let (Some(level @ ("error" | "warning" | "note")), Some(message)) =
                    (level, message)
                else {
                    continue;
                };
                self.failed |= level == "error";
                self.push(level, &format!("{name}: {message}"));
            }
        }
    }
}

/// Asks an allocator for its findings about an input without a pool.
pub(super) fn about_no_pool(session: &Session<'_>, step: &Step, input: &Value) -> Vec<String> {
    // Only its server may know.
    let findings = findings_of(session, step, input).unwrap_or_default();
    let about = findings.iter().filter(|finding| is_about_no_pool(finding));
    about.filter_map(|finding| finding["message"].as_str().map(str::to_owned)).collect()
}

/// Asks an allocator for its `lint`.
///
/// # Errors
/// The allocator's own error; 110 if it is older than this question.
fn findings_of(session: &Session<'_>, step: &Step, input: &Value) -> Result<Vec<Value>> {
    let words = ["lint", "--json", "--config", "-"];
    let answer = query::ask(session, step, &words, &input.to_string());
    let findings = answer.and_then(|answer| rows(&step.name, answer));
    findings.inspect_err(|error| log::debug!("{}", error.in_full()))
}

/// Whether an allocator's finding is that its input has no pool, so that every ADD would fail.
fn is_about_no_pool(finding: &Value) -> bool {
    finding["level"] == "error" && finding["about"] == "pools"
}
