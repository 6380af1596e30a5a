//! The outcome of a removal that was not done, or done in part.

use super::Lease;
use super::ledger::Entry;
use crate::error::{Error, ErrorCode, Result};

/// Ends [`Ledger::remove`](super::Ledger::remove): the removed entries.
///
/// # Errors
/// Something failed. The error names the entries that were removed.
pub fn removed_unless_failed(
    removed: Vec<Entry>,
    failed: impl IntoIterator<Item = Error>,
) -> Result<Vec<Entry>> {
    Error::join(failed).map_err(|error| {
        if removed.is_empty() {
            return error;
        }
        let released = addresses(removed.iter().map(|entry| &entry.lease));
        error.within(format_args!("released only {released}"))
    })?;
    Ok(removed)
}

/// The error that the store did not confirm a release of these leases.
pub fn may_be_held<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Error {
    let message =
        format!("outcome unknown: these addresses may still be held: {}", addresses(leases));
    Error::new(ErrorCode::TRY_AGAIN, message).advise("call again")
}

fn addresses<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> String {
    Error::listed(leases.into_iter().map(|lease| lease.address.addr().to_string()), ", ")
}
