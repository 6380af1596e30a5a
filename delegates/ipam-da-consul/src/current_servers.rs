//! The proof that the servers of the present configuration have the recorded store.

use ipam_kit::allocate::present_store::present_store;
use ipam_kit::allocate::{known, scope};
use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, Request, Result};
use ipam_servers::Server;

use crate::config::{ConsulConfig, Site};
use crate::keys::ConsulKeys;
use crate::memory::{ClaimMark, ConsulMemory};
use crate::store::KvStore;
use crate::txn::{LARGEST, Op, TxnOutcome, find};
use crate::values::index_of;

/// Opens the store by the servers of the present configuration; `None` if the configuration has not
/// changed since the record, or if no proof shows that these servers have the recorded store.
pub(crate) fn proven(
    request: &Request,
    recorded: &Site,
    memory: &ConsulMemory,
    keys: &ConsulKeys,
) -> Option<KvStore> {
    present_store(
        request,
        |network| {
            let present = network.settings::<ConsulConfig>()?.site(request)?;
            if present.datacenter != recorded.datacenter {
                return Err(Error::config(
                    "ipam.consul.datacenter",
                    "the record names another one",
                ));
            }
            let servers = Error::listed(present.servers.iter().map(Server::to_string), ", ");
            Ok((present, servers))
        },
        |present, deadline| prove(request, recorded, present, deadline, memory, keys),
    )
}

fn prove(
    request: &Request,
    recorded: &Site,
    present: Site,
    deadline: Deadline,
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
    let mut store = KvStore::new(present, request.unreached(), deadline)?;
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
