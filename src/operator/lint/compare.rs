//! Where this node's result cache and the ledgers of a network disagree, as `lint` finds it.

use std::net::IpAddr;

use super::findings::Findings;
use crate::chain::query;
use crate::chain::session::Session;
use crate::operator::ask::rows;
use crate::operator::dry_run::DryRunStage;
use crate::operator::{list, pools};
use ipam_cli::{Block, LeaseRow, PoolRow};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{CachedResult, Netns, ResultCache};

/// Finds each address that is in use on this node by the result cache, and another's or nobody's by
/// the ledger that it is from. Nobody is asked where the cache has no address of the network.
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
            let parts = ["the result cache is not compared with the store: ", &error.in_full()];
            return findings.push("warning", &parts.concat());
        }
    };
    for cached in &used {
        let against =
            cached.addresses.iter().filter_map(|at| Some((at, ledgers.against(cached, *at)?)));
        let against: Vec<_> = against.collect();
        // An ADD or a DEL may have ended since the cache was read.
        let CachedResult { network, container, ifname, .. } = cached;
        if against.is_empty()
            || cache.of(network, container, ifname).ok().flatten().as_ref() != Some(cached)
        {
            continue;
        }
        let gone = cached.netns.as_ref().is_some_and(|at| Netns::at(at) == Netns::Gone);
        let (level, doubt) = match gone {
            true => ("note", " (its network namespace is gone: the cache may be out of date)"),
            false => ("warning", ""),
        };
        for (address, against) in against {
            let address = address.to_string();
            let (container, ifname) = (container.as_str(), ifname.as_str());
            let user = [&address, " is used by ", container, "/", ifname, " (result cache)"];
            findings.push(level, &[&user.concat(), ", but the store ", &against, doubt].concat());
        }
    }
}

/// What the allocators of a network say of the addresses that are in use.
struct LedgerSnapshot {
    leases: Vec<LeaseRow>,
    /// Every pool of theirs: what lies elsewhere is no address of theirs.
    blocks: Vec<Block>,
    /// Others have a part in the store: what it lost can be claimed again.
    shared: bool,
    /// This node; empty when it could not be told.
    node: String,
}

impl LedgerSnapshot {
    /// Asks each allocator that keeps ledgers.
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
            let (name, input) = (&*step.name, input.to_string());
            let ask = |question: &[&str]| {
                let rows = rows(name, query::ask(session, step, question, &input)?)?.into_iter();
                let places = (0..).map(|i: usize| format!("{name}: its answer[{i}]"));
                Ok(places.zip(rows))
            };
            let leases = match ask(&list::QUESTION) {
                // Its server picks addresses itself.
                Err(error) if Error::code(&error) == ErrorCode::UNSUPPORTED_FIELD => continue,
                leases => leases?,
            };
            for (place, row) in leases {
                let lease = LeaseRow::parse(&row, &place).map_err(against_contract)?;
                if used.iter().any(|cached| cached.addresses.contains(&lease.address)) {
                    ledgers.leases.push(lease);
                }
            }
            for (place, row) in ask(&pools::QUESTION)? {
                let pool = PoolRow::parse(&row, &place).map_err(against_contract)?;
                ledgers.blocks.extend(pool.blocks);
            }
        }
        Ok(ledgers)
    }

    /// What the store says against an address of a cached result; `None` where it says the same, or
    /// does not tell whose the address is.
    fn against(&self, cached: &CachedResult, address: IpAddr) -> Option<String> {
        let leases = || self.leases.iter().filter(|lease| lease.address == address);
        if leases().any(|lease| lease.container.is_none() || self.is_of(lease, cached)) {
            return None;
        }
        let Some(lease) = leases().next() else {
            let is_theirs = self.blocks.iter().any(|b| b.from <= address && address <= b.to);
            let how = if self.shared { CLAIM } else { "" };
            return is_theirs.then(|| [UNKNOWN, how].concat());
        };
        let container = lease.container.as_deref().unwrap_or_default();
        let mut says = ["says ", container].concat();
        for (before, part) in [("/", &lease.ifname), (" on node ", &self.other_node(lease))] {
            part.iter().for_each(|part| says.extend([before, part]));
        }
        let same = container == cached.container.as_str();
        says.push_str(if same { SAME_CONTAINER } else { OTHER_CONTAINER });
        Some(says)
    }

    /// Whether a lease is held by an attachment of this node, in as far as its row tells.
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

const UNKNOWN: &str = "does not know it: it may be given again; re-create the container";
const CLAIM: &str = ", or claim it with ipam-delegated reassert where it has a record";
const OTHER_CONTAINER: &str =
    ": two containers may have one address; re-create the one of the cache";
const SAME_CONTAINER: &str = ": its DEL will not release it; re-create the container";

fn against_contract(error: Error) -> Error {
    error.with_code(ErrorCode::DELEGATE)
}
