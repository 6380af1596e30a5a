//! Addresses that rest after their release.

use std::time::{Duration, SystemTime};

use log::warn;
use serde_json::Value;

use crate::delegate::Request;
use crate::error::{Error, Result};
use crate::host::{is_old, parse_duration_or_zero};

/// How long a freed address rests while others are free, by `ipam.cooldown`; zero by default.
///
/// # Errors
/// ADD and STATUS refuse what is not a time. Other verbs warn, so that a DEL releases.
pub fn cooldown(request: &Request) -> Result<Duration> {
    let told = request.network.ipam().get("cooldown").filter(|told| !told.is_null());
    let Some(told) = told.filter(|_| !request.is_reassert()) else { return Ok(Duration::ZERO) };
    match told.as_str().and_then(parse_duration_or_zero) {
        Some(time) => Ok(time),
        None if request.is_strict() => Err(not_a_time(told)),
        None => {
            warn!("{}", not_a_time(told));
            Ok(Duration::ZERO)
        }
    }
}

/// Whether an address that was freed at a time still rests. One that was freed further ahead than
/// the cooldown does not: the clock was set back since.
pub fn is_resting(freed: SystemTime, cooldown: Duration) -> bool {
    !is_old(freed, cooldown, SystemTime::now())
}

fn not_a_time(told: &Value) -> Error {
    Error::config("ipam.cooldown", format_args!("invalid duration {told}"))
        .advise(r#"expected for example "30s", "5m" or "0s""#)
}

/// The error for a cooldown in a network whose ledger does not know when addresses were freed.
pub(super) fn refused_cooldown() -> Error {
    let message = "this allocator does not know when addresses were freed";
    Error::config("ipam.cooldown", message).advise(
        "remove it, or name ipam-da-local or ipam-da-kube as the allocator; \
         the strategies round-robin and random also reuse addresses late",
    )
}
