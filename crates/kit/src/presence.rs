//! What a look for something told.

use crate::error::{Error, Result};

/// What is known of something that may be there: a record, a lease, a file.
///
/// "I saw nothing" is none of these. A look that may have missed something (a stale read, a listing
/// that rights have filtered, a window) must be confirmed before it may become [`Absent`](Self::Absent),
/// and only `Absent` lets a release succeed.
#[derive(Debug)]
pub enum Presence<T> {
    /// It is there.
    Held(T),
    /// Surely nothing is there.
    Absent,
    /// It could not be read, so that nothing is known.
    Unreadable(Error),
}

impl<T> Presence<T> {
    /// What is there, `None` where surely nothing is.
    ///
    /// # Errors
    /// It could not be read.
    pub fn known(self) -> Result<Option<T>> {
        match self {
            Self::Held(held) => Ok(Some(held)),
            Self::Absent => Ok(None),
            Self::Unreadable(error) => Err(error),
        }
    }
}
