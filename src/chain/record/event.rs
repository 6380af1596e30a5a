use std::ops::Not;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::program::ProgramSource;
use super::failure::FailureReason;
use super::workload::Workload;
use ipam_kit::cni::IpConfig;
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::host::parse_duration;

/// The time of an event, in milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// One line of a record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// An ADD begins.
    Attempt(AttemptHeader),
    /// A delegate that may take a lease is about to run.
    Running(Run),
    /// The ADD succeeded: one grant for each delegate announced, in order.
    Held(Held, Vec<Granted>),
    /// The ADD failed.
    Failed(Failed, LastRun),
    /// A DEL released everything, but a claim may still commit.
    Released(Released),
    /// An operator has forgotten it: its DEL releases nothing. Its members are all of newer
    /// programs.
    Forgotten(Map<String, Value>),
    /// An event of a newer program: its line, without the newline.
    Unknown(String),
}

/// The circumstances of an ADD.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(tag = "event", rename = "attempt", rename_all = "camelCase")]
pub(crate) struct AttemptHeader {
    /// When, in milliseconds since 1970.
    pub time: u64,
    /// The chain's process.
    pub pid: u32,
    /// The boot it ran in.
    pub boot: String,
    /// The node as the leases name it.
    pub node: String,
    pub netns: String,
    pub cni_version: String,
    /// The delegates planned, in order.
    pub chain: Vec<String>,
    /// The pod or allocation that the runtime named.
    #[serde(rename = "cniArgs", default, skip_serializing_if = "Workload::is_empty")]
    pub workload: Workload,
    /// When the first of several began that a compaction has merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// An earlier record could not be read: what it held may be in use.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub after_unreadable: bool,
    /// `reassert` made it: it claims leases of another store in this one.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub reasserted: bool,
    /// Members of newer programs.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A delegate with all it needs to be run again, for a DEL.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(tag = "event", rename = "running", rename_all = "camelCase")]
pub(crate) struct Run {
    pub delegate: String,
    /// Its program at the time, for calls that come without `CNI_PATH`.
    pub program: String,
    /// The section `ipam` as the delegate got it.
    pub ipam: Map<String, Value>,
    /// The pools it was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<Value>>,
    /// The configuration's `args`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// `runtimeConfig.ipRanges` as the delegate got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_ranges: Option<Value>,
    /// Where that program is found again.
    #[serde(rename = "fixed", default, skip_serializing_if = "ProgramSource::is_cni_path")]
    pub source: ProgramSource,
    /// The network configuration names the store in `ipam`: selectors chose only addresses.
    #[serde(rename = "configured", default, skip_serializing_if = "Not::not")]
    pub store_is_configured: bool,
    /// Members of newer programs.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The success of an ADD.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Held {
    pub time: u64,
    /// The result the runtime got.
    pub result: Value,
    /// Members of newer programs.
    pub extra: Map<String, Value>,
}

/// The addresses and leases that one delegate gave.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Granted {
    pub delegate: String,
    /// Addresses with prefix length.
    pub ips: Vec<String>,
    /// Static addresses that it answered, which no store holds.
    #[serde(rename = "static", default, skip_serializing_if = "Vec::is_empty")]
    pub static_ips: Vec<String>,
    /// Its own words about its leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<Value>,
    /// Its store did not answer a try before the one that gave: a claim may still commit.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub unsure: bool,
    /// Members of newer programs.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The failure of an ADD.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Failed {
    pub time: u64,
    /// A delegate did not report what it did: its claim may still commit.
    pub unsure: bool,
    /// `None` in the record of an older program.
    pub reason: Option<FailureReason>,
    /// Members of newer programs.
    pub extra: Map<String, Value>,
}

/// How much the delegate that a failed ADD announced last may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastRun {
    /// It may hold a lease.
    #[default]
    MayHold,
    /// It could not be started, so it holds nothing.
    NotRun,
    /// It reported its failure, and its DEL succeeded: it holds nothing.
    Refused,
}

/// A DEL after which a claim may still commit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(tag = "event", rename = "released", rename_all = "camelCase")]
pub(crate) struct Released {
    pub time: u64,
    /// When its DEL is due once more, in milliseconds since 1970.
    pub due: u64,
    /// Members of newer programs.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How long after a DEL a claim of a killed ADD may still commit, in milliseconds.
pub(crate) const UNSURE_FOR: u64 = 60_000;

impl Failed {
    /// A failure that happens now, after which no claim can commit.
    pub(crate) fn of(reason: FailureReason) -> Self {
        Self { time: now(), reason: Some(reason), ..Self::default() }
    }
}

impl Released {
    /// Whether its DEL is due once more at `now`.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        is_due(self.due, now)
    }
}

/// Whether a time has come. One further off than any that was ever set is of a clock that has been
/// set back since.
pub(crate) fn is_due(due: u64, now: u64) -> bool {
    due <= now || due > now.saturating_add(UNSURE_FOR)
}

impl Granted {
    /// The static addresses that it answered, without their gateways.
    pub(crate) fn static_addresses(&self) -> Vec<IpConfig> {
        let networks = self.static_ips.iter().filter_map(|ip| parse_cidr(ip).ok());
        networks.map(|network| IpConfig::new(network, None)).collect()
    }
}

impl Run {
    /// The time that its configuration gives it.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        parse_duration(self.ipam.get("timeout")?.as_str()?)
    }

    /// Whether one DEL serves both: they differ at most in the path of a program found by name.
    pub(crate) fn owes_the_same(&self, other: &Self) -> bool {
        let mut other = other.clone();
        if self.source.is_cni_path() {
            other.program.clone_from(&self.program);
        }
        other.store_is_configured = self.store_is_configured;
        *self == other
    }
}
