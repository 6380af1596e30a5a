//! Errors, and the only table between their numbers and meanings.

use std::error::Error as StdError;
use std::fmt;

/// The number of an error, as the runtime reads it.
///
/// 1 to 99 belong to the [CNI specification], 100 and up to plugins.
///
/// [CNI specification]: https://github.com/containernetworking/cni/blob/spec-v1.1.0/SPEC.md#error
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ErrorCode(u32);

/// A row of the table of error codes, as `docs/errors.md` shows it.
#[derive(Clone, Copy, Debug)]
pub struct ErrorCodeRow {
    /// The number.
    pub code: ErrorCode,
    /// The name.
    pub name: &'static str,
    /// The meaning, in one sentence or two.
    pub meaning: &'static str,
    /// The advice to an operator.
    pub advice: &'static str,
    /// A message with this code; empty if only standard plugins answer the code.
    pub example: &'static str,
}

macro_rules! codes {
    ($(#[doc = $meaning:literal] $name:ident = $number:literal, $advice:literal, $example:literal;)+) => {
        impl ErrorCode {
            $(#[doc = $meaning] pub const $name: Self = Self($number);)+

            /// Every code of this project. No program reads it: `docs/errors.md` is made from it.
            pub const TABLE: &'static [ErrorCodeRow] = &[$(ErrorCodeRow {
                code: Self::$name,
                name: stringify!($name),
                meaning: $meaning.trim_ascii(),
                advice: $advice,
                example: $example,
            }),+];
        }
    };
}

codes! {
    /// The plugin or the verb does not support the configuration's `cniVersion`.
    INCOMPATIBLE_VERSION = 1,
        "set `cniVersion` to a version that the message names; `CNI_COMMAND=VERSION` lists all",
        "cniVersion: 1.0.7 is not supported";
    /// A field of the configuration is not supported. From standard plugins only.
    UNSUPPORTED_FIELD = 2, "remove the field that the message names, or use another plugin", "";
    /// The container is unknown.
    UNKNOWN_CONTAINER = 3,
        "check the container id: `ipam-delegated attachments` lists the known ones",
        "no record of c1 on prod-web in /var/lib/cni/ipam-delegated";
    /// A `CNI_*` variable, or an address in `CNI_ARGS`, is missing or invalid.
    INVALID_ENVIRONMENT = 4,
        "correct the variable that the message names, in the runtime or in the pod's arguments",
        "required env variables [CNI_NETNS] missing for ADD";
    /// A file, a folder or a process cannot be used.
    IO = 5,
        "check the path in the message: rights, free space, mount",
        "ipam.resolvConf: cannot read /etc/resolv.conf";
    /// The input is not one JSON object.
    DECODE = 6,
        "send one network configuration: a JSON object with `cniVersion`, `name` and `ipam`",
        "the network configuration on stdin is empty";
    /// The network configuration, or a file of the host, is invalid at the path in the message.
    INVALID_CONFIG = 7,
        "correct the key at this path; `ipam-delegated lint NETWORK` checks the whole configuration",
        "ipam.ranges[0][0].rangeStat: unknown key (did you mean rangeStart?)";
    /// A temporary failure: the runtime should call again.
    TRY_AGAIN = 11,
        "call again; if the error persists, check the lock or the server that the message names",
        "the store did not confirm which addresses c1/eth0 on net holds";
    /// STATUS: an ADD would fail.
    UNAVAILABLE = 50,
        "correct the cause in the message; `ipam-delegated lint NETWORK` finds further ones",
        "a pool has no free address";
    /// STATUS: an ADD would fail, and containers may lose their network. From standard plugins only.
    LIMITED = 51, "correct the cause in the message before containers need the network again", "";
    /// A pool has no free address.
    EXHAUSTED = 100,
        "release leases, or add a range to the pool; `ipam-delegated pools NETWORK` shows its use",
        "failed to allocate for range 0: no IP addresses available in range set: 10.77.0.10-10.77.0.15";
    /// The requested address is outside the ranges of the pool, or must not be given.
    NOT_IN_POOL = 101,
        "request an address inside a range of the pool that is neither the gateway nor excluded",
        "prevResult.pools[0]: requested address 10.77.0.1 is the gateway of 10.77.0.1-10.77.0.254";
    /// The requested address is held by another container.
    TAKEN = 102,
        "request another address, or release the one that the message names",
        "failed to allocate for range 0: requested IP address 10.77.0.12 is not available in range set 10.77.0.10-10.77.0.15: it is held by c2/eth0";
    /// A server behind a delegate refused the request, or its answer makes no sense.
    BACKEND = 103,
        "read the server's answer in `details`; check rights, keys and the server's version",
        "cannot parse the answer to GET https://10.0.0.9:8443/pools/blue";
    /// CHECK: the attachment does not hold an address of its result any more.
    NOT_HELD = 104, "re-create the container", "10.77.0.12 is not held by c1/eth0 on net";
    /// ADD: no server behind a delegate could be reached, so nothing was changed.
    UNREACHED = 105,
        "check the server, the network between, and the settings that name it; the next ADD tries again",
        "no rack server answers; https://10.0.0.9:8443: Connection refused";
    /// A delegate broke the contract between delegates, or gave no answer.
    DELEGATE = 110,
        "repair or replace the delegate that the message names",
        "ipam-ds-rack: its answer's pools: expected an array of objects";
    /// A delegate did not end before its deadline and was killed.
    TIMED_OUT = 111,
        "check what the delegate waits for, or raise `ipam.timeout`",
        "ipam-ds-rack: deadline exceeded: not done within 10s";
    /// The addresses of an answer do not fit its pools, or a pool is left unserved.
    UNSERVED = 112,
        "add an allocator (`ipam-da-…`) for each pool; `ipam-delegated explain NETWORK` shows the pools",
        "host-local: the pool \"blue\" (10.77.0.10-10.77.0.15) asks for 10.77.0.12: the answer gives 10.77.0.10";
    /// The record of an attachment cannot be read or written.
    RECORD = 113,
        "check the state folder: rights, free space, mount",
        "cannot write the attachment record /var/lib/cni/ipam-delegated/attachments/net/c1:eth0";
    /// An internal error: a bug in the program.
    INTERNAL = 199, "report it, with the verbose log", "internal error in ipam-ds-rack (bug)";
}

impl ErrorCode {
    /// The code a plugin answered, whatever it means.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number on the wire.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An error with the code that the runtime gets, and with advice.
///
/// `Display` shows the path, if there is one, and the message; [`Error::details`] joins the causes,
/// once, at the edge.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: ErrorCode,
    /// Where the configuration is wrong, as in `ipam.pools[1].name`.
    path: Option<String>,
    message: String,
    advice: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A result whose error carries a CNI code.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a code and a message that says what was expected.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::of(code, shortened(message.into()))
    }

    fn of(code: ErrorCode, message: String) -> Self {
        Self(Box::new(Inner { code, path: None, message, advice: None, source: None }))
    }

    /// The configuration is invalid at `path`, as in `ipam.pools[1].name`.
    pub fn config(path: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self::of(ErrorCode::INVALID_CONFIG, message.to_string()).at(path)
    }

    /// Names the place in the configuration that the message is about. An error keeps its first
    /// path.
    #[must_use]
    pub fn at(mut self, path: impl fmt::Display) -> Self {
        self.0.path.get_or_insert_with(|| path.to_string());
        self
    }

    /// A file or folder could not be used.
    pub fn io(what: impl fmt::Display, error: std::io::Error) -> Self {
        Self::new(ErrorCode::IO, what.to_string()).caused_by(error)
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Adds what the operator can do, after what was advised before.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        let advice = advice.into();
        self.0.advice = Some(match self.0.advice {
            Some(before) => format!("{before}; {advice}"),
            None => advice,
        });
        self
    }

    /// Puts `what` in front of the message, as in `ipam-da-etcd: no endpoint answered`.
    #[must_use]
    pub fn within(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {self}");
        self.0.path = None;
        self
    }

    /// Changes each text: the message, the path, the advice and the causes, which become one.
    #[must_use]
    pub fn map_texts(self, change: impl Fn(String) -> String) -> Self {
        let causes = self.causes();
        let Inner { code, path, message, advice, .. } = *self.0;
        let source = (!causes.is_empty()).then(|| change(causes.join(": ")).into());
        let (path, advice) = (path.map(&change), advice.map(&change));
        Self(Box::new(Inner { code, path, message: change(message), advice, source }))
    }

    /// Replaces the code.
    #[must_use]
    pub fn with_code(mut self, code: ErrorCode) -> Self {
        self.0.code = code;
        self
    }

    /// The code the runtime sees.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Whether it says what the operator can do.
    pub fn has_advice(&self) -> bool {
        self.0.advice.is_some()
    }

    /// The causes and the advice in one line; empty without any.
    pub fn details(&self) -> String {
        let mut text = self.causes().join(": ");
        if let Some(advice) = &self.0.advice {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(advice);
        }
        text
    }

    fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut cause = self.source();
        while let Some(error) = cause {
            causes.push(shortened(error.to_string()));
            cause = error.source();
        }
        causes
    }

    /// Fails when there was a failure: several become one, as [`Error::and`] has it.
    pub fn join(errors: impl IntoIterator<Item = Self>) -> Result<()> {
        let mut errors = errors.into_iter();
        match errors.next() {
            None => Ok(()),
            Some(first) => Err(first.and(errors)),
        }
    }

    /// This failure and those that followed it as one: its code stays, and the message shows the
    /// first ten. Details of this failure that others share are shown once.
    #[must_use]
    pub fn and(self, others: impl IntoIterator<Item = Self>) -> Self {
        let others: Vec<Self> = others.into_iter().collect();
        if others.is_empty() {
            return self;
        }
        let code = self.0.code;
        let others = others.iter().map(|other| match other.details() == self.details() {
            true => other.to_string(),
            false => other.in_full(),
        });
        Self::of(code, Self::listed(std::iter::once(self.in_full()).chain(others), "; "))
    }

    /// A list inside an error: its first ten entries, and how many more there are.
    pub fn listed(entries: impl IntoIterator<Item = String>, between: &str) -> String {
        let mut entries = entries.into_iter();
        let mut text = String::new();
        for (i, entry) in entries.by_ref().take(SHOWN).enumerate() {
            text.push_str(if i == 0 { "" } else { between });
            text.push_str(&entry);
        }
        match entries.count() {
            0 => text,
            more => format!("{text}{between}and {more} more"),
        }
    }

    /// Message and details in one line, for a log or a joined error.
    pub fn in_full(&self) -> String {
        let details = self.details();
        if details.is_empty() { self.to_string() } else { format!("{self}: {details}") }
    }
}

/// How many entries of a list an error shows.
const SHOWN: usize = 10;

/// Bytes of a message that are kept of its beginning, and of its end.
const BEGINNING: usize = 7 * 1024;
const END: usize = 1024;

/// A text that quotes a long value, without its middle.
#[inline(never)]
fn shortened(text: String) -> String {
    let bytes = text.as_bytes();
    if bytes.len() > BEGINNING + END {
        let (beginning, end) = (&bytes[..BEGINNING], &bytes[bytes.len() - END..]);
        let [beginning, end] = [beginning, end].map(String::from_utf8_lossy);
        return format!("{beginning} … {end}");
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.path {
            Some(path) => f.write_str(&shortened(format!("{path}: {}", self.0.message))),
            None => f.write_str(&self.0.message),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|error| error as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_does_not_repeat_the_source() {
        let error =
            Error::io("cannot read /x", std::io::Error::other("no such disk")).advise("mount it");
        assert_eq!(error.to_string(), "cannot read /x");
        assert_eq!(error.details(), "no such disk; mount it");
        assert_eq!(error.in_full(), "cannot read /x: no such disk; mount it");
    }

    #[test]
    fn every_text_of_an_error_can_be_changed() {
        let error = Error::config("a.b", "b").caused_by(Error::new(ErrorCode::IO, "c: b"));
        let changed = error.advise("b or d").map_texts(|text| text.replace('b', "…"));
        assert_eq!(changed.in_full(), "a.…: …: c: …; … or d");
        assert_eq!(changed.code(), ErrorCode::INVALID_CONFIG);
    }

    #[test]
    fn joined_errors_keep_the_first_code_and_show_ten() {
        let joined = Error::join([
            Error::new(ErrorCode::TRY_AGAIN, "a"),
            Error::new(ErrorCode::IO, "b").caused_by("why"),
        ])
        .unwrap_err();
        assert_eq!(joined.code(), ErrorCode::TRY_AGAIN);
        assert_eq!(joined.to_string(), "a; b: why");
        assert!(Error::join([]).is_ok());
        let down = |what: &str| Error::new(ErrorCode::TRY_AGAIN, what).advise("call again");
        assert_eq!(down("a").and([down("b")]).to_string(), "a: call again; b");
        let many = |n: u32| (0..n).map(|i| Error::new(ErrorCode::IO, format!("e{i}")));
        assert!(Error::join(many(10)).unwrap_err().to_string().ends_with("; e8; e9"));
        assert!(Error::join(many(12)).unwrap_err().to_string().ends_with("; e9; and 2 more"));
    }

    #[test]
    fn a_path_is_shown_before_the_message() {
        let error = Error::new(ErrorCode::TAKEN, "bad").at("a").at("b");
        assert_eq!((error.to_string(), error.in_full()), ("a: bad".into(), "a: bad".into()));
        assert_eq!(error.within("x").to_string(), "x: a: bad");
    }

    #[test]
    fn a_long_value_is_not_quoted_whole() {
        let error = Error::config("p", format!("{:?} is not a CIDR", "é".repeat(100_000)));
        let text = error.to_string();
        assert!(
            text.len() < 9000 && text.starts_with("p: \"éé") && text.ends_with("é\" is not a CIDR")
        );
        let cause = Error::new(ErrorCode::IO, "a").caused_by("x".repeat(100_000));
        assert!(cause.in_full().len() < 9000);
        let many = (0..10).map(|i| Error::new(ErrorCode::IO, format!("{i:02000}")));
        assert!(Error::join(many).unwrap_err().to_string().ends_with("09"));
    }

    #[test]
    fn every_number_has_one_meaning() {
        let mut numbers: Vec<_> = ErrorCode::TABLE.iter().map(|row| row.code.number()).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), ErrorCode::TABLE.len());
        assert!(numbers.is_sorted());
    }
}
