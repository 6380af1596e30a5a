use std::fmt;

use crate::error::{Error, ErrorCode, Result};

/// One interface of one container on a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// The container (`CNI_CONTAINERID`).
    pub container: ContainerId,
    /// The interface inside it (`CNI_IFNAME`).
    pub ifname: IfName,
    /// The network namespace (`CNI_NETNS`); empty on a DEL whose namespace is gone.
    pub netns: String,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.container, self.ifname)
    }
}

macro_rules! name {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The text as the runtime gave it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A container id: letters, digits, `_`, `.`, `-`, and a letter or digit first.
    ///
    /// It is a file name in the state folder, so the rule keeps it inside.
    ContainerId
}

name! {
    /// A network's name, under the same rule as a container id.
    NetworkName
}

name! {
    /// An interface name: 1 to 15 bytes, neither `.` nor `..`, without `/`, `:` or white space.
    IfName
}

impl ContainerId {
    /// Parses `CNI_CONTAINERID`; error 4 otherwise.
    pub fn parse(text: &str) -> Result<Self> {
        if is_plain(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(invalid("CNI_CONTAINERID", text, PLAIN))
    }
}

impl NetworkName {
    /// Parses the configuration's `name`; error 7 otherwise.
    pub fn parse(text: &str) -> Result<Self> {
        if is_plain(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::config("name", format!("invalid network name {text:?}: expected {PLAIN}")))
    }
}

impl IfName {
    /// Parses `CNI_IFNAME`; error 4 otherwise.
    pub fn parse(text: &str) -> Result<Self> {
        let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
        let foreign = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if fits && !text.contains(foreign) {
            return Ok(Self(text.to_owned()));
        }
        Err(invalid("CNI_IFNAME", text, "1 to 15 bytes without '/', ':' or white space"))
    }
}

const PLAIN: &str = "letters, digits, '_', '.' and '-', beginning with a letter or digit";

fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn invalid(variable: &str, text: &str, expected: &str) -> Error {
    Error::new(
        ErrorCode::INVALID_ENVIRONMENT,
        format!("{variable}: invalid value {text:?}: expected {expected}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_a_folder() {
        for text in ["", ".", "..", "../x", "a/b", "-a", "_a", "a b", "a\n", "ä", "a\0"] {
            assert!(ContainerId::parse(text).is_err(), "{text:?}");
            assert!(NetworkName::parse(text).is_err(), "{text:?}");
        }
        for text in ["a", "A.b-c_d", "0123", "a..", "c3f5e1"] {
            assert!(ContainerId::parse(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn interface_names_follow_the_kernel() {
        for text in ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "0123456789abcdef"] {
            assert!(IfName::parse(text).is_err(), "{text:?}");
        }
        for text in ["eth0", "net1@x", "0123456789abcde", "-"] {
            assert!(IfName::parse(text).is_ok(), "{text:?}");
        }
    }
}
