//! The verb STATUS: a check whether an ADD would succeed.

use ipam_kit::Result;

use crate::call::CallScope;
use crate::definition::{Definition, no_such_pool};
use crate::errors::{refused, unreadable, unwritable};
use crate::keys::{ConsulKeys, ROOT};
use crate::memory::ClaimMark;
use crate::session::ConsulSession;
use crate::store::KvStore;
use crate::txn::{Op, Pair, TxnOutcome, find};

/// Fails if an ADD would: the token may not write, a pool is missing or wrong, the store was
/// restored.
pub(crate) fn check_ready(call: &CallScope, session: &mut ConsulSession) -> Result<()> {
    let ConsulSession { store, memory, pools, .. } = session;
    let mark_key = call.node.as_ref().map(|node| call.keys.mark(node));
    let pairs = read_definitions(call, store, mark_key.as_deref())?;
    for pool in &call.defined_in_consul {
        let key = ConsulKeys::definition(pool);
        let pair = find(&pairs, &key).ok_or_else(|| unreadable(&key))?;
        pools.check_definition(pool, &Definition::read(pair)?)?;
    }
    memory.remember_server(store.preferred());
    let (Some(node), Some(mark_key)) = (&call.node, mark_key) else { return Ok(()) };
    let mark = find(&pairs, &mark_key).map(ClaimMark::of);
    if !memory.is_indexed() || memory.matches_latest_claim(node, mark) {
        return Ok(());
    }
    // A leader that lost its office answers by what it knew.
    store.require_proof();
    match store.read(&[Op::GetTree(mark_key.clone())])? {
        TxnOutcome::Done(pairs) => {
            let mark = find(&pairs, &mark_key).map(ClaimMark::of);
            if memory.matches_latest_claim(node, mark) {
                Ok(())
            } else {
                Err(memory.remember_restored())
            }
        }
        TxnOutcome::Failed(failures) => Err(refused(&[], &failures)),
    }
}

/// Reads the definitions of the call's pools and the node's mark, and fails if the token may not
/// write in a pool's folder.
fn read_definitions(
    call: &CallScope,
    store: &mut KvStore,
    mark_key: Option<&str>,
) -> Result<Vec<Pair>> {
    let mut ops: Vec<Op> =
        call.defined_in_consul.iter().map(|pool| Op::Get(ConsulKeys::definition(pool))).collect();
    ops.extend(call.folders.iter().map(|folder| Op::CheckAbsent(ConsulKeys::probe(folder))));
    ops.extend(mark_key.map(|key| Op::GetTree(key.to_owned())));
    loop {
        let failures = match store.read(&ops)? {
            TxnOutcome::Done(pairs) => return Ok(pairs),
            TxnOutcome::Failed(failures) => failures,
        };
        let denied = failures.iter().find(|failure| failure.is_denied());
        if let Some(op) = denied.and_then(|failure| ops.get(failure.op_index)) {
            return Err(unwritable(op));
        }
        let first = failures.first().and_then(|failure| ops.get(failure.op_index));
        let Some(Op::Get(key)) = first else { return Err(refused(&ops, &failures)) };
        if store.requires_proof() {
            return Err(no_such_pool(key.strip_prefix(ROOT).unwrap_or_default()));
        }
        // A leader that was just elected shows less than there is.
        store.require_proof();
    }
}
