//! Stores that did not answer, so that no record waits for one a second time.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::record::{Record, Run};
use ipam_kit::error::{Error, ErrorCode, Result};

/// The stores that did not answer a DEL of this call.
#[derive(Debug, Default)]
pub(crate) struct Away(RefCell<Vec<(Run, ErrorCode)>>);

impl Away {
    /// Notes the store of a delegate whose DEL failed, if that is for want of an answer.
    pub(crate) fn note(&self, run: &Run, error: &Error) {
        let silent = [ErrorCode::TRY_AGAIN, ErrorCode::UNREACHED, ErrorCode::TIMED_OUT];
        if silent.contains(&error.code()) && self.code_of(run).is_none() {
            self.0.borrow_mut().push((run.clone(), error.code()));
        }
    }

    /// Whether a delegate of this record has a store that did not answer.
    pub(crate) fn holds_any_of(&self, record: &Record) -> bool {
        record.runs().into_iter().any(|run| self.code_of(run).is_some())
    }

    /// Fails where a delegate has said itself that its store did not answer: its own GC would wait for
    /// the store once more. One that was killed may have hung on a single record.
    pub(crate) fn refuse(&self, run: &Run) -> Result<()> {
        match self.code_of(run) {
            None | Some(ErrorCode::TIMED_OUT) => Ok(()),
            Some(code) => {
                let message = [&*run.delegate, ": GC is left for the next time"].concat();
                Err(Error::new(code, message).advise("its store did not answer a DEL of this GC"))
            }
        }
    }

    /// The code of the DEL that the store of this delegate did not answer.
    fn code_of(&self, run: &Run) -> Option<ErrorCode> {
        let away = self.0.borrow();
        let mut others = away.iter().filter(|(other, _)| other.delegate == run.delegate);
        others.find(|(other, _)| store_of(other) == store_of(run)).map(|(_, code)| *code)
    }
}

/// Keys of `ipam` that are about the chain or an attachment, and not about a store.
const OF_NO_STORE: [&str; 6] =
    ["node", "delegates", "timeout", "verbose", "requested-ip", "requested_ip"];

/// The section `ipam` of a delegate as far as it is about its store.
pub(crate) fn store_of(run: &Run) -> Map<String, Value> {
    let mut settings = run.ipam.clone();
    for key in OF_NO_STORE {
        settings.remove(key);
    }
    settings
}
