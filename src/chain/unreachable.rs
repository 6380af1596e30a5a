//! Stores that did not answer, so that no record waits for one a second time.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::record::{Record, Run};
use ipam_kit::error::{Error, ErrorCode, Result};

/// The stores that did not answer a DEL of this call.
#[derive(Debug, Default)]
pub(crate) struct UnreachableStores(RefCell<Vec<(Run, ErrorCode)>>);

impl UnreachableStores {
    /// Remembers the store of a delegate whose DEL failed, if the store did not answer.
    pub(crate) fn remember(&self, run: &Run, error: &Error) {
        let silent = [ErrorCode::TRY_AGAIN, ErrorCode::UNREACHED, ErrorCode::TIMED_OUT];
        if silent.contains(&error.code()) && self.code_of(run).is_none() {
            self.0.borrow_mut().push((run.clone(), error.code()));
        }
    }

    /// Whether a delegate of this record has a store that did not answer.
    pub(crate) fn has_any_of(&self, record: &Record) -> bool {
        record.runs().into_iter().any(|run| self.code_of(run).is_some())
    }

    /// Fails where a delegate has reported that its store did not answer: its own GC would wait for the
    /// store once more. A delegate that was killed may have hung on a single record.
    pub(crate) fn refuse_gc(&self, run: &Run) -> Result<()> {
        match self.code_of(run) {
            None | Some(ErrorCode::TIMED_OUT) => Ok(()),
            Some(code) => {
                let message = format!("{}: GC was skipped", run.delegate);
                Err(Error::new(code, message)
                    .advise("its store did not answer a DEL; the next GC asks it again"))
            }
        }
    }

    /// The code of the DEL that the store of this delegate did not answer.
    fn code_of(&self, run: &Run) -> Option<ErrorCode> {
        let stores = self.0.borrow();
        let mut others = stores.iter().filter(|(other, _)| other.delegate == run.delegate);
        others.find(|(other, _)| store_of(other) == store_of(run)).map(|(_, code)| *code)
    }
}

/// Keys of `ipam` that are about the chain or an attachment, and not about a store.
const NOT_OF_THE_STORE: [&str; 6] =
    ["node", "delegates", "timeout", "verbose", "requested-ip", "requested_ip"];

/// The section `ipam` of a delegate as far as it is about its store.
pub(crate) fn store_of(run: &Run) -> Map<String, Value> {
    let mut settings = run.ipam.clone();
    for key in NOT_OF_THE_STORE {
        settings.remove(key);
    }
    settings
}
