use std::marker::PhantomData;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use log::{debug, warn};
use serde_json::{Map, Value};

use super::requested_pools::RequestedPools;
use super::{KEYS, Lease, Ledger, LedgerAllocator, Owner, Part, Reach, Scope};
use crate::cni::{IpConfig, IpamResult, Keep, Route, Verb};
use crate::contract::{DelegateAnswer, Members, Purpose};
use crate::delegate::{CliCall, Delegate, Request};
use crate::error::{Error, ErrorCode, Result};
use crate::host::{Settings, transient_machine_id, volatile_filesystem};
use crate::keys::Key;
use crate::pool::{Pool, RangeRules, RangeSet};

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
    /// An allocator that answers people, too, by this function: see [`Delegate::cli`].
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
        let asked = RequestedPools::of(request, &before)?;
        asked.judge(request, L::KEYS.unwrap_or_default())?;
        asked.refuse_nothing()?;
        // Nothing is taken, nor is the store asked, where all pools are another's.
        let Given { leases, routes } = match asked.pools[..] {
            [] => Given::default(),
            [..] => self.allocate(request, &asked)?,
        };
        let static_addresses = Members::of_result(&before).static_addresses()?;
        let (mut result, left) = asked.begin(before);
        for lease in &leases {
            result.ips.push(IpConfig::new(lease.address, lease.gateway));
        }
        result.ips.extend(static_addresses);
        if let Err(error) = result.to_json(request.network.version()) {
            // The answer fails, so the addresses go back.
            return Err(error.and(give_back::<L>(request, leases).err()));
        }
        if result.routes.is_empty() {
            result.routes = routes;
        }
        let unsure = leases.iter().any(|lease| lease.unsure);
        let leases = leases.iter().map(serde_json::to_value).collect::<Result<_, _>>();
        let leases = leases.map_err(|error| {
            Error::new(ErrorCode::INTERNAL, "a lease cannot be written").caused_by(error)
        })?;
        let (pools, leases) = (Some(left), Some(leases));
        DelegateAnswer { pools, leases, unsure, ..DelegateAnswer::default() }.write_to(&mut result);
        Ok(result)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        let part = part(request)?;
        if part.as_ref().is_some_and(|part| part.leases.is_empty() && part.taken.is_none()) {
            return Ok(None);
        }
        let owner = owner::<L>(request)?;
        let mut allocator = LedgerAllocator::<L>::open(request)?;
        let released = match part {
            Some(part) => allocator.release_part(&owner, &part)?,
            None => allocator.release(&owner, &known(request))?,
        };
        released.iter().for_each(|lease| debug!("{owner} gave back {}", lease.address.addr()));
        Ok(None)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        let owner = owner::<L>(request)?;
        let result = request.prev_result()?;
        let known = known(request);
        let mut allocator = LedgerAllocator::<L>::open(request)?;
        let not_held = |message: String| {
            Error::new(ErrorCode::NOT_HELD, message).advise("re-create the attachment")
        };
        // Without a record, an address inside our pools is one that we gave.
        let given: Vec<_> = if known.is_empty() {
            let pools = RequestedPools::of(request, &result)?.pools;
            let sets = sets(&mut allocator, &pools)?;
            result
                .ips
                .iter()
                .map(|ip| ip.address.addr())
                .filter(|address| sets.iter().any(|set| set.find(*address).is_some()))
                .collect()
        } else {
            known.iter().map(|lease| lease.address.addr()).collect()
        };
        let hints =
            if known.is_empty() { given.iter().copied().map(hint).collect() } else { known };
        let held = allocator.held(&owner, &hints)?;
        // Where no pool says which of the addresses are ours, the owner's leases do.
        let given = if given.is_empty() && !result.ips.is_empty() {
            held.iter().map(|lease| lease.address.addr()).collect()
        } else {
            given
        };
        for address in &given {
            if !result.has(*address) {
                return Err(not_held(format!("{address} of {owner} is not in prevResult")));
            }
            if !held.iter().any(|lease| lease.address.addr() == *address) {
                return Err(not_held(format!("{address} is not held by {owner}")));
            }
        }
        if given.is_empty() && held.is_empty() {
            return Err(not_held(format!("{owner} holds no address")));
        }
        Ok(None)
    }

    fn gc(&self, request: &Request, keep: &Keep) -> Result<Option<IpamResult>> {
        let scope = scope(request)?;
        let released = LedgerAllocator::<L>::open(request)?.retain(&scope, keep)?;
        released.iter().for_each(|lease| debug!("GC of {scope} released {}", lease.address));
        Ok(None)
    }

    fn cli(&self, call: &CliCall) -> Option<Result<String>> {
        self.cli.map(|answer| answer(call))
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        let asked = RequestedPools::of(request, &request.prev_result()?)?;
        asked.judge(request, L::KEYS.unwrap_or_default())?;
        let free = LedgerAllocator::<L>::open(request)?
            .ready(&asked.pools)
            .map_err(|error| asked.explain(error))?;
        if free == Some(0) {
            return Err(Error::new(ErrorCode::UNAVAILABLE, "a pool has no free address")
                .advise("free leases, or add a range to the pool"));
        }
        Ok(None)
    }
}

impl<L: Ledger> Allocate<L> {
    fn allocate(&self, request: &Request, asked: &RequestedPools) -> Result<Given> {
        let owner = owner::<L>(request)?;
        if L::REACH == Reach::Cluster {
            warn_of_passing_identity(request)?;
        }
        let mut allocator = LedgerAllocator::<L>::open(request)?;
        let leases =
            allocator.allocate(&owner, &asked.pools).map_err(|error| asked.explain(error))?;
        if leases.len() != asked.pools.len() {
            let (given, wanted) = (leases.len(), asked.pools.len());
            let message = format!("{given} leases for {wanted} pools of {owner}");
            return Err(Error::new(ErrorCode::INTERNAL, message));
        }
        leases.iter().for_each(|lease| debug!("{owner} holds {}", lease.address));
        let routes = match allocator.gives_default_routes() {
            true => default_routes(&leases),
            false => Vec::new(),
        };
        Ok(Given { leases, routes })
    }
}

/// What an ADD gives.
#[derive(Default)]
struct Given {
    leases: Vec<Lease>,
    /// Default routes, for a chain that has no routes.
    routes: Vec<Route>,
}

/// Releases what an ADD took.
fn give_back<L: Ledger>(request: &Request, mut leases: Vec<Lease>) -> Result<()> {
    leases.retain(|lease| !lease.preexisting);
    if leases.is_empty() {
        return Ok(());
    }
    let part = Part { leases, taken: None };
    LedgerAllocator::<L>::open(request)?.release_part(&owner::<L>(request)?, &part).map(drop)
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

/// A node that forgets who it is, or is taken for another, loses leases that others can see.
fn warn_of_passing_identity(request: &Request) -> Result<()> {
    let state = request.state_dir()?;
    if let Some(why) = volatile_filesystem(state.root()) {
        warn!(
            "the state folder {} is {why}: after a reboot this node does not know its leases; set stateDir to a disk",
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

/// The part of the network that a call is about. The node is the one the chain names, which on a DEL is the
/// one of the record.
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

/// A lease of which nothing but the address is known.
fn hint(address: IpAddr) -> Lease {
    Lease {
        pool: None,
        address: IpNet::from(address),
        gateway: None,
        revision: Value::Null,
        preexisting: false,
        unsure: false,
        taken: None,
    }
}

/// What this DEL is about, where the chain makes it by itself: an undo, or leases taken between two times.
/// `None` for the runtime's own, which is about everything.
///
/// # Errors
/// The purpose or the leases cannot be read. Such a DEL is not about everything.
fn part(request: &Request) -> Result<Option<Part>> {
    let members = request.members();
    let (after, before) = match members.purpose()? {
        Purpose::Runtime | Purpose::Reassert => return Ok(None),
        Purpose::Undo => {
            let mut leases: Vec<Lease> = members.leases()?;
            leases.retain(|lease| !lease.preexisting);
            return Ok(Some(Part { leases, taken: None }));
        }
        Purpose::TakenBetween { after, before } => (after, before),
    };
    let time = |since: u64| UNIX_EPOCH.checked_add(Duration::from_millis(since));
    // The kernel's clock for files is some milliseconds behind.
    let from = time(after).and_then(|time| time.checked_sub(COARSE));
    let to = before.map_or_else(|| Some(SystemTime::now()), time);
    let to = to.and_then(|time| time.checked_add(COARSE));
    let (Some(from), Some(to)) = (from, to) else {
        return Err(Error::config("prevResult.fence", "a time is too large"));
    };
    Ok(Some(Part { leases: members.leases()?, taken: Some((from, to)) }))
}

const COARSE: Duration = Duration::from_millis(50);

/// The ranges of pools, as far as they can be read: those that the store alone knows, from there.
fn sets<L: Ledger>(allocator: &mut LedgerAllocator<L>, pools: &[Pool]) -> Result<Vec<RangeSet>> {
    let (written, named): (Vec<&Pool>, Vec<&Pool>) =
        pools.iter().partition(|pool| !pool.ranges().is_empty());
    let read = |pool: &Pool| pool.range_set(RangeRules::ANY, "prevResult.pools").ok().flatten();
    let mut sets: Vec<RangeSet> = written.into_iter().filter_map(read).collect();
    if !named.is_empty() {
        let named: Vec<Pool> = named.into_iter().cloned().collect();
        sets.extend(allocator.ranges_of(&named)?);
    }
    Ok(sets)
}

/// One for each family, through the first gateway of a pool of it.
fn default_routes(leases: &[Lease]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for everywhere in [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())] {
        let is_of = |lease: &&Lease| lease.address.addr().is_ipv4() == everywhere.addr().is_ipv4();
        let mut its = leases.iter().filter(is_of).peekable();
        if its.peek().is_some() {
            let gw = its.find_map(|lease| lease.gateway);
            routes.push(Route { dst: everywhere, gw, extra: Map::new() });
        }
    }
    routes
}

#[cfg(test)]
mod tests;
