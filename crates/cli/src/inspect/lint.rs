//! `lint`: the findings of an allocator over a ledger about its own pools.

use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Entry, Fault};
use ipam_kit::allocate::{Inspect, RequestedPools};
use ipam_kit::cni::address::is_strange_gateway;
use ipam_kit::error::Result;
use ipam_kit::ipam_section::misspelt_settings;
use ipam_kit::pool::{Pool, Range, RangeSet};

use super::{InspectCall, NetworkLedger};
use crate::{Row, finding, print_rows, push_findings};

/// At most so many entries are named one by one.
const NAMED: usize = 20;

pub(super) fn lint(call: &InspectCall<'_>) -> Result<String> {
    let mut network = call.open()?;
    let requested = network.requested_pools()?;
    let findings = network.findings(&requested)?;
    if call.prints_json() {
        return Ok(print_rows(&call.arguments, &[], findings));
    }
    let mut text = String::new();
    push_findings(&mut text, &findings);
    Ok(text)
}

impl NetworkLedger<'_> {
    /// Finds the faults of a configuration and of the pools that it asks for.
    ///
    /// # Errors
    /// The store cannot be read, and pools are asked for.
    fn findings(&mut self, requested: &RequestedPools) -> Result<Vec<Row>> {
        let sets = self.ledger.sets(requested)?;
        let findings = self.of_store(requested, &sets);
        // Without a previous result no delegate before this one has been asked.
        let is_chained = self.request.network.config().contains_key("prevResult");
        let Some(refusal) = requested.require_pools().err().filter(|_| is_chained) else {
            return findings;
        };
        // It holds also where the store cannot be reached.
        let mut findings = findings.unwrap_or_default();
        let mut first = finding("error", &refusal.in_full());
        first.set_text("about", "pools");
        findings.insert(0, first);
        Ok(findings)
    }

    fn of_store(&mut self, requested: &RequestedPools, sets: &[RangeSet]) -> Result<Vec<Row>> {
        let mut findings = of_pools(&mut *self.ledger, &requested.pools, sets)?;
        let keys = self.call.keys.as_deref().unwrap_or_default();
        let mut misspelt = misspelt_settings(&self.request.network, keys);
        misspelt.extend(self.ledger.misspelt(requested)?);
        for it in misspelt {
            findings.push(finding("error", &it.error().in_full()));
        }
        Ok(findings)
    }
}

/// The counts of a scan of a ledger.
#[derive(Default)]
struct Tally {
    /// The number of held addresses of each pool.
    held: Vec<u64>,
    unreadable: Vec<String>,
    leftovers: u64,
    without_ifname: u64,
}

impl Tally {
    fn count(&mut self, entry: &Entry, sets: &[RangeSet]) {
        let address = entry.lease.address.addr();
        for (held, set) in self.held.iter_mut().zip(sets) {
            *held += u64::from(set.refusal(address).is_none());
        }
        match &entry.fault {
            Some(Fault::Unreadable(reason)) => {
                self.unreadable.push(format!("{address}: {reason}"));
            }
            Some(Fault::Leftover) => self.leftovers += 1,
            Some(Fault::Kept(_)) | None => {}
        }
        let is_bare = entry.holder.as_ref().is_some_and(|holder| holder.ifname.is_none());
        self.without_ifname += u64::from(is_bare);
    }
}

fn of_pools(ledger: &mut dyn Inspect, pools: &[Pool], sets: &[RangeSet]) -> Result<Vec<Row>> {
    let mut tally = Tally { held: vec![0; sets.len()], ..Tally::default() };
    ledger.entries(&mut |entry| {
        tally.count(&entry, sets);
        ControlFlow::Continue(())
    })?;
    tally.unreadable.extend(ledger.foreign_entries()?);
    let mut findings = Vec::new();
    for ((pool, set), held) in pools.iter().zip(sets).zip(tally.held) {
        findings.push(of_use(pool, set, held));
        // `ipam-delegated lint` checks the gateways of ranges in a configuration.
        if pool.ranges().is_empty() {
            findings.extend(set.ranges().iter().filter_map(strange_gateway));
        }
        findings.extend(set.remarks().iter().map(|remark| finding("warning", remark)));
    }
    let more = tally.unreadable.len().saturating_sub(NAMED);
    for what in tally.unreadable.iter().take(NAMED) {
        findings.push(finding("warning", what));
    }
    if more > 0 {
        findings.push(finding("warning", &format!("and {more} more unreadable entries")));
    }
    if tally.leftovers > 0 {
        let message = format!(
            "{} entries are leftovers of killed calls or other programs, without an owner",
            tally.leftovers
        );
        findings.push(finding("note", &message));
    }
    if tally.without_ifname > 0 {
        let message = format!(
            "{} addresses are held by entries without an interface, as older systems write them",
            tally.without_ifname
        );
        findings.push(finding("note", &message));
    }
    Ok(findings)
}

/// The use of a pool: a warning if no address is left.
fn of_use(pool: &Pool, set: &RangeSet, held: u64) -> Row {
    let name = pool.name().map(|name| format!(" {name}")).unwrap_or_default();
    let size = set.size();
    let message = format!("pool{name} ({set}): {held} of {size} addresses are held");
    if u128::from(held) >= size {
        return finding("warning", &format!("{message}: the pool is full"));
    }
    finding("note", &message)
}

fn strange_gateway(range: &Range) -> Option<Row> {
    let gateway = range.gateway()?;
    let subnet = range.subnet();
    if !is_strange_gateway(gateway, subnet) {
        return None;
    }
    let message =
        format!("the gateway {gateway} is outside its subnet {subnet}: correct one of them");
    Some(finding("warning", &message))
}
