//! The store by the present configuration, if a record names it by another one.
//!
//! The recorded servers may be gone, so the present ones are tried first. Servers of another store
//! would answer that nothing is held, so they are used only if they prove to have the recorded one.

use std::time::Duration;

use log::{debug, warn};

use crate::cni::Network;
use crate::delegate::{Deadline, Request};
use crate::error::Result;

/// The time for the proof: at most this long, and at most this part of the time that is left.
const LONGEST: Duration = Duration::from_secs(3);
const PART: u32 = 3;

/// Opens the store by the present configuration; `None` if the configuration has not changed since
/// the record, or without a proof: then the recorded one is used.
///
/// `read` returns the present settings and the names of its servers. It fails for settings that
/// cannot lead to the recorded store. `prove` asks the servers until the deadline, and returns the
/// opened store if it is the recorded one.
pub fn present_store<S, T>(
    request: &Request,
    read: impl FnOnce(&Network) -> Result<(S, String)>,
    prove: impl FnOnce(S, Deadline) -> Result<Option<T>>,
) -> Option<T> {
    let (settings, servers) = match read(&request.present()?) {
        Ok(present) => present,
        Err(error) => {
            debug!("ignores the servers of the present configuration: {}", error.in_full());
            return None;
        }
    };
    let time = LONGEST.min(request.deadline.left() / PART);
    let reason = match prove(settings, Deadline::after(time)) {
        Ok(Some(store)) => {
            debug!("uses the servers of the present configuration: {servers}");
            return Some(store);
        }
        Ok(None) => "no proof that these servers have the recorded store".to_owned(),
        Err(error) => error.in_full(),
    };
    warn!("uses the recorded servers, not those of the present configuration: {servers}: {reason}");
    None
}
