//! The node's memory of a store between two calls.

use std::io;
use std::path::PathBuf;

use log::{debug, warn};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::owner_index::now;
use crate::error::{Error, ErrorCode, Result};
use crate::host::StateFile;

/// The memory of a store, in a file of the state folder: its state at the node's latest claim, which
/// reveals a store that was restored or replaced, and hints.
#[derive(Debug)]
pub struct StoreMemory<R> {
    file: StateFile,
    record: R,
}

impl<R: Default + Serialize + DeserializeOwned> StoreMemory<R> {
    /// Reads the memory in this file, which need not exist.
    pub fn read(path: PathBuf) -> Self {
        let file = StateFile::at(path);
        Self { record: file.read(), file }
    }

    /// The content, as this call knows it: other calls write meanwhile.
    pub fn record(&self) -> &R {
        &self.record
    }

    /// Reads again what other calls have written meanwhile.
    pub fn refresh(&mut self) {
        self.record = self.file.read();
    }

    /// Remembers something by which a restored store is noticed. A failure is a warning.
    pub fn remember(&mut self, change: impl FnOnce(&mut R)) {
        if let Err(error) = self.write(change) {
            let path = self.file.path().display();
            warn!(
                "{path} cannot be written, so this node may not notice a restored store: {error}"
            );
        }
    }

    /// Remembers a hint. A failure is a line in the verbose log. Nothing else changes for this call:
    /// it judges the answer at hand by what was known before the request, and the file may have
    /// later claims of others.
    pub fn remember_hint(&mut self, change: impl Fn(&mut R)) {
        change(&mut self.record);
        if let Err(error) = self.file.change(change) {
            debug!("cannot write {}: {error}", self.file.path().display());
        }
    }

    /// Remembers that a person accepts the store as it is.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn accept(&mut self, change: impl FnOnce(&mut R)) -> Result<()> {
        self.write(change).map_err(|error| {
            Error::io(format!("cannot write {}", self.file.path().display()), error)
                .advise("check space, rights and mount of the state folder, and call again")
        })
    }

    fn write(&mut self, change: impl FnOnce(&mut R)) -> io::Result<()> {
        self.record = self.file.change(change)?;
        Ok(())
    }
}

/// The error that a store may lack leases of this node, for the reason in the message.
pub fn untrusted(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise(format!("addresses in use may count as free there: {REASSERT}"))
}

/// The advice to claim the leases of all nodes again.
pub const REASSERT: &str = "run `ipam-delegated reassert --claim-only --yes` on every node and, \
    after that has succeeded on all of them, `ipam-delegated reassert --yes` on every node";

/// For how long a refusal counts, in milliseconds: rights may be granted later.
const REFUSAL: u64 = 600_000;

/// Whether a store's refusal of keys beside the pools still counts: it was noted at this time in
/// milliseconds since 1970, within the last ten minutes by a clock that may have been set back.
pub fn is_refusal_recent(noted: u64) -> bool {
    now().abs_diff(noted) < REFUSAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn a_hint_does_not_bring_the_claims_that_other_calls_note_meanwhile() {
        let folder = TempDir::new().unwrap();
        let open = || StoreMemory::<Vec<u64>>::read(folder.path().join("a/store.json"));
        open().remember(|record| record.push(1));
        let (mut asking, mut other) = (open(), open());
        other.remember(|record| record.push(2));
        asking.remember_hint(|record| record.push(3));
        assert_eq!(asking.record(), &[1, 3]);
        asking.refresh();
        assert_eq!((asking.record(), open().record()), (&vec![1, 2, 3], &vec![1, 2, 3]));
    }

    #[test]
    fn a_refusal_counts_for_ten_minutes_also_after_the_clock_was_set() {
        let minutes = |minutes: u64| minutes * 60_000;
        assert!(is_refusal_recent(now()));
        assert!(is_refusal_recent(now() - minutes(9)) && is_refusal_recent(now() + minutes(9)));
        assert!(!is_refusal_recent(now() - minutes(11)) && !is_refusal_recent(now() + minutes(11)));
        assert!(!is_refusal_recent(0) && !is_refusal_recent(u64::MAX));
    }
}
