//! The plugins that the allocators of a cluster stand beside, played request by request.
//!
//! A player sends to a real server what the old program would have sent, in its order, so that a
//! test can stop it between any two requests. What the programs do was read in their sources and
//! recorded from their runs: cni-ipam-etcd at 51da6318, host-etcd at eb4ddafb of ACXLM/plugins.

mod allocator;
mod cni_ipam_etcd;
mod host_etcd;
pub mod passcod;
mod ranges;
mod steps;
pub mod whereabouts;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use crate::etcd::{Etcd, Requests};
use allocator::Store;
use ranges::RangeSet;

/// A call of one of them: the addresses in order, or what it would have printed.
pub type Call = steps::Call<Done, Vec<IpAddr>, String>;

type Steps = steps::Steps<Requests, Done>;
type Ended = steps::Ended<String>;
type Played<T> = steps::Played<T, String>;

/// An old plugin with the configuration of a network.
#[derive(Clone, Debug)]
pub struct Old {
    system: System,
    requests: Requests,
    sets: Vec<RangeSet>,
    pause: Duration,
    patience: Duration,
    delay: Duration,
}

#[derive(Clone, Debug)]
enum System {
    CniIpamEtcd { network: String },
    HostEtcd,
}

impl Old {
    /// cni-ipam-etcd, with `ipam.ranges`.
    #[track_caller]
    pub fn cni_ipam_etcd(etcd: &Etcd, network: &str, ranges: &Value) -> Self {
        let system = System::CniIpamEtcd { network: network.to_owned() };
        Self::of(system, etcd, ranges, cni_ipam_etcd::PAUSE)
    }

    /// host-etcd, with `ipam.ranges`. The name of the network means nothing to it.
    #[track_caller]
    pub fn host_etcd(etcd: &Etcd, ranges: &Value) -> Self {
        Self::of(System::HostEtcd, etcd, ranges, host_etcd::PAUSE)
    }

    #[track_caller]
    fn of(system: System, etcd: &Etcd, ranges: &Value, pause: Duration) -> Self {
        let (requests, sets) = (etcd.requests(), ranges::parse(ranges));
        let patience = cni_ipam_etcd::PATIENCE;
        Self { system, requests, sets, pause, patience, delay: Duration::ZERO }
    }

    /// How long it waits between two tries for the lock.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// After how long cni-ipam-etcd goes on without the lock, instead of 40 seconds: the pauses
    /// together.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long it takes before each of its requests.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// An ADD, which has not begun yet.
    pub fn add(&self, container: &str) -> Call {
        self.add_requesting(container, &[])
    }

    /// An ADD for these addresses.
    #[track_caller]
    pub fn add_requesting(&self, container: &str, addresses: &[&str]) -> Call {
        let wanted = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.call(container, move |store, sets, id| allocator::add(store, sets, id, wanted))
    }

    /// A DEL, which has not begun yet. It gives no address.
    pub fn del(&self, container: &str) -> Call {
        self.call(container, |store, sets, id| allocator::del(store, sets, id).map(|()| vec![]))
    }

    fn call(
        &self,
        container: &str,
        verb: impl FnOnce(&mut dyn Store, &[RangeSet], &str) -> Played<Vec<IpAddr>> + Send + 'static,
    ) -> Call {
        let Self { system, requests, sets, pause, patience, delay } = self.clone();
        let container = container.to_owned();
        Call::new(requests, delay, move |steps| match system {
            System::CniIpamEtcd { network } => {
                let mut store = cni_ipam_etcd::Keys::new(steps, &network, &sets, [pause, patience]);
                verb(&mut store, &sets, &container)
            }
            System::HostEtcd => verb(&mut host_etcd::Keys::new(steps, pause), &sets, &container),
        })
    }
}

/// What a request did, with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    Granted {
        seconds: u32,
        lease: i64,
    },
    /// A lock's key is there now.
    Created(String),
    /// A lock's key was there already.
    Refused(String),
    /// Its own key below a lock's prefix is there now, after others.
    Queued(String),
    /// Others below a lock's prefix are older still.
    Waited(String),
    /// No other below a lock's prefix is older any more.
    Passed(String),
    Read(String),
    Listed(String),
    Put(String),
    Deleted(String),
    Revoked,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { seconds, .. } => write!(f, "grant {seconds}"),
            Self::Created(key) => write!(f, "create {key}"),
            Self::Refused(key) => write!(f, "create {key}: refused"),
            Self::Queued(key) => write!(f, "create {key}: queued"),
            Self::Waited(prefix) => write!(f, "list {prefix}: waits"),
            Self::Passed(prefix) => write!(f, "list {prefix}: passed"),
            Self::Read(key) => write!(f, "get {key}"),
            Self::Listed(prefix) => write!(f, "list {prefix}"),
            Self::Put(key) => write!(f, "put {key}"),
            Self::Deleted(key) => write!(f, "delete {key}"),
            Self::Revoked => f.write_str("revoke"),
        }
    }
}

impl Steps {
    fn put(&self, key: &str, value: &str) -> Played<()> {
        self.step(|requests| requests.put(key, value), |()| Done::Put(key.to_owned()))
    }

    /// The value of a key.
    fn get(&self, key: &str) -> Played<Option<String>> {
        let entry = self.step(|requests| requests.get(key), |_| Done::Read(key.to_owned()))?;
        Ok(entry.map(|entry| entry.value))
    }

    fn delete(&self, key: &str) -> Played<()> {
        self.step(|requests| requests.delete(key), |_| Done::Deleted(key.to_owned())).map(drop)
    }

    fn grant(&self, seconds: u32) -> Played<i64> {
        let granted = |lease: &i64| Done::Granted { seconds, lease: *lease };
        self.step(|requests| requests.grant(seconds), granted)
    }
}
