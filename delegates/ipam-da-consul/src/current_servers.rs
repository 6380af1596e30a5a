//! The way to the store that the network configuration names now, where a record has another one.
//!
//! It is tried before the recorded way, which may lead to nothing any more. A store that is another one
//! answers that nothing is there, so the way counts only where it proves to lead to the recorded store.

use std::time::Duration;

use ipam_kit::allocate::{Lease, known, scope};
use ipam_kit::delegate::Deadline;
use ipam_kit::{Request, Result};
use ipam_servers::Server;
use log::{debug, warn};

use crate::config::{ConsulConfig, Site};
use crate::keys::ConsulKeys;
use crate::memory::{ClaimMark, ConsulMemory};
use crate::store::KvStore;
use crate::txn::{LARGEST, Op, TxnOutcome};
use crate::values::index_of;

/// How long the proof may take, and which part of the time that is left.
const LONGEST: Duration = Duration::from_secs(3);
const PART: u32 = 3;

/// Today's servers, where the configuration names other settings than the record and these prove to lead
/// to the recorded store.
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
    let [before, now] = [recorded, &today].map(|site| list(&site.servers));
    match prove(request, recorded, today, memory, keys) {
        Ok(Some(store)) => {
            debug!("goes the way that the configuration names now");
            return Some(store);
        }
        Ok(None) => warn!("{now}: not proved to be the recorded store"),
        Err(error) => warn!("{now}: {}", error.in_full()),
    }
    warn!("goes the recorded way: {before}");
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
    let key = |lease: &Lease| keys.lease(lease.pool.as_deref(), lease.address.addr());
    let node = scope(request)?.node;
    let mark = keys.mark(&node);
    let mut ops: Vec<Op> = known.iter().map(|lease| Op::GetTree(key(lease))).collect();
    if memory.is_indexed() {
        ops.push(Op::GetTree(mark.clone()));
    }
    let place = |server: &Server| server.without_scheme();
    let todays: Vec<String> = today.servers.iter().map(place).collect();
    let recorded: Vec<String> = recorded.servers.iter().map(place).collect();
    let time = LONGEST.min(request.deadline.left() / PART);
    let mut store = KvStore::new(today, request.unreached(), Deadline::after(time))?;
    store.require_proof();
    let TxnOutcome::Done(pairs) = store.read(&ops)? else { return Ok(None) };
    let find = |key: &str| pairs.iter().find(|pair| pair.key == key);
    let shown = find(&mark).map(ClaimMark::of);
    let stands =
        |lease: &Lease| find(&key(lease)).is_some_and(|pair| pair.index == index_of(lease));
    let holds_them = !known.is_empty() && known.iter().all(stands);
    let still_named = recorded.iter().all(|server| todays.contains(server));
    if !memory.proves(&node, shown, &recorded, holds_them || still_named) {
        return Ok(None);
    }
    store.go_on(request.deadline);
    Ok(Some(store))
}
