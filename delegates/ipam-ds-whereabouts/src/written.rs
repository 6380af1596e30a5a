//! Values with the place where they are written, for errors.

use std::fmt;

use ipam_kit::Error;
use ipam_kit::cni::address::Malformed;

/// A value, and where it is written.
#[derive(Clone, Debug)]
pub(crate) struct Written<T> {
    pub(crate) value: T,
    pub(crate) place: WrittenPlace,
}

/// A place in the network configuration or in the flat file.
#[derive(Clone, Debug)]
pub(crate) struct WrittenPlace {
    path: String,
    /// Whether errors may show the text at this place. The author of a network names the flat file,
    /// and may not be allowed to read it.
    shows_text: bool,
}

impl WrittenPlace {
    /// A key of `ipam`.
    pub(crate) fn of_ipam(key: &str) -> Self {
        Self { path: format!("ipam.{key}"), shows_text: true }
    }

    /// A key of a flat file.
    pub(crate) fn of_file(file: &str, key: &str) -> Self {
        Self { path: format!("{file}.{key}"), shows_text: false }
    }

    /// An element or a member of the value here, as in `[0]` or `.gateway`.
    pub(crate) fn inner(&self, step: impl fmt::Display) -> Self {
        Self { path: format!("{}{step}", self.path), ..self.clone() }
    }

    /// An error about the value here.
    pub(crate) fn error(&self, message: impl fmt::Display) -> Error {
        Error::config(&self.path, message)
    }

    /// The error of a text here that is not what is expected.
    pub(crate) fn malformed(&self, error: &Malformed, expected: &str) -> Error {
        self.shown(self.error(error), expected)
    }

    /// An error about the text here, or one without the text.
    pub(crate) fn shown(&self, error: Error, expected: &str) -> Error {
        if self.shows_text { error } else { self.error(format!("expected {expected}")) }
    }
}

impl fmt::Display for WrittenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}
