//! The servers that the network configuration names now, if a record names others.
//!
//! They are tried first, because those of the record may be gone. Servers of another store would
//! answer that nothing is held, so they are used only if they prove to be of the recorded store.

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

/// The store by today's servers; `None` if the configuration has not changed since the record, or
/// if these servers are not proved to be of the recorded store.
pub(crate) fn proven(
    request: &Request,
    recorded: &Site,
    memory: &ConsulMemory,
    keys: &ConsulKeys,
) -> Option<KvStore> {
    let network = request.present()?;
    let today = match network.settings::<ConsulConfig>().and_then(|config| config.site(request)) {
        Ok(today) => today,
        Err(error) => {
            debug!("today's configuration names no store: {}", error.in_full());
            return None;
        }
    };
    if today.datacenter != recorded.datacenter {
        debug!("today's configuration names another datacenter");
        return None;
    }
    let recorded_servers = list(&recorded.servers);
    let todays_servers = list(&today.servers);
    match prove(request, recorded, today, memory, keys) {
        Ok(Some(store)) => {
            debug!("goes the way that the configuration names now");
            return Some(store);
        }
        Ok(None) => warn!("{todays_servers}: not proved to be the recorded store"),
        Err(error) => warn!("{todays_servers}: {}", error.in_full()),
    }
    warn!("goes the recorded way: {recorded_servers}");
    None
}

fn list(servers: &[Server]) -> String {
    servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn prove(
    request: &Request,
    recorded: &Site,
    today: Site,
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
    let todays_servers: Vec<String> = today.servers.iter().map(Server::without_scheme).collect();
    let recorded_servers: Vec<String> =
        recorded.servers.iter().map(Server::without_scheme).collect();
    let time = LONGEST.min(request.deadline.left() / PART);
    let mut store = KvStore::new(today, request.unreached(), Deadline::after(time))?;
    store.require_proof();
    let TxnOutcome::Done(pairs) = store.read(&ops)? else { return Ok(None) };
    let mark = find(&pairs, &mark_key).map(ClaimMark::of);
    let holds_all = !known.is_empty()
        && known.iter().all(|lease| {
            find(&pairs, &keys.of_lease(lease)).is_some_and(|pair| pair.index == index_of(lease))
        });
    let names_all = recorded_servers.iter().all(|server| todays_servers.contains(server));
    if !memory.proves(&node, mark, &recorded_servers, holds_all || names_all) {
        return Ok(None);
    }
    store.set_deadline(request.deadline);
    Ok(Some(store))
}
