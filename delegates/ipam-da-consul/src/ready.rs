//! Whether an ADD would be served.

use ipam_kit::Result;

use crate::call::CallScope;
use crate::definition::{self, Definition};
use crate::errors::{refused, unreadable, unwritable};
use crate::keys::{ConsulKeys, ROOT};
use crate::memory::ClaimMark;
use crate::session::ConsulSession;
use crate::txn::{Op, TxnOutcome};

/// Fails where an ADD would: the token may not write, a pool is missing or wrong, the store was restored.
pub(crate) fn check_ready(call: &CallScope, session: &mut ConsulSession) -> Result<()> {
    let ConsulSession { store, memory, pools, .. } = session;
    let mut ops: Vec<Op> =
        call.named.iter().map(|pool| Op::Get(ConsulKeys::definition(pool))).collect();
    ops.extend(call.asked.iter().map(|pool| Op::CheckAbsent(ConsulKeys::probe(pool))));
    let mark = call.node.as_ref().map(|node| call.keys.mark(node));
    ops.extend(mark.iter().map(|mark| Op::GetTree(mark.clone())));
    let pairs = loop {
        let failures = match store.read(&ops)? {
            TxnOutcome::Done(pairs) => break pairs,
            TxnOutcome::Failed(failures) => failures,
        };
        let first = failures.first().and_then(|failure| ops.get(failure.place));
        let denied = failures.iter().find(|failure| failure.is_denied());
        return Err(match (denied.and_then(|failure| ops.get(failure.place)), first) {
            (Some(op), _) => unwritable(op),
            // A leader that was just elected shows less than is there.
            (None, Some(Op::Get(_))) if !store.requires_proof() => {
                store.require_proof();
                continue;
            }
            (None, Some(Op::Get(key))) => {
                definition::missing(key.strip_prefix(ROOT).unwrap_or_default())
            }
            (None, _) => refused(&ops, &failures),
        });
    };
    let find = |key: &str| pairs.iter().find(|pair| pair.key == *key);
    for pool in &call.named {
        let key = ConsulKeys::definition(pool);
        let pair = find(&key).ok_or_else(|| unreadable(&key))?;
        pools.check_ranges(pool, &Definition::read(pair)?)?;
    }
    memory.remember_server(store.preferred());
    let (Some(node), Some(key)) = (&call.node, mark.filter(|_| memory.is_indexed())) else {
        return Ok(());
    };
    if memory.matches_latest_claim(node, find(&key).map(ClaimMark::of)) {
        return Ok(());
    }
    // A leader that is none any more answers by what it knew.
    store.require_proof();
    match store.read(&[Op::GetTree(key.clone())])? {
        TxnOutcome::Done(pairs) => {
            let now = pairs.iter().find(|pair| pair.key == key).map(ClaimMark::of);
            if memory.matches_latest_claim(node, now) {
                Ok(())
            } else {
                Err(memory.remember_restored())
            }
        }
        TxnOutcome::Failed(failures) => Err(refused(&[], &failures)),
    }
}
