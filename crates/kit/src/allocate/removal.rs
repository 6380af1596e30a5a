//! The outcome of a removal that was not done, or done in part.

use std::net::IpAddr;

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
        let released = listed(removed.iter().map(|entry| entry.lease.address.addr()));
        error.within(format_args!("released only {released}"))
    })?;
    Ok(removed)
}

/// The error that the store did not confirm the release of these addresses.
pub fn may_be_held(addresses: impl IntoIterator<Item = IpAddr>) -> Error {
    let message =
        format!("outcome unknown: these addresses may still be held: {}", listed(addresses));
    Error::new(ErrorCode::TRY_AGAIN, message).advise("call again")
}

fn listed(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    Error::listed(addresses.into_iter().map(|address| address.to_string()), ", ")
}
