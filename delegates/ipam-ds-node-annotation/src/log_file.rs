//! The log that the host's file names, with a line for each call.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ipam_delegated::Result;
use log::debug;
use rustix::fs::OFlags;

/// Adds what a call was about, or why it failed, and hands its outcome on.
pub fn logged<T>(file: Option<&Path>, about: &str, outcome: Result<T>) -> Result<T> {
    let Some(file) = file else { return outcome };
    let line = match &outcome {
        Ok(_) => format!("Ipam from annotation: [{about}]\n"),
        Err(error) => format!("ERROR: {}\n", error.in_full()),
    };
    let mut options = OpenOptions::new();
    // A pipe that nobody reads must not be waited for.
    options.append(true).create(true).mode(0o640).custom_flags(OFlags::NONBLOCK.bits() as i32);
    if let Err(error) = options.open(file).and_then(|mut file| file.write_all(line.as_bytes())) {
        debug!("{} cannot be written: {error}", file.display());
    }
    outcome
}
