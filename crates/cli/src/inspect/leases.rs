//! `list`, `who` and `release`.

use std::net::IpAddr;
use std::time::SystemTime;

use ipam_kit::allocate::ledger::{Entry, Fault};
use ipam_kit::allocate::{Reach, scope};
use ipam_kit::cni::address::parse_address;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::pool::{Pool, RangeSet};

use super::{InspectCall, NetworkLedger};
use crate::rows::LeaseState;
use crate::{
    Arguments, LeaseRow, NAME_WHOLE_ID, OptionSpec, no_lease_of_node, not_an_address, print_leases,
    push_line, release_summary, usage_error,
};

pub(super) fn list(call: &InspectCall<'_>) -> Result<String> {
    let mut network = call.open()?;
    let entries = network.entries(|_| true)?;
    Ok(network.print(&entries))
}

pub(super) fn who(call: &InspectCall<'_>) -> Result<String> {
    let address = parse(call.arguments.operand(0).unwrap_or_default())?;
    let mut network = call.open()?;
    let entries = network.entries(|entry| entry.lease.address.addr() == address)?;
    if entries.is_empty() && !call.prints_json() {
        return Err(network.not_held(address));
    }
    Ok(network.print(&entries))
}

pub(super) fn release(call: &InspectCall<'_>) -> Result<String> {
    let choice = Choice::of(&call.arguments)?;
    let mut network = call.open()?;
    // A store of one node holds no other's leases, and need not name it.
    let this_node = match call.reach {
        Reach::Node => Some(scope(&network.request)?.node),
        Reach::Cluster => None,
    };
    let chosen = network.entries(|entry| choice.has(entry, this_node.as_deref()))?;
    if !call.prints_json() {
        network.refuse_missing(&choice, &chosen)?;
    }
    let is_done = call.has(&OptionSpec::YES);
    let entries = if is_done { network.ledger.remove(&chosen)? } else { chosen };
    let mut text = network.print(&entries);
    if !call.prints_json() {
        if let Some(node) = choice.node.filter(|_| entries.is_empty()) {
            push_line(&mut text, &no_lease_of_node(node));
        }
        let summary = release_summary(entries.is_empty(), is_done);
        text.push_str(summary.unwrap_or("nothing was released; add --yes to do it\n"));
    }
    Ok(text)
}

/// The choice of `release`: entries that match every operand and option.
struct Choice<'a> {
    addresses: Vec<IpAddr>,
    owner: Option<&'a str>,
    node: Option<&'a str>,
}

impl<'a> Choice<'a> {
    fn of(arguments: &'a Arguments) -> Result<Self> {
        let choice = Self {
            addresses: arguments.operands().into_iter().map(parse).collect::<Result<_>>()?,
            owner: arguments.value(&OptionSpec::OWNER),
            node: arguments.value(&OptionSpec::NODE),
        };
        if choice.addresses.is_empty() && !choice.is_by_name() {
            return Err(usage_error(
                "release needs ADDRESS…, --owner CONTAINER[/IFNAME] or --node NODE",
            ));
        }
        Ok(choice)
    }

    fn is_by_name(&self) -> bool {
        self.owner.is_some() || self.node.is_some()
    }

    fn has(&self, entry: &Entry, this_node: Option<&str>) -> bool {
        let is_of_network = entry.holder.as_ref().is_none_or(|holder| holder.network.is_none());
        (self.addresses.is_empty() || self.addresses.contains(&entry.lease.address.addr()))
            && (is_of_network || !self.is_by_name())
            && self.owner.is_none_or(|owner| is_owned_by(entry, owner))
            && self.node.is_none_or(|node| is_on_node(entry, node, this_node))
    }
}

/// Whether an entry is held by `CONTAINER` or `CONTAINER/IFNAME`.
fn is_owned_by(entry: &Entry, owner: &str) -> bool {
    let Some(holder) = &entry.holder else { return false };
    match owner.split_once('/') {
        None => holder.container == owner,
        Some((container, ifname)) => {
            holder.container == container && holder.ifname.as_deref() == Some(ifname)
        }
    }
}

/// Whether an entry is held on a node; `this_node` holds entries without a node.
fn is_on_node(entry: &Entry, node: &str, this_node: Option<&str>) -> bool {
    let Some(holder) = &entry.holder else { return false };
    holder.node.as_deref().or(this_node) == Some(node)
}

impl NetworkLedger<'_> {
    /// Refuses an address that is not held, or an owner without an address.
    fn refuse_missing(&mut self, choice: &Choice<'_>, chosen: &[Entry]) -> Result<()> {
        if !choice.is_by_name() {
            for address in &choice.addresses {
                if !chosen.iter().any(|entry| entry.lease.address.addr() == *address) {
                    return Err(self.not_held(*address));
                }
            }
        }
        if let Some(owner) = choice.owner.filter(|_| chosen.is_empty()) {
            let message = format!("{owner} holds no address on {}", self.request.network.name());
            return Err(Error::new(ErrorCode::NOT_HELD, message).advise(NAME_WHOLE_ID));
        }
        Ok(())
    }

    /// The error for an address without an entry: it is free, or it says why the address is never
    /// given.
    fn not_held(&mut self, address: IpAddr) -> Error {
        let network = self.request.network.name();
        let sets = self.requested_pools().and_then(|pools| self.ledger.sets(&pools));
        let message = match sets {
            Err(_) => format!("no owner holds {address} on {network}"),
            Ok(sets) => match sets.iter().find(|set| set.find(address).is_some()) {
                None => format!("{address} is in no pool of {network}"),
                Some(set) => match set.refusal(address) {
                    None => format!("{address} is free on {network}"),
                    Some(why) => format!("{address} is {why}"),
                },
            },
        };
        Error::new(ErrorCode::NOT_HELD, message)
    }

    fn print(&mut self, entries: &[Entry]) -> String {
        // Leases are shown without pool names if the pools cannot be read.
        let requested = self.requested_pools().ok();
        let sets = requested.as_ref().and_then(|pools| self.ledger.sets(pools).ok());
        let sets = sets.unwrap_or_default();
        let pools = requested.map(|requested| requested.pools).unwrap_or_default();
        let rows = entries.iter().map(|entry| self.row(entry, &pools, &sets).to_row());
        print_leases(&self.call.arguments, rows)
    }

    fn row(&self, entry: &Entry, pools: &[Pool], sets: &[RangeSet]) -> LeaseRow {
        let address = entry.lease.address.addr();
        let set = sets.iter().position(|set| set.find(address).is_some());
        let pool = set.and_then(|index| pools[index].name());
        let holder = entry.holder.as_ref();
        let age = entry.since.and_then(|since| SystemTime::now().duration_since(since).ok());
        LeaseRow {
            address,
            pool: entry.lease.pool.clone().or_else(|| pool.map(str::to_owned)),
            container: holder.map(|holder| holder.container.clone()),
            ifname: holder.and_then(|holder| holder.ifname.clone()),
            node: holder.and_then(|holder| holder.node.clone().or_else(|| self.this_node())),
            age: age.map(|age| age.as_secs()),
            state: match entry.fault {
                None => LeaseState::Held,
                Some(Fault::Leftover) => LeaseState::Leftover,
                Some(Fault::Unreadable(_)) => LeaseState::Unreadable,
                Some(Fault::Kept(_)) => LeaseState::Kept,
            },
            note: match &entry.fault {
                Some(Fault::Unreadable(text) | Fault::Kept(text)) => Some(text.clone()),
                _ => None,
            },
        }
    }

    /// The node that the chain named, if the store holds leases of one node alone.
    fn this_node(&self) -> Option<String> {
        if self.call.reach == Reach::Cluster {
            return None;
        }
        let node = self.request.network.ipam().get("node")?.as_str()?;
        (!node.is_empty()).then(|| node.to_owned())
    }
}

fn parse(word: &str) -> Result<IpAddr> {
    parse_address(word).map_err(not_an_address)
}
