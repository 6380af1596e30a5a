use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

/// Locks a file for this process alone; false when somebody else holds it until `give_up`.
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
