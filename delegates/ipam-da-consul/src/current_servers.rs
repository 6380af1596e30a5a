//! The servers of the present network configuration, if a record names others.
//!
//! They are tried first, because those of the record may be gone. Servers of another store would
//! answer that nothing is held, so they are used only if they prove to have the recorded store.

use std::time::Duration;

use ipam_kit::allocate::{known, scope};
use ipam_kit::delegate::Deadline;
use ipam_kit::{Request, Result};
use ipam_servers::Server;
use log::{debug, warn};

use crate::config::{ConsulConfig, Site};
use crate::keys::ConsulKeys;
use crate::memory::{ClaimMark, ConsulMemory};
use crate::store::KvStore;
use crate::txn::{LARGEST, Op, TxnOutcome, find};
use crate::values::index_of;

/// The time for the proof: at most this long, and at most this part of the time that is left.
const LONGEST: Duration = Duration::from_secs(3);
const PART: u32 = 3;

/// Opens the store by the servers of the present configuration; `None` if the configuration has not
/// changed since the record, or if no proof shows that these servers have the recorded store.
pub(crate) fn proven(
    request: &Request,
    recorded: &Site,
    memory: &ConsulMemory,
    keys: &ConsulKeys,
) -> Option<KvStore> {
    let network = request.present()?;
    let present = match network.settings::<ConsulConfig>().and_then(|config| config.site(request)) {
        Ok(present) => present,
        Err(error) => {
            debug!("cannot read the servers of the present configuration: {}", error.in_full());
            return None;
        }
    };
    if present.datacenter != recorded.datacenter {
        debug!("the present configuration names another datacenter than the record");
        return None;
    }
    let recorded_servers = list(&recorded.servers);
    let present_servers = list(&present.servers);
    match prove(request, recorded, present, memory, keys) {
        Ok(Some(store)) => {
            debug!("uses the servers of the present configuration: {present_servers}");
            return Some(store);
        }
        Ok(None) => warn!("{present_servers}: no proof that these servers have the recorded store"),
        Err(error) => warn!("{present_servers}: {}", error.in_full()),
    }
    warn!("uses the recorded servers: {recorded_servers}");
    None
}

fn list(servers: &[Server]) -> String {
    servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn prove(
    request: &Request,
    recorded: &Site,
    present: Site,
    memory: &ConsulMemory,
    keys: &ConsulKeys,
) -> Result<Option<KvStore>> {
    let known = known(request);
    let known = &known[..known.len().min(LARGEST - 1)];
    let node = scope(request)?.node;
    let mark_key = keys.mark(&node);
    let mut ops: Vec<Op> = known.iter().map(|lease| Op::GetTree(keys.of_lease(lease))).collect();
    if memory.is_indexed() {
        ops.push(Op::GetTree(mark_key.clone()));
    }
    let present_servers: Vec<String> = present.servers.iter().map(Server::without_scheme).collect();
    let recorded_servers: Vec<String> =
        recorded.servers.iter().map(Server::without_scheme).collect();
    let time = LONGEST.min(request.deadline.left() / PART);
    let mut store = KvStore::new(present, request.unreached(), Deadline::after(time))?;
    store.require_proof();
    let TxnOutcome::Done(pairs) = store.read(&ops)? else { return Ok(None) };
    let mark = find(&pairs, &mark_key).map(ClaimMark::of);
    let holds_all = !known.is_empty()
        && known.iter().all(|lease| {
            find(&pairs, &keys.of_lease(lease)).is_some_and(|pair| pair.index == index_of(lease))
        });
    let names_all = recorded_servers.iter().all(|server| present_servers.contains(server));
    if !memory.proves(&node, mark, &recorded_servers, holds_all || names_all) {
        return Ok(None);
    }
    store.set_deadline(request.deadline);
    Ok(Some(store))
}
