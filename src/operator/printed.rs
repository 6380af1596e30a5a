use ipam_cli::{Arguments, Column, Row, print_rows};
use ipam_kit::error::{Error, Result};

/// The output of a verb.
#[derive(Debug, Default)]
pub(super) struct Printed {
    pub text: String,
    /// For stderr, a line each.
    pub warnings: Vec<String>,
    /// The exit status is 1.
    pub failed: bool,
}

impl Printed {
    pub(super) fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Unwraps a success; a failure becomes a warning, and the exit status 1.
    pub(super) fn keep<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.fail(&error)).ok()
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.warnings.push(error.in_full());
        self.failed = true;
    }

    /// Sets the text: a table, or JSON with `--json`.
    pub(super) fn set_rows(&mut self, arguments: &Arguments, columns: &[Column], rows: Vec<Row>) {
        self.text = print_rows(arguments, columns, rows);
    }
}
