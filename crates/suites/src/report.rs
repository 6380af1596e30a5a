use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ipam_kit::error::Error;
use ipam_kit::text::visible;

/// The finding of a check.
pub(crate) type CheckResult = Result<(), Finding>;

/// Why a check did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A promise is broken, in this way.
    Broken(String),
    /// The check cannot be made here, for this reason.
    NotApplicable(&'static str),
}

impl From<String> for Finding {
    fn from(message: String) -> Self {
        Self::Broken(message)
    }
}

impl From<Error> for Finding {
    fn from(error: Error) -> Self {
        Self::Broken(format!("an unexpected error {}: {}", error.code(), error.in_full()))
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The promise is kept.
    Passed,
    /// It is broken, in this way.
    Failed(String),
    /// It is not kept, and the author did not claim it.
    Differs(String),
    /// It could not be checked, for this reason.
    NotApplicable(&'static str),
}

/// The outcome of every check of a suite, in order.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Each check's name with what became of it.
    pub outcomes: Vec<(&'static str, CheckOutcome)>,
}

impl Report {
    /// Makes a check; one that panics has failed.
    pub(super) fn check(
        &mut self,
        name: &'static str,
        claimed: bool,
        check: impl FnOnce() -> CheckResult,
    ) {
        let verdict = catch_unwind(AssertUnwindSafe(check))
            .unwrap_or_else(|_| Err(Finding::Broken("it panics".to_owned())));
        let outcome = match verdict {
            Ok(()) => CheckOutcome::Passed,
            Err(Finding::NotApplicable(reason)) => CheckOutcome::NotApplicable(reason),
            Err(Finding::Broken(message)) if claimed => CheckOutcome::Failed(message),
            Err(Finding::Broken(message)) => CheckOutcome::Differs(message),
        };
        self.outcomes.push((name, outcome));
    }

    /// The names of the checks that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, CheckOutcome::Failed(_)))
    }

    /// The names of the checks that differ as told beforehand.
    pub fn differs(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, CheckOutcome::Differs(_)))
    }

    /// The names of the checks that passed.
    pub fn passed(&self) -> Vec<&'static str> {
        self.names(|outcome| *outcome == CheckOutcome::Passed)
    }

    fn names(&self, of: impl Fn(&CheckOutcome) -> bool) -> Vec<&'static str> {
        self.outcomes.iter().filter(|(_, outcome)| of(outcome)).map(|(name, _)| *name).collect()
    }
}

/// A line for each check, and one with the numbers.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.outcomes.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, outcome) in &self.outcomes {
            let (word, why) = match outcome {
                CheckOutcome::Passed => ("passed", None),
                CheckOutcome::Failed(why) => ("FAILED", Some(why.as_str())),
                CheckOutcome::Differs(why) => ("differs", Some(why.as_str())),
                CheckOutcome::NotApplicable(why) => ("-", Some(*why)),
            };
            // It holds words of the program.
            let why = visible(why.unwrap_or_default());
            writeln!(f, "{name:width$}  {word:7}  {why}")?;
        }
        let counted = [
            (self.passed().len(), "passed"),
            (self.failed().len(), "failed"),
            (self.differs().len(), "differ"),
        ];
        let rest = self.outcomes.len() - counted.iter().map(|(count, _)| count).sum::<usize>();
        let [passed, failed, differ] = counted.map(|(count, word)| format!("{count} {word}"));
        writeln!(f, "{passed}, {failed}, {differ}, {rest} not applicable")
    }
}
