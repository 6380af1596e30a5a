//! The state of a call: its objects, and the node's memory of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::{PoolRequest, Strategy, cooldown, known, requested_pools};
use ipam_kit::cni::{NetworkName, Verb};
use ipam_kit::host::Settings;
use ipam_kit::pool::{RangeRules, RangeSet};
use ipam_kit::{Request, Result};
use ipnet::IpNet;

use crate::config::{KubeConfig, KubeSite};
use crate::lease_mark::LeaseMark;
use crate::memory::KubeMemory;
use crate::names::ObjectNames;
use crate::objects::Reservation;
use crate::owner_notes::OwnerNotes;
use crate::pod::Pod;
use crate::pool_lock::PoolLocks;
use crate::present;
use crate::sticky_lease::StickyLease;
use crate::store::ObjectStore;

/// The state of a call.
#[derive(Debug)]
pub(crate) struct LeaseSession {
    pub(crate) store: ObjectStore,
    pub(crate) memory: KubeMemory,
    pub(crate) notes: OwnerNotes,
    pub(crate) locks: PoolLocks,
    pub(crate) names: ObjectNames,
    pub(crate) network: NetworkName,
    /// The uid of the cluster, as soon as an ADD knows it.
    pub(crate) cluster: Option<String>,
    pub(crate) pod: Pod,
    pub(crate) verb: Verb,
    /// Whether each address has a reservation.
    pub(crate) overlap_check: bool,
    /// How long a freed address rests.
    pub(crate) cooldown: Duration,
    /// The addresses of the result that came with a DEL or CHECK.
    pub(crate) result_addresses: BTreeSet<IpAddr>,
    /// The subnets of the pools that the configuration or a selector names.
    pub(crate) subnets: BTreeSet<IpNet>,
    /// Whether the notes of owners count: not after one of them was wrong.
    pub(crate) trusts_notes: bool,
    /// Whether the owner has an entry that this call cannot keep, since another has reserved its
    /// address. The owner's next call looks for it.
    pub(crate) holds_more: bool,
    /// Addresses of changes whose outcome is unknown, which a later change of this call takes if it
    /// can: then at most one of both takes effect.
    pub(crate) unknown: BTreeSet<IpAddr>,
    /// The objects of sticky names that this call has read; `None` for one that does not exist.
    pub(crate) sticky: BTreeMap<String, Option<StickyLease>>,
    /// Whether the server has the pod of this call, as soon as it was asked.
    pub(crate) has_own_pod: Option<bool>,
    /// For how many seconds the requests keep an address after its holder, by the objects of their
    /// names.
    pub(crate) keep: BTreeMap<String, u64>,
    /// Whether a pool of the configuration, or of a selector, has a sticky name.
    pub(crate) is_sticky: bool,
    /// When the call began, in milliseconds since 1970: what a pod's sandbox has taken since then is of
    /// a later one.
    pub(crate) began: u64,
}

impl LeaseSession {
    /// Opens the objects of a call, without a request.
    ///
    /// # Errors
    /// The configuration is invalid, no credentials are found, or the state folder is missing.
    pub(crate) fn open(config: KubeConfig, request: &Request) -> Result<Self> {
        // The kubeconfig of an ADD is used to release what the ADD took.
        let anywhere = Settings::default();
        let host = if request.is_by_record() { &anywhere } else { &request.settings };
        let began = now();
        let recorded = config.site(&request.environment, host);
        let state = request.state_dir()?;
        let network = request.network.name().clone();
        let memory = KubeMemory::open(&state, &network, request.trusts_any_store());
        let (site, kube) = present::open(recorded, request, &memory)?;
        let KubeSite { namespace, names, overlap_check, timeout, .. } = site;
        let marks = known(request).into_iter().filter_map(|lease| LeaseMark::of(&lease));
        let recorded_namespace = marks.map(|mark| mark.namespace).next();
        let namespace = recorded_namespace
            .or(namespace)
            .or_else(|| kube.namespace().map(str::to_owned))
            .unwrap_or_else(|| NAMESPACE.to_owned());
        let left = request.deadline.left();
        Ok(Self {
            locks: PoolLocks::new(&state, &namespace, timeout, left),
            store: ObjectStore::new(kube, namespace),
            memory,
            notes: OwnerNotes::open(&state, &network),
            names,
            network,
            cluster: None,
            pod: Pod::of(request),
            verb: request.verb,
            overlap_check,
            cooldown: cooldown(request)?,
            result_addresses: result_addresses(request),
            subnets: subnets_of(request),
            trusts_notes: true,
            holds_more: false,
            unknown: BTreeSet::new(),
            sticky: BTreeMap::new(),
            has_own_pod: None,
            keep: BTreeMap::new(),
            is_sticky: requested_pools(request).iter().any(|pool| pool.sticky.is_some()),
            began,
        })
    }

    /// Returns the address that this node gave last, for a request that continues after it.
    pub(crate) fn cursor(&self, request: &PoolRequest) -> Option<IpAddr> {
        self.memory.cursor(&self.pool_with_cursor(request)?)
    }

    /// Remembers the address that a request was given.
    pub(crate) fn remember_cursor(&self, request: &PoolRequest, address: IpAddr) {
        if let Some(pool) = self.pool_with_cursor(request) {
            self.memory.remember_cursor(&pool, address);
        }
    }

    /// Returns the pool whose note has the cursor of a request: that of the first range.
    fn pool_with_cursor(&self, request: &PoolRequest) -> Option<String> {
        let set = request.set.as_ref().filter(|_| request.strategy == Strategy::RoundRobin)?;
        set.ranges().first().map(|range| self.pool_of(range.subnet()))
    }

    /// Returns the name of the pool of a subnet.
    pub(crate) fn pool_of(&self, subnet: IpNet) -> String {
        self.names.pool(subnet)
    }

    /// Reads the reservation of an address; `None` if it has none.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn read_reservation(&mut self, address: IpAddr) -> Result<Option<Reservation>> {
        self.store.read_reservation(&self.names.reservation(address))
    }
}

/// The namespace of objects if nothing names another one, as whereabouts has it.
const NAMESPACE: &str = "kube-system";

/// Returns the subnets of a pool's ranges.
pub(crate) fn subnets(set: &RangeSet) -> BTreeSet<IpNet> {
    set.ranges().iter().map(|range| range.subnet().trunc()).collect()
}

/// Returns the subnets of the ranges of requests.
pub(crate) fn subnets_requested(requests: &[PoolRequest]) -> BTreeSet<IpNet> {
    requests.iter().filter_map(|request| request.set.as_ref()).flat_map(subnets).collect()
}

fn subnets_of(request: &Request) -> BTreeSet<IpNet> {
    let pools = requested_pools(request);
    let sets =
        pools.iter().filter_map(|pool| pool.range_set(RangeRules::ANY, "ipam").ok().flatten());
    sets.flat_map(|set| subnets(&set)).collect()
}

fn result_addresses(request: &Request) -> BTreeSet<IpAddr> {
    let result = request.prev_result().unwrap_or_default();
    result.ips.iter().map(|ip| ip.address.addr()).collect()
}
