//! Where this node's result cache and the ledgers of a network disagree, as `lint` finds it.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::Value;

use super::findings::Findings;
use crate::chain::plan::Step;
use crate::chain::query;
use crate::chain::session::Session;
use crate::operator::ask::rows;
use crate::operator::dry_run::DryRunStage;
use crate::operator::{list, pools};
use ipam_cli::{Block, LeaseRow, PoolRow};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{CachedResult, Netns, ResultCache};

/// Finds each address that is in use on this node by the result cache, and free or held by another
/// container by its ledger. No allocator is asked if the cache has no address of the network.
pub(crate) fn compare(
    cache: &ResultCache,
    session: &Session<'_>,
    stages: &[DryRunStage],
    findings: &mut Findings,
) {
    let mut used = cache.of_network(session.request.network.name());
    used.retain(|cached| !cached.addresses.is_empty());
    if used.is_empty() {
        return;
    }
    let ledgers = match LedgerSnapshot::of(session, stages, &used, findings.shared) {
        Ok(ledgers) => ledgers,
        Err(error) => {
            let why = error.in_full();
            let message = format!("the result cache is not compared with the store: {why}");
            return findings.push("warning", &message);
        }
    };
    for cached in &used {
        let mut contradictions: Vec<(IpAddr, String)> = Vec::new();
        for address in &cached.addresses {
            let contradiction = ledgers.contradiction(cached, *address);
            contradictions.extend(contradiction.map(|it| (*address, it)));
        }
        // An ADD or a DEL may have ended since the cache was read.
        let CachedResult { network, container, ifname, .. } = cached;
        if contradictions.is_empty()
            || cache.of(network, container, ifname).ok().flatten().as_ref() != Some(cached)
        {
            continue;
        }
        let gone = cached.netns.as_ref().is_some_and(|at| Netns::at(at) == Netns::Gone);
        let (level, doubt) = match gone {
            true => ("note", " (its network namespace is gone: the cache may be out of date)"),
            false => ("warning", ""),
        };
        for (address, contradiction) in contradictions {
            let (container, ifname) = (container.as_str(), ifname.as_str());
            let message = format!(
                "{address} is used by {container}/{ifname} (result cache), but the store \
                 {contradiction}{doubt}"
            );
            findings.push(level, &message);
        }
    }
}

/// The leases and pools of a network's allocators, as far as they are about addresses in use.
struct LedgerSnapshot {
    leases: Vec<LeaseRow>,
    /// Every pool of theirs: they give no address outside of these.
    blocks: Vec<Block>,
    /// Other nodes share the store: what it lost can be claimed again.
    shared: bool,
    /// This node; empty if it is unknown.
    node: String,
}

impl LedgerSnapshot {
    /// Asks each allocator that keeps a ledger.
    fn of(
        session: &Session<'_>,
        stages: &[DryRunStage],
        used: &[CachedResult],
        shared: bool,
    ) -> Result<Self> {
        let node = session.node.clone();
        let mut ledgers = Self { leases: Vec::new(), blocks: Vec::new(), shared, node };
        for DryRunStage { step, input, .. } in stages {
            let Some(input) = input.as_ref().filter(|_| step.is_allocator()) else { continue };
            let leases = match ask(session, step, &list::QUESTION, input) {
                // Its server picks addresses itself.
                Err(error) if Error::code(&error) == ErrorCode::UNSUPPORTED_FIELD => continue,
                leases => leases?,
            };
            for (path, row) in leases {
                let lease = LeaseRow::parse(&row, &path).map_err(against_contract)?;
                if used.iter().any(|cached| cached.addresses.contains(&lease.address)) {
                    ledgers.leases.push(lease);
                }
            }
            for (path, row) in ask(session, step, &pools::QUESTION, input)? {
                let pool = PoolRow::parse(&row, &path).map_err(against_contract)?;
                ledgers.blocks.extend(pool.blocks);
            }
        }
        Ok(ledgers)
    }

    /// Describes how the store contradicts an address of a cached result; `None` if it says the
    /// same, or does not know the owner.
    fn contradiction(&self, cached: &CachedResult, address: IpAddr) -> Option<String> {
        let mut leases: Vec<&LeaseRow> = self.leases.iter().collect();
        leases.retain(|lease| lease.address == address);
        if leases.iter().any(|lease| lease.container.is_none() || self.is_of(lease, cached)) {
            return None;
        }
        let Some(lease) = leases.first() else {
            let is_of_a_pool = self.blocks.iter().any(|b| b.from <= address && address <= b.to);
            let claim = if self.shared { CLAIM } else { "" };
            return is_of_a_pool.then(|| format!("{UNKNOWN}{claim}"));
        };
        let container = lease.container.as_deref().unwrap_or_default();
        let mut message = format!("says {container}");
        if let Some(ifname) = &lease.ifname {
            let _ = write!(message, "/{ifname}");
        }
        if let Some(node) = self.other_node(lease) {
            let _ = write!(message, " on node {node}");
        }
        let is_same = container == cached.container.as_str();
        message.push_str(if is_same { SAME_CONTAINER } else { OTHER_CONTAINER });
        Some(message)
    }

    /// Whether a lease is held by an attachment of this node, as far as its row tells.
    fn is_of(&self, lease: &LeaseRow, cached: &CachedResult) -> bool {
        let ifname = lease.ifname.as_deref();
        lease.container.as_deref() == Some(cached.container.as_str())
            && ifname.is_none_or(|ifname| ifname == cached.ifname.as_str())
            && self.other_node(lease).is_none()
    }

    /// The node of a lease that is another's.
    fn other_node(&self, lease: &LeaseRow) -> Option<String> {
        lease.node.clone().filter(|node| !self.node.is_empty() && *node != self.node)
    }
}

/// The rows of an allocator's answer, each with its path for errors.
fn ask(
    session: &Session<'_>,
    step: &Step,
    question: &[&str],
    input: &Value,
) -> Result<Vec<(String, Value)>> {
    let name = &step.name;
    let answer = query::ask(session, step, question, &input.to_string())?;
    let rows = rows(name, answer)?.into_iter().enumerate();
    Ok(rows.map(|(i, row)| (format!("{name}: its answer[{i}]"), row)).collect())
}

const UNKNOWN: &str = "does not have it, and may give it again: re-create the container";
const CLAIM: &str = ", or, if it has a record here, claim it with ipam-delegated reassert";
const OTHER_CONTAINER: &str =
    ": two containers may use one address; re-create the one in the cache";
const SAME_CONTAINER: &str = ": its DEL will not release it; re-create the container";

fn against_contract(error: Error) -> Error {
    error.with_code(ErrorCode::DELEGATE)
}
