use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::own::{make_private_folder, open_folder};

/// Locks a file for this process alone; false if another process holds the lock until `give_up`.
///
/// A kernel's waiting lock has no time limit, and its holder may have been stopped.
///
/// # Errors
/// The file system knows no locks.
pub fn lock(file: &File, give_up: Instant) -> io::Result<bool> {
    let mut pause = Duration::from_micros(200);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= give_up => return Ok(false),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
        }
    }
}

/// How long another process may have a folder locked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a folder and locks it for this process alone until the file is dropped; one that is
/// missing is made, for its owner alone.
///
/// # Errors
/// It cannot be opened or made, or locked by another process for more than a second.
pub fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = match open_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_private_folder(path)?;
            open_folder(path)?
        }
        other => other?,
    };
    if lock(&folder, Instant::now() + PATIENCE)? {
        return Ok(folder);
    }
    Err(io::Error::other("locked by another process for more than 1s"))
}
