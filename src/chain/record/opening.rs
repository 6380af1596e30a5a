//! Opening the file of a record, and why that fails.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};

use super::lines::FORMAT;
use ipam_kit::error::{Error, ErrorCode};
use ipam_kit::host::{make_private_folder, open_own};

/// The flags that open a record for writing.
pub(super) const APPEND: OFlags = OFlags::RDWR.union(OFlags::APPEND);

/// Opens the record for appending, or makes it and its folder.
pub(super) fn make_file(path: &Path) -> io::Result<File> {
    for _ in 0..100 {
        match open_own(path, APPEND | OFlags::CREATE, 0o600) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Another process may remove the folder while it is made, or right after.
                let vanished = [ErrorKind::NotFound, ErrorKind::AlreadyExists];
                match make_private_folder(path.parent().unwrap_or(Path::new("/"))) {
                    Err(error) if !vanished.contains(&error.kind()) => return Err(error),
                    _ => {}
                }
            }
            Err(error) => return Err(error),
            Ok(file) => return inherited(&file),
        }
    }
    Err(io::Error::new(ErrorKind::NotFound, "its folder keeps being removed"))
}

/// An existing record.
pub(super) fn open_file(path: &Path, append: bool) -> io::Result<File> {
    let flags = if append { APPEND } else { OFlags::RDONLY };
    open_own(path, flags, 0).and_then(|file| inherited(&file))
}

/// Whether the file surely does not exist: no file can have such a name, or be below another file.
pub(super) fn is_absent(error: &io::Error) -> bool {
    let kinds = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::InvalidFilename];
    kinds.contains(&error.kind())
}

/// Whether something else has the name of a record: a link, a folder or a FIFO. `open_own` reports
/// these without an error number.
pub(super) fn is_something_else(error: &io::Error) -> bool {
    error.kind() == ErrorKind::IsADirectory || error.raw_os_error().is_none()
}

/// The same file on a descriptor that delegates inherit, with a number that a script's own
/// redirections do not reach.
pub(super) fn inherited(file: &File) -> io::Result<File> {
    let high = match rustix::io::fcntl_dupfd_cloexec(file, 100) {
        // Under a limit of that many descriptors the lowest number must do.
        Err(Errno::INVAL) => rustix::io::fcntl_dupfd_cloexec(file, 3)?,
        other => other?,
    };
    rustix::io::fcntl_setfd(&high, FdFlags::empty())?;
    Ok(high.into())
}

/// Why a record could not be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// Another call holds it.
    Busy,
    Opening(io::Error),
    /// It may be read by the next call.
    Reading(io::Error),
    /// A newer program wrote it. This is its format.
    Newer(String),
}

impl OpenError {
    /// The error of the call.
    pub(super) fn at(self, path: &Path) -> Error {
        let path = path.display();
        match self {
            Self::Busy => {
                let message = format!("another call holds the attachment record {path}");
                Error::new(ErrorCode::TRY_AGAIN, message).advise(format!(
                    "call again; if the error persists, a delegate hangs: `fuser -v {path}` shows the process"
                ))
            }
            Self::Opening(error) => {
                let advice = match error.kind() {
                    ErrorKind::InvalidFilename => {
                        "shorten the container id or network name to 255 bytes"
                    }
                    _ => "the state folder must be writable by root and not full",
                };
                let message = format!("cannot open the attachment record {path}");
                Error::new(ErrorCode::RECORD, message).caused_by(error).advise(advice)
            }
            Self::Reading(error) => {
                let message = format!("cannot read the attachment record {path}");
                Error::new(ErrorCode::RECORD, message)
                    .caused_by(error)
                    .advise("check the disk of the state folder; the record is unchanged")
            }
            Self::Newer(format) => {
                let version = env!("CARGO_PKG_VERSION");
                let message = format!(
                    "the attachment record {path} has format {format}, and ipam-delegated {version} reads formats up to {FORMAT}"
                );
                Error::new(ErrorCode::RECORD, message).advise(
                    "upgrade ipam-delegated to the version that wrote the record, or a newer one; the record is unchanged",
                )
            }
        }
    }
}

/// The error of a file that is not a valid record.
pub(super) fn unreadable(
    path: &Path,
    reason: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    let message = format!("the attachment record {} cannot be read", path.display());
    Error::new(ErrorCode::RECORD, message).caused_by(reason)
}
