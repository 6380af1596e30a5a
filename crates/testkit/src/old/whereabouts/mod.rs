//! Releases of whereabouts with the datastore `kubernetes`, played request by request.
//!
//! As the players in `old`, for a real API server. The sequences were read in the sources, at the
//! tags v0.5.4, v0.7.0 and v0.9.4 of k8snetworkplumbingwg/whereabouts and at 725861cb of
//! vivekskrishna/whereabouts: `IPManagement` and `IPManagementKubernetesUpdate` of
//! `pkg/storage/kubernetes/ipam.go`, in the fork of `pkg/storage/storage.go`.
//!
//! Left out: the discovery of the API by v0.5.4 and the fork, and the repetition of what the
//! server answers with `Retry-After`.

mod election;
mod entries;
mod in_etcd;
mod program;
mod ranges;
mod reconciler;
mod requests;

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use super::steps;
use crate::kube::Client;
use crate::whereabouts::Release;
use program::Program;
use ranges::Range;
use requests::Api;

pub use in_etcd::InEtcd;
pub use reconciler::reconcile;

/// A call: the addresses in order, or what it would have printed. Each request is told as
/// `METHOD KIND/NAME STATUS`, such as `LIST ippools 200`, `PATCH ippools/10.0.0.0-24 422`.
pub type Call = steps::Call<String, Vec<IpAddr>, String>;

type Steps = steps::Steps<Client, String>;
type Ended = steps::Ended<String>;
type Played<T> = steps::Played<T, String>;

/// `leader_retry_period`.
const PAUSE: Duration = Duration::from_millis(500);

/// `types.AddTimeLimit` and `types.DelTimeLimit`: how long a call waits for the lease.
const ADD_LIMIT: Duration = Duration::from_secs(120);
const DEL_LIMIT: Duration = Duration::from_secs(60);

/// A release with the configuration of a network.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    release: Release,
    client: Client,
    namespace: String,
    ranges: Vec<Range>,
    network: String,
    reserves_by_address: bool,
    overlap: bool,
    pause: Duration,
    delay: Duration,
}

impl Whereabouts {
    /// A release, the namespace of its kubeconfig's context, and `range`, `range_start`,
    /// `range_end` and `exclude` of its section `ipam`, or an array of `ipRanges` (from v0.6 on).
    #[track_caller]
    pub fn new(release: Release, client: &Client, namespace: &str, ranges: &Value) -> Self {
        assert_ne!(release, Release::V04, "v0.4 has no player: the fork is v0.4.2");
        let ranges: Vec<Range> = match ranges {
            Value::Array(list) => list.iter().map(Range::parse).collect(),
            one => vec![Range::parse(one)],
        };
        assert!(ranges.len() == 1 || is_late(release), "{release:?} has one range");
        Self {
            release,
            client: client.clone(),
            namespace: namespace.to_owned(),
            ranges,
            network: String::new(),
            reserves_by_address: false,
            overlap: true,
            pause: PAUSE,
            delay: Duration::ZERO,
        }
    }

    /// `network_name`, which v0.5.4 and the fork ignore.
    pub fn network_name(mut self, name: &str) -> Self {
        self.network = name.to_owned();
        self
    }

    /// As v0.6.2, which puts the network into the names of pools, and not into those of reservations.
    pub fn reserving_by_address(mut self) -> Self {
        self.reserves_by_address = true;
        self
    }

    /// `enable_overlapping_ranges`, which the fork ignores.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.overlap = overlap;
        self
    }

    /// How long it waits between two looks at a lease that another holds, instead of 500 ms.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// How long it takes before each of its requests.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// An ADD, which has not begun yet, of the pod `NAMESPACE/NAME`. The fork alone works without
    /// a pod, as `""`.
    pub fn add(&self, container: &str, ifname: &str, podref: &str) -> Call {
        self.call([container, ifname, podref], |program| {
            let failed = |error: String| Ended::Failed(format!("error at storage engine: {error}"));
            program.lead(ADD_LIMIT, Program::add)?.map_err(failed)
        })
    }

    /// A DEL, which has not begun yet. It prints neither address nor error.
    pub fn del(&self, container: &str, ifname: &str, podref: &str) -> Call {
        self.call([container, ifname, podref], |program| {
            let _swallowed = program.lead(DEL_LIMIT, Program::del)?;
            Ok(Vec::new())
        })
    }

    fn call(
        &self,
        owner: [&str; 3],
        verb: impl FnOnce(&Program) -> Played<Vec<IpAddr>> + Send + 'static,
    ) -> Call {
        let old = self.clone();
        let owner = owner.map(str::to_owned);
        Call::new(self.client.clone(), self.delay, move |steps| {
            let api = Api::new(steps, old.release, &old.namespace);
            verb(&Program { old, owner, api })
        })
    }
}

/// Whether a release is one since v0.6: several ranges, names of networks.
fn is_late(release: Release) -> bool {
    matches!(release, Release::V07 | Release::V094)
}
