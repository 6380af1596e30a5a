use std::fmt;

/// The verb of a call (`CNI_COMMAND`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Give the attachment addresses.
    Add,
    /// Release what the attachment holds.
    Del,
    /// Tell whether the attachment still holds what ADD answered.
    Check,
    /// Release what no valid attachment holds.
    Gc,
    /// Tell whether an ADD could be served.
    Status,
    /// Name the supported versions.
    Version,
}

impl Verb {
    /// Every verb.
    pub(crate) const ALL: [Self; 6] =
        [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    /// The text on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// Whether the verb is about one attachment.
    pub const fn has_attachment(self) -> bool {
        matches!(self, Self::Add | Self::Del | Self::Check)
    }

    /// The verb of this name, in upper case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == text)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
