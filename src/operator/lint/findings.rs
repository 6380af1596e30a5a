use ipam_cli::{Row, finding};
use ipam_kit::error::Error;

/// The findings of `lint`, each with a `level` (error, warning or note) and a `message`.
///
/// The files beside this one add their findings.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub list: Vec<Row>,
    /// There is an error.
    pub failed: bool,
    /// An allocator's ledger is shared with other nodes.
    pub shared: bool,
}

impl Findings {
    pub(super) fn push(&mut self, level: &str, message: &str) {
        self.list.push(finding(level, message));
    }

    pub(super) fn error(&mut self, error: &Error) {
        self.push("error", &error.in_full());
        self.failed = true;
    }
}
