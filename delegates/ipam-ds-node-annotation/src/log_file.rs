//! The log that the host's file names, with a line for each call.

use std::io::Write;
use std::path::Path;

use ipam_kit::Result;
use ipam_kit::host::open_own;
use ipam_kit::text::visible;
use log::warn;
use rustix::fs::OFlags;

/// Adds a line about a call, or why it failed, and answers its outcome.
pub(crate) fn logged<T>(file: Option<&Path>, about: &str, outcome: Result<T>) -> Result<T> {
    let Some(file) = file else { return outcome };
    let line = match &outcome {
        Ok(_) => format!("Ipam from annotation: [{about}]"),
        Err(error) => format!("ERROR: {}", error.in_full()),
    };
    let line = format!("{}\n", visible(&line));
    let opened = open_own(file, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, 0o640);
    if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        warn!("{} cannot be written: {error}", file.display());
    }
    outcome
}
