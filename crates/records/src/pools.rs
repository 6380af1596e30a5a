//! Pools by the names of their subnets.

use std::net::IpAddr;

use ipam_kit::allocate::PoolRequest;
use ipam_kit::allocate::ledger::unknown_ranges;
use ipam_kit::pool::{Range, RangeConfig, RangeRules, RangeSet};
use ipam_kit::{Error, Result};
use ipnet::IpNet;

use crate::memory::SiteMemory;
use crate::server::{RecordServer, Subnet};

/// The subnets of a pool, with the ranges of them that it gives out.
#[derive(Clone, Debug)]
pub(crate) struct SubnetPool {
    /// At least one.
    pub(crate) subnets: Vec<Subnet>,
    pub(crate) set: RangeSet,
}

impl SubnetPool {
    /// The subnet of an address of the pool, or of one that the server chooses.
    pub(crate) fn subnet_of(&self, address: Option<IpAddr>) -> Option<&Subnet> {
        match address {
            None => self.subnets.first(),
            Some(address) => self.subnets.iter().find(|subnet| subnet.cidr.contains(&address)),
        }
    }

    pub(crate) fn has(&self, subnet: &str) -> bool {
        self.subnets.iter().any(|known| known.id == subnet)
    }

    /// The name of its place in a cursor's memory.
    pub(crate) fn key(&self, network: &str) -> String {
        let ids: Vec<&str> = self.subnets.iter().map(|subnet| &*subnet.id).collect();
        format!("{network}/{}/{}", ids.join(","), self.set)
    }
}

/// The subnets of a requested pool: the one that its name means, or, if it has none, those of its
/// ranges.
///
/// # Errors
/// Code 7: the name means no subnet or several; the ranges are outside of it; a subnet gives no
/// addresses. The server cannot be reached.
pub(crate) fn find<S: RecordServer>(
    server: &mut S,
    memory: &mut SiteMemory,
    request: &PoolRequest,
) -> Result<SubnetPool> {
    let subnets = find_subnets(server, memory, request)?;
    let set = set_of(&subnets, request)?;
    Ok(SubnetPool { subnets, set })
}

/// [`find`], without the ranges.
///
/// # Errors
/// As of [`find`].
pub(crate) fn find_subnets<S: RecordServer>(
    server: &mut S,
    memory: &mut SiteMemory,
    request: &PoolRequest,
) -> Result<Vec<Subnet>> {
    let (wanted, path) = match (&request.pool, &request.set) {
        (Some(name), _) => (vec![name.clone()], format!("{}.name", request.path)),
        (None, Some(set)) => {
            let mut wanted = Vec::new();
            for range in set.ranges() {
                let subnet = range.subnet().trunc().to_string();
                if !wanted.contains(&subnet) {
                    wanted.push(subnet);
                }
            }
            (wanted, format!("{}.ranges", request.path))
        }
        (None, None) => return Err(unknown_ranges(request)),
    };
    let mut subnets = Vec::new();
    for wanted in wanted {
        subnets.push(match memory.pool(&wanted) {
            Some(subnet) => subnet,
            None => {
                let subnet = search(server, &wanted, &path)?;
                memory.remember_pool(&wanted, &subnet);
                subnet
            }
        });
    }
    Ok(subnets)
}

fn search<S: RecordServer>(server: &mut S, wanted: &str, path: &str) -> Result<Subnet> {
    let mut shown: Vec<Subnet> = Vec::new();
    let mut parents = std::collections::BTreeMap::new();
    server.subnets(wanted, &mut |subnet| {
        if let Some(parent) = &subnet.parent {
            parents.insert(parent.clone(), subnet.cidr);
        }
        if subnet.is_meant_by(wanted) && shown.iter().all(|known| known.id != subnet.id) {
            shown.push(subnet);
        }
    })?;
    let refused =
        |message: String, advice: &str| Err(Error::config(path, message).advise(advice.to_owned()));
    let subnet = match (shown.pop(), shown.is_empty()) {
        (None, _) => {
            let message = format!("{} has no subnet {wanted:?}", S::NAME);
            return refused(
                message,
                "name a subnet by its id, its CIDR or its name, and check that this user sees it",
            );
        }
        (Some(subnet), true) => subnet,
        (Some(last), false) => {
            shown.push(last);
            let matches = shown
                .iter()
                .map(|subnet| format!("{} ({:?}, id {})", subnet.cidr, subnet.name, subnet.id));
            let message = format!(
                "{wanted:?} means several subnets of {}: {}",
                S::NAME,
                Error::listed(matches, ", ")
            );
            return refused(message, "name one of them by its id");
        }
    };
    if let Some(child) = parents.get(&subnet.id) {
        let message = format!("{} contains the subnet {child}", subnet.cidr);
        return refused(message, "name one without others inside");
    }
    match &subnet.refusal {
        None => Ok(subnet),
        Some(reason) => Err(Error::config(path, format!("{}: {reason}", subnet.cidr))),
    }
}

/// The ranges of a pool inside its subnets, with the gateways that the server knows.
fn set_of(subnets: &[Subnet], request: &PoolRequest) -> Result<RangeSet> {
    let path = format!("{}.ranges", request.path);
    let Some(set) = &request.set else {
        let range = |subnet: &Subnet| RangeConfig {
            subnet: Some(subnet.cidr.trunc().to_string()),
            gateway: subnet.gateway.map(|gateway| gateway.to_string()),
            ..RangeConfig::default()
        };
        let has_gateway = subnets.iter().all(|subnet| subnet.gateway.is_some());
        let rules = if has_gateway { RangeRules::ANY } else { RangeRules::WITHOUT_GATEWAY };
        return RangeSet::parse(&subnets.iter().map(range).collect::<Vec<_>>(), rules, &path);
    };
    let mut ranges = set.to_config();
    for (range, config) in set.ranges().iter().zip(&mut ranges) {
        let Some(subnet) = subnets.iter().find(|subnet| is_inside(range, subnet.cidr)) else {
            let cidrs: Vec<String> = subnets.iter().map(|subnet| subnet.cidr.to_string()).collect();
            let message = format!("{range} is not inside of {}", cidrs.join(", "));
            return Err(
                Error::config(path, message).advise("correct the range, or the pool's name")
            );
        };
        if let Some(gateway) = subnet.gateway {
            config.gateway = Some(gateway.to_string());
        }
    }
    match subnets.iter().any(|subnet| subnet.gateway.is_some()) {
        true => RangeSet::parse(&ranges, RangeRules::ANY, &path),
        false => Ok(set.clone()),
    }
}

fn is_inside(range: &Range, cidr: IpNet) -> bool {
    cidr.contains(&range.start()) && cidr.contains(&range.end())
}
