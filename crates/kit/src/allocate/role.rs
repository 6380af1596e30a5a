use std::marker::PhantomData;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use log::{debug, warn};
use serde_json::{Map, Value};

use super::requested_pools::RequestedPools;
use super::{KEYS, Lease, Ledger, LedgerAllocator, Owner, PartialRelease, Reach, Scope};
use crate::cni::{IpConfig, IpamResult, Route, ValidAttachments, Verb};
use crate::contract::{DelegateAnswer, Purpose};
use crate::delegate::{CliCall, Delegate, Request};
use crate::error::{Error, ErrorCode, Result};
use crate::host::{Settings, transient_machine_id, volatile_filesystem};
use crate::keys::Key;
use crate::pool::{RangeRules, RangeSet};

/// An allocator over a [`Ledger`], as a [`Delegate`].
#[derive(Clone, Copy, Debug)]
pub struct Allocate<L> {
    ledger: PhantomData<fn() -> L>,
    cli: Option<fn(&CliCall) -> Result<String>>,
}

impl<L> Default for Allocate<L> {
    fn default() -> Self {
        Self { ledger: PhantomData, cli: None }
    }
}

impl<L> Allocate<L> {
    /// An allocator that also answers people, with this function: see [`Delegate::cli`].
    pub fn answering(cli: fn(&CliCall) -> Result<String>) -> Self {
        Self { cli: Some(cli), ..Self::default() }
    }
}

impl<L: Ledger> Delegate for Allocate<L> {
    fn keys(&self) -> Option<Vec<Key>> {
        L::KEYS.map(|keys| vec![Key::All(KEYS), Key::All(keys)])
    }

    fn add(&self, request: &Request) -> Result<IpamResult> {
        let before = request.prev_result()?;
        let requested = RequestedPools::of(request, &before)?;
        requested.check_keys(request, L::KEYS.unwrap_or_default())?;
        requested.require_pools()?;
        // Without a pool for this allocator, the ledger is not opened.
        let Allocated { leases, routes } = match requested.pools[..] {
            [] => Allocated::default(),
            [..] => Self::allocate(request, &requested)
                .map_err(|error| requested.as_written(request, error))?,
        };
        let static_ips = requested.static_ips.clone();
        let (mut result, left) = requested.into_result(before);
        result.ips.extend(leases.iter().map(|lease| IpConfig::new(lease.address, lease.gateway)));
        result.ips.extend(static_ips);
        if let Err(error) = result.fits(request.network.version()) {
            // The answer fails, so the addresses go back.
            return Err(error.and(give_back::<L>(request, leases).err()));
        }
        if result.routes.is_empty() {
            result.routes = routes;
        }
        let unsure = leases.iter().any(|lease| lease.unsure);
        let leases = leases.iter().map(serde_json::to_value).collect::<Result<_, _>>();
        let leases = leases.map_err(|error| {
            Error::new(ErrorCode::INTERNAL, "cannot encode a lease as JSON").caused_by(error)
        })?;
        let (pools, leases) = (Some(left), Some(leases));
        DelegateAnswer { pools, leases, unsure, ..DelegateAnswer::default() }.write_to(&mut result);
        Ok(result)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        let partial = partial_release(request)?;
        if partial.as_ref().is_some_and(PartialRelease::is_empty) || gave_no_lease(request) {
            return Ok(None);
        }
        let owner = owner::<L>(request)?;
        let mut allocator = LedgerAllocator::<L>::open(request)?;
        let released = match partial {
            Some(partial) => allocator.release_part(&owner, &partial)?,
            None => allocator.release_all(&owner, &known(request))?,
        };
        released.iter().for_each(|lease| debug!("{owner} released {}", lease.address.addr()));
        Ok(None)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        let owner = owner::<L>(request)?;
        let result = request.prev_result()?;
        let static_ips = request.members().static_addresses()?;
        if let Some(lost) = static_ips.iter().find(|ip| !result.has(ip.address.addr())) {
            return Err(not_held(format!("{} of {owner} is not in prevResult", lost.address)));
        }
        if gave_no_lease(request) {
            return Ok(None);
        }
        let mut allocator = LedgerAllocator::<L>::open(request)?;
        let mut expected = known(request);
        if expected.is_empty() {
            // Without a record, an address inside the pools counts as given by this allocator.
            let sets = sets(&mut allocator, &RequestedPools::of(request, &result)?)?;
            let addresses = result.ips.iter().map(|ip| ip.address.addr());
            let leased =
                addresses.filter(|ip| static_ips.iter().all(|it| it.address.addr() != *ip));
            let inside = leased.filter(|ip| sets.iter().any(|set| set.find(*ip).is_some()));
            expected = inside.map(|ip| Lease::bare(IpNet::from(ip), Value::Null)).collect();
        }
        let held = allocator.held(&owner, &expected)?;
        if expected.is_empty() && held.is_empty() && static_ips.is_empty() {
            return Err(not_held(format!("{owner} holds no address")));
        }
        // If no pool says which of the addresses are this allocator's, the owner's leases do.
        if expected.is_empty() && !result.ips.is_empty() {
            expected.clone_from(&held);
        }
        for address in expected.iter().map(|lease| lease.address.addr()) {
            if !result.has(address) {
                return Err(not_held(format!("{address} of {owner} is not in prevResult")));
            }
            if !held.iter().any(|lease| lease.address.addr() == address) {
                return Err(not_held(format!("{address} is not held by {owner}")));
            }
        }
        Ok(None)
    }

    fn gc(&self, request: &Request, keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        let scope = scope(request)?;
        let released = LedgerAllocator::<L>::open(request)?.gc(&scope, keep)?;
        released.iter().for_each(|lease| debug!("GC of {scope} released {}", lease.address));
        Ok(None)
    }

    fn cli(&self, call: &CliCall) -> Option<Result<String>> {
        self.cli.map(|answer| answer(call))
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        let requested = RequestedPools::of(request, &request.prev_result()?)?;
        requested.check_keys(request, L::KEYS.unwrap_or_default())?;
        if requested.pools.is_empty() && !requested.static_ips.is_empty() {
            return Ok(None);
        }
        let free = LedgerAllocator::<L>::open(request)?
            .ready(&requested)
            .map_err(|error| requested.as_written(request, error))?;
        if free == Some(0) {
            return Err(Error::new(ErrorCode::UNAVAILABLE, "a pool has no free address").advise(
                "release leases of containers that have ended, or enlarge a range of the pool",
            ));
        }
        Ok(None)
    }
}

impl<L: Ledger> Allocate<L> {
    fn allocate(request: &Request, requested: &RequestedPools) -> Result<Allocated> {
        let owner = owner::<L>(request)?;
        if L::REACH == Reach::Cluster {
            warn_of_volatile_identity(request)?;
        }
        let mut allocator = LedgerAllocator::<L>::open(request)?;
        let leases = allocator.allocate(&owner, requested)?;
        let (given, pools) = (leases.len(), requested.pools.len());
        if given != pools {
            let message = format!("allocated {given} leases for {pools} pools of {owner}");
            return Err(Error::new(ErrorCode::INTERNAL, message));
        }
        leases.iter().for_each(|lease| debug!("{owner} holds {}", lease.address));
        let routes = match allocator.gives_default_routes() {
            true => default_routes(&leases),
            false => Vec::new(),
        };
        Ok(Allocated { leases, routes })
    }
}

/// The leases and routes of an ADD.
#[derive(Default)]
struct Allocated {
    leases: Vec<Lease>,
    /// Default routes, for a chain that has no routes.
    routes: Vec<Route>,
}

/// Whether this allocator gives or gave static addresses alone, which no store holds.
fn gave_no_lease(request: &Request) -> bool {
    let members = request.members();
    members.pools().is_ok_and(|pools| pools.is_some_and(<[Value]>::is_empty))
        && members.leases::<Value>().is_ok_and(|leases| leases.is_empty())
        && members.static_addresses().is_ok_and(|ips| !ips.is_empty())
}

/// Releases what an ADD took.
fn give_back<L: Ledger>(request: &Request, mut leases: Vec<Lease>) -> Result<()> {
    leases.retain(|lease| !lease.preexisting);
    if leases.is_empty() {
        return Ok(());
    }
    let taken = PartialRelease { leases, taken: None };
    LedgerAllocator::<L>::open(request)?.release_part(&owner::<L>(request)?, &taken).map(drop)
}

fn owner<L: Ledger>(request: &Request) -> Result<Owner> {
    let attachment = request.attachment()?;
    let scope = scope(request).or_else(|error| match (L::REACH, request.verb) {
        // A DEL needs no disk for an identity that the leases do not name.
        (Reach::Node, Verb::Del | Verb::Check) => {
            debug!("{}", error.in_full());
            Ok(Scope { node: String::new(), network: request.network.name().clone() })
        }
        _ => Err(error),
    })?;
    Ok(Owner { scope, container: attachment.container.clone(), ifname: attachment.ifname.clone() })
}

/// Warns where a reboot or a clone gives the node another identity: its leases in a store of the
/// cluster would be those of an unknown node.
fn warn_of_volatile_identity(request: &Request) -> Result<()> {
    let state = request.state_dir()?;
    if let Some(why) = volatile_filesystem(state.root()) {
        warn!(
            "the state folder {} is on {why}: a reboot deletes this node's identity and records; set stateDir to a folder on a disk",
            state.root().display()
        );
    }
    if request.settings.node.is_none()
        && let Some(why) = transient_machine_id(Path::new("/etc/machine-id"))
    {
        warn!("/etc/machine-id {why}: set node in {}", Settings::PATH);
    }
    Ok(())
}

/// The part of the network that a call is about. The node is the one the chain names, which on a
/// DEL is the one of the record.
///
/// # Errors
/// The chain names none, and the state folder cannot be used for this node's own.
pub fn scope(request: &Request) -> Result<Scope> {
    let told =
        request.network.ipam().get("node").and_then(Value::as_str).filter(|node| !node.is_empty());
    let node = match told {
        Some(node) => node.to_owned(),
        None => request.state_dir()?.node(&request.settings)?.id().to_owned(),
    };
    Ok(Scope { node, network: request.network.name().clone() })
}

/// The leases the chain remembered; if they cannot be read, the store is asked.
pub fn known(request: &Request) -> Vec<Lease> {
    let leases = request.members().leases();
    leases.inspect_err(|error| warn!("{}", error.in_full())).unwrap_or_default()
}

/// The leases that a DEL of the chain's own may release: those of an undo, or those taken between
/// two times. `None` for the runtime's DEL, which releases everything.
///
/// # Errors
/// The purpose or the leases cannot be read. Such a DEL must release nothing.
fn partial_release(request: &Request) -> Result<Option<PartialRelease>> {
    let members = request.members();
    let (after, before) = match members.purpose()? {
        Purpose::Runtime | Purpose::Reassert => return Ok(None),
        Purpose::Undo => {
            let mut leases: Vec<Lease> = members.leases()?;
            leases.retain(|lease| !lease.preexisting);
            return Ok(Some(PartialRelease { leases, taken: None }));
        }
        Purpose::TakenBetween { after, before } => (after, before),
    };
    let from = time(after).and_then(|from| from.checked_sub(CLOCK_MARGIN));
    let to = before.map_or_else(|| Some(SystemTime::now()), time);
    let to = to.and_then(|to| to.checked_add(CLOCK_MARGIN));
    let (Some(from), Some(to)) = (from, to) else {
        return Err(Error::config("prevResult.fence", "time out of range"));
    };
    Ok(Some(PartialRelease { leases: members.leases()?, taken: Some((from, to)) }))
}

/// The kernel's clock for files is some milliseconds behind.
const CLOCK_MARGIN: Duration = Duration::from_millis(50);

fn time(milliseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds))
}

fn not_held(message: String) -> Error {
    Error::new(ErrorCode::NOT_HELD, message).advise("re-create the container")
}

/// The ranges of pools, as far as they can be read: those that the store alone knows, from there.
fn sets<L: Ledger>(
    allocator: &mut LedgerAllocator<L>,
    requested: &RequestedPools,
) -> Result<Vec<RangeSet>> {
    let mut sets = Vec::new();
    for (path, pool) in requested.with_paths() {
        sets.extend(pool.range_set(RangeRules::ANY, path).ok().flatten());
    }
    let without_ranges = requested.with_paths().filter(|(_, pool)| pool.ranges().is_empty());
    let requests = allocator.requests(without_ranges)?;
    sets.extend(allocator.ranges_of(&requests)?);
    Ok(sets)
}

/// A default route for each family of the leases, through the first gateway of the family.
fn default_routes(leases: &[Lease]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for dst in [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())] {
        let is_ipv4 = dst.addr().is_ipv4();
        let of_family = leases.iter().filter(|lease| lease.address.addr().is_ipv4() == is_ipv4);
        let gateways: Vec<Option<IpAddr>> = of_family.map(|lease| lease.gateway).collect();
        if !gateways.is_empty() {
            let gw = gateways.into_iter().flatten().next();
            routes.push(Route { dst, gw, extra: Map::new() });
        }
    }
    routes
}

#[cfg(test)]
mod tests;
