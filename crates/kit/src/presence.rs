//! The three answers of a look for something.

use crate::error::{Error, Result};

/// The presence of something that is looked for: a record, a lease, a file.
///
/// "I saw nothing" is not one of these answers. A look that may have missed something (a stale
/// read, a listing that rights have filtered, a window) must be confirmed before it may become
/// [`Absent`](Self::Absent), and only `Absent` lets a release succeed.
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
    /// The thing that is present; `None` if it is certainly absent.
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
