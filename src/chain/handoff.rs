//! The state between two delegates: the configuration of the next, and the answers so far.

use std::collections::BTreeMap;
use std::net::IpAddr;

use log::debug;
use serde::Serialize;
use serde_json::{Map, Value};

use super::entry::is_entry_key;
use super::patch::refresh_secrets;
use super::patched_ipam::PatchedIpam;
use super::plan::Step;
use super::record::{Granted, Run};
use super::served::{compare_with_pools, describe_pools, serves, unserved};
use super::session::Session;
use super::store_access::chose_only_addresses;
use ipam_kit::cni::{IpConfig, IpamResult, Network, Route, Verb, to_text};
use ipam_kit::contract::{DelegateAnswer, DelegateInput};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;

/// The state of a chain between two delegates.
#[derive(Clone, Debug)]
pub(crate) struct Handoff<'a> {
    network: &'a Network,
    settings: &'a Settings,
    node: &'a str,
    /// The verb takes nothing: name resolution in an answer has no effect.
    releases: bool,
    /// The result so far.
    pub result: IpamResult,
    /// The pools that no delegate has served yet; `None` while no delegate has named any.
    pools: Option<Vec<Value>>,
    /// Whether a pool was named, so that answers are compared with the pools.
    compares_answers: bool,
    /// Addresses that selectors named outside of pools, and that no delegate has answered yet.
    static_addresses: Vec<IpConfig>,
    /// The section `ipam` with the settings that selectors put over it.
    ipam: PatchedIpam<'a>,
    /// A selector's settings had ranges: those of the runtime are in them.
    ip_ranges_consumed: bool,
}

impl<'a> Handoff<'a> {
    /// The state before the first delegate of a call.
    pub(crate) fn of(session: &'a Session<'_>, result: IpamResult) -> Self {
        let Session { request, node, .. } = session;
        let releases = matches!(request.verb, Verb::Del | Verb::Gc);
        Self::new(&request.network, &request.settings, node, releases, result)
    }

    /// The state before the first delegate.
    pub(crate) fn new(
        network: &'a Network,
        settings: &'a Settings,
        node: &'a str,
        releases: bool,
        result: IpamResult,
    ) -> Self {
        Self {
            network,
            settings,
            node,
            releases,
            result,
            pools: None,
            compares_answers: false,
            static_addresses: Vec::new(),
            ipam: PatchedIpam::new(network.ipam()),
            ip_ranges_consumed: false,
        }
    }

    /// The input of a delegate; `None` if the pools are known and it serves none of them. A release runs
    /// it nevertheless: it may hold what a selector chose earlier.
    pub(crate) fn run_for(&self, step: &Step) -> Option<Run> {
        let pools = self.shown_to(step);
        let serves_none = step.serves.is_some() && pools.as_ref().is_some_and(Vec::is_empty);
        if serves_none && !self.releases && !self.lacks_static_addresses_alone(step) {
            return None;
        }
        let section = self.ipam.seen_by(step);
        if step.is_standalone() {
            return Some(step.standalone_run(section, self.network));
        }
        let pools = pools.map(|pools| pools.into_iter().cloned().collect());
        // The entry says how they combine with this selector's pools: the chain does it with its answer.
        let pools = pools.filter(|_| step.placing.is_none());
        let mut ipam = section.clone();
        // A selector before this one has put the ranges into the pools.
        if self.ip_ranges_consumed && step.is_selector() {
            ipam.remove("ranges");
        }
        ipam.extend(step.overrides.clone());
        ipam.insert("node".to_owned(), self.node.into());
        // It must leave alone what the same owner holds of pools that it is not shown.
        if let Some(names) = &step.serves {
            ipam.insert("serves".to_owned(), names.clone().into());
        }
        ipam.insert("type".to_owned(), step.name.clone().into());
        Some(Run {
            delegate: step.name.clone(),
            program: step.program.display().to_string(),
            source: step.source,
            ipam,
            pools,
            args: self.network.config().get("args").cloned(),
            ip_ranges: self.network.ip_ranges().filter(|_| !self.ip_ranges_consumed).cloned(),
            store_is_configured: chose_only_addresses(
                section,
                self.network.ipam(),
                &step.overrides,
            ),
            ..Run::default()
        })
    }

    /// The further input of a delegate, beside its pools.
    pub(crate) fn input(&self) -> DelegateInput {
        let static_addresses = self.static_addresses.clone();
        DelegateInput { static_addresses, ..DelegateInput::default() }
    }

    /// Takes a delegate's answer to an ADD.
    pub(crate) fn take_answer(
        &mut self,
        step: &Step,
        answer: Map<String, Value>,
    ) -> Result<Granted> {
        let (answer, members) = split(step, answer)?;
        let static_ips = self.take_static_addresses(step, &answer, members.static_addresses)?;
        refuse_repeated_address(step, &answer)?;
        let mut from_pools: Vec<&IpConfig> = answer.ips.iter().collect();
        from_pools.retain(|ip| {
            let address = ip.address.addr();
            !self.result.has(address) && !static_ips.iter().any(|ip| ip.address.addr() == address)
        });
        let ips: Vec<String> = from_pools.iter().map(|ip| ip.address.to_string()).collect();
        if step.is_selector() {
            refuse_address_of_selector(step, &ips)?;
            if let Some(pools) = &members.pools {
                debug!("{} chose {}", step.name, describe_pools(pools));
            }
        } else {
            if !ips.is_empty() {
                debug!("{} gave {}", step.name, ips.join(", "));
            }
            if self.compares_answers || (step.is_allocator() && self.pools.is_some()) {
                let shown = self.shown_to(step).unwrap_or_default();
                let given: Vec<IpAddr> = from_pools.iter().map(|ip| ip.address.addr()).collect();
                compare_with_pools(step, &shown, members.pools.as_deref(), &given)?;
            }
        }
        self.take_pools(step, members.pools, !ips.is_empty());
        self.merge_settings(step, &members.ipam)?;
        self.result = restore(std::mem::take(&mut self.result), answer);
        Ok(Granted {
            delegate: step.name.clone(),
            ips,
            static_ips: static_ips.iter().map(|ip| ip.address.to_string()).collect(),
            leases: members.leases.unwrap_or_default(),
            unsure: members.unsure,
            ..Granted::default()
        })
    }

    /// Takes pools and settings for the next delegate from an answer to another verb than ADD.
    pub(crate) fn take_pools_and_settings(
        &mut self,
        step: &Step,
        answer: Map<String, Value>,
    ) -> Result<()> {
        let (_, members) = split(step, answer)?;
        if step.is_selector() {
            self.take_pools(step, members.pools, false);
            // By what the selector says now, a DEL must not leave a lease of then.
            if !self.releases && !members.static_addresses.is_empty() {
                self.static_addresses = members.static_addresses;
            }
        }
        self.merge_settings(step, &members.ipam)
    }

    /// The result for the runtime; error 112 while pools are unserved or no address was given.
    pub(crate) fn finish(&self, steps: &[Step]) -> Result<IpamResult> {
        if let Some(left) = self.pools.as_deref().filter(|pools| !pools.is_empty()) {
            return Err(unserved(left, steps));
        }
        if let Some(left) = self.static_addresses.first() {
            return Err(unanswered(left).advise(
                "add an allocator (ipam-da-…) to ipam.delegates: allocators answer static addresses",
            ));
        }
        if self.result.ips.is_empty() {
            return Err(Error::new(ErrorCode::UNSERVED, "the chain ended without an address")
                .advise("add an allocator (ipam-da-…, or a plugin such as host-local) to ipam.delegates"));
        }
        Ok(self.result.clone())
    }

    /// The pools that are known so far; `None` while no delegate has named any.
    pub(crate) fn pools(&self) -> Option<&[Value]> {
        self.pools.as_deref()
    }

    /// Whether this allocator is to answer static addresses, and no pool is left to any.
    fn lacks_static_addresses_alone(&self, step: &Step) -> bool {
        step.is_allocator()
            && !self.static_addresses.is_empty()
            && self.pools.as_ref().is_some_and(Vec::is_empty)
    }

    fn shown_to(&self, step: &Step) -> Option<Vec<&Value>> {
        let pools = self.pools.as_ref()?;
        Some(pools.iter().filter(|pool| serves(step, pool)).collect())
    }

    /// Takes the pools that are left after a delegate; `gave` tells whether it gave an address.
    fn take_pools(&mut self, step: &Step, answered: Option<Vec<Value>>, gave: bool) {
        let left = match (answered, step.placing) {
            (Some(pools), None) => pools,
            (Some(pools), Some(placing)) => {
                let before = self.shown_to(step).unwrap_or_default();
                let before: Vec<Value> = before.into_iter().cloned().collect();
                placing.place(&before, pools)
            }
            // A standard plugin knows no pools: with an address it served all it was shown.
            (None, _) if gave => Vec::new(),
            (None, _) => return,
        };
        self.compares_answers |= !left.is_empty();
        let of_others = self.pools.iter().flatten().filter(|pool| !serves(step, pool)).cloned();
        self.pools = Some(of_others.chain(left).collect());
    }

    /// Takes the static addresses that a selector names, or those that another delegate answers. Returns
    /// the answered ones. Without new ones, those of earlier selectors stay.
    fn take_static_addresses(
        &mut self,
        step: &Step,
        answer: &IpamResult,
        named: Vec<IpConfig>,
    ) -> Result<Vec<IpConfig>> {
        if step.is_selector() {
            if !named.is_empty() {
                self.static_addresses = named;
            }
            return Ok(Vec::new());
        }
        let (answered, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.static_addresses)
            .into_iter()
            .partition(|ip| answer.has(ip.address.addr()));
        self.static_addresses = left;
        match self.static_addresses.first() {
            Some(missing) if step.is_allocator() => {
                Err(unanswered(missing).within(&step.name).advise(
                    "an allocator must answer each address of prevResult.static: repair or replace it",
                ))
            }
            _ => Ok(answered),
        }
    }

    fn merge_settings(&mut self, step: &Step, patch: &Map<String, Value>) -> Result<()> {
        self.ipam.merge(step, patch, self.settings, self.releases)?;
        // A selector that leaves the pools to them hands them on as they are written.
        self.ip_ranges_consumed |= patch.contains_key("ranges") && self.pools.is_some();
        Ok(())
    }
}

impl Run {
    /// The configuration for this delegate on stdin, with `prevResult`, its pools and the rest of its
    /// input. A standalone program gets the network configuration with its own section `ipam`.
    pub(crate) fn stdin(
        &self,
        network: &Network,
        prev_result: &IpamResult,
        input: DelegateInput,
    ) -> Result<String> {
        let config = network.config().iter();
        let mut members: BTreeMap<&str, Member<'_>> =
            config.map(|(key, value)| (key.as_str(), Member::Value(value))).collect();
        members.insert("ipam", Member::Object(&self.ipam));
        if let Some(args) = &self.args {
            members.insert("args", Member::Value(args));
        }
        if let Some(runtime) = self.runtime_config(network) {
            members.insert("runtimeConfig", Member::Own(runtime));
        }
        if !self.is_standalone() {
            let mut prev_result = prev_result.clone();
            DelegateInput { pools: self.pools.clone(), ..input }.write_to(&mut prev_result);
            members.insert("prevResult", Member::Own(prev_result.into_json(network.version())?));
        }
        Ok(to_text(&members))
    }

    /// Another `runtimeConfig` than the configuration's: with the ranges of this run, or without any.
    fn runtime_config(&self, network: &Network) -> Option<Value> {
        let configured = network.config().get("runtimeConfig");
        let mut runtime = match configured {
            None => Map::new(),
            Some(Value::Object(runtime)) => runtime.clone(),
            Some(_) => return None,
        };
        let had = runtime.remove("ipRanges");
        if let Some(ranges) = &self.ip_ranges {
            runtime.insert("ipRanges".to_owned(), ranges.clone());
        }
        (had.is_some() || self.ip_ranges.is_some()).then_some(Value::Object(runtime))
    }

    /// Whether this run has the keys of an entry of `ipam.delegates`, secrets aside.
    pub(crate) fn fits(&self, entry: &Map<String, Value>) -> bool {
        let mut ipam = self.ipam.clone();
        refresh_secrets(&mut ipam, entry);
        entry.iter().all(|(key, value)| is_entry_key(key) || ipam.get(key) == Some(value))
    }
}

/// A member of a delegate's input.
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'a> {
    /// Of the configuration, as it came.
    Value(&'a Value),
    Object(&'a Map<String, Value>),
    Own(Value),
}

/// An answer as the result and the members of the contract.
fn split(step: &Step, answer: Map<String, Value>) -> Result<(IpamResult, DelegateAnswer)> {
    let parsed = IpamResult::from_object(answer, "its answer").and_then(|mut result| {
        let members = DelegateAnswer::take_from(&mut result)?;
        Ok((result, members))
    });
    let (result, members) =
        parsed.map_err(|error| error.with_code(ErrorCode::DELEGATE).within(&step.name))?;
    if !members.ipam.is_empty() && !step.is_selector() {
        let keys: Vec<&str> = members.ipam.keys().map(String::as_str).collect();
        let message = format!(
            "its answer sets ipam.{}, and only a selector may do that",
            keys.join(", ipam.")
        );
        return Err(
            against_contract(step, message).advise("if it is a selector, rename it to ipam-ds-…")
        );
    }
    Ok((result, members))
}

fn refuse_repeated_address(step: &Step, answer: &IpamResult) -> Result<()> {
    let mut seen: Vec<IpAddr> = Vec::new();
    for address in answer.ips.iter().map(|ip| ip.address.addr()) {
        if seen.contains(&address) {
            let message = format!("its answer gives {address} twice");
            return Err(against_contract(step, message).advise(
                "an allocator must give a different address for each pool: repair or replace it",
            ));
        }
        seen.push(address);
    }
    Ok(())
}

fn refuse_address_of_selector(step: &Step, ips: &[String]) -> Result<()> {
    if ips.is_empty() {
        return Ok(());
    }
    let message =
        format!("a selector gave an address ({}), which no DEL would release", ips.join(", "));
    Err(against_contract(step, message).advise("if it is an allocator, rename it to ipam-da-…"))
}

fn unanswered(ip: &IpConfig) -> Error {
    let message = format!("no delegate answered the static address {}", ip.address);
    Error::new(ErrorCode::UNSERVED, message)
}

fn against_contract(step: &Step, message: String) -> Error {
    Error::new(ErrorCode::DELEGATE, format!("{}: {message}", step.name))
}

/// Restores the parts that an answer lost: standard plugins ignore the previous result.
fn restore(before: IpamResult, mut answer: IpamResult) -> IpamResult {
    let mut ips: Vec<IpConfig> =
        before.ips.into_iter().filter(|ip| !answer.has(ip.address.addr())).collect();
    ips.append(&mut answer.ips);
    answer.ips = ips;
    for route in before.routes {
        if !answer.routes.iter().any(|known| is_same_route(known, &route)) {
            answer.routes.push(route);
        }
    }
    if answer.dns.0.is_empty() {
        answer.dns = before.dns;
    }
    answer
}

/// The same destination in another routing table is another route.
fn is_same_route(one: &Route, other: &Route) -> bool {
    one.dst == other.dst && one.extra.get("table") == other.extra.get("table")
}

#[cfg(test)]
mod tests;
