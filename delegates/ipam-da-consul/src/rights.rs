//! Whether an ADD would be served.

use ipam_kit::Result;

use crate::call::Call;
use crate::errors::{refused, unreadable, unwritable};
use crate::keys::{Keys, ROOT};
use crate::memory::Mark;
use crate::pool::{self, Definition};
use crate::session::Session;
use crate::txn::{Ended, Op};

/// Fails where an ADD would: the token may not write, a pool is missing or wrong, the store was restored.
pub(crate) fn try_rights(call: &Call, session: &mut Session) -> Result<()> {
    let Session { store, memory, pools, .. } = session;
    let mut ops: Vec<Op> = call.named.iter().map(|pool| Op::Get(Keys::definition(pool))).collect();
    ops.extend(call.asked.iter().map(|pool| Op::CheckAbsent(Keys::probe(pool))));
    let mark = call.node.as_ref().map(|node| call.keys.mark(node));
    ops.extend(mark.iter().map(|mark| Op::GetTree(mark.clone())));
    let pairs = loop {
        let failures = match store.read(&ops)? {
            Ended::Done(pairs) => break pairs,
            Ended::Failed(failures) => failures,
        };
        let first = failures.first().and_then(|failure| ops.get(failure.place));
        let denied = failures.iter().find(|failure| failure.is_denied());
        return Err(match (denied.and_then(|failure| ops.get(failure.place)), first) {
            (Some(op), _) => unwritable(op),
            // A leader that was just elected shows less than is there.
            (None, Some(Op::Get(_))) if !store.insists() => {
                store.insist();
                continue;
            }
            (None, Some(Op::Get(key))) => pool::missing(key.strip_prefix(ROOT).unwrap_or_default()),
            (None, _) => refused(&ops, &failures),
        });
    };
    let find = |key: &str| pairs.iter().find(|pair| pair.key == *key);
    for pool in &call.named {
        let key = Keys::definition(pool);
        let pair = find(&key).ok_or_else(|| unreadable(&key))?;
        pools.judge(pool, &Definition::read(pair)?)?;
    }
    memory.note_server(store.preferred());
    let (Some(node), Some(key)) = (&call.node, mark.filter(|_| memory.is_indexed())) else {
        return Ok(());
    };
    if memory.goes_with(node, find(&key).map(Mark::of)) {
        return Ok(());
    }
    // A leader that is none any more answers by what it knew.
    store.insist();
    match store.read(&[Op::GetTree(key.clone())])? {
        Ended::Done(pairs) => {
            let now = pairs.iter().find(|pair| pair.key == key).map(Mark::of);
            if memory.goes_with(node, now) { Ok(()) } else { Err(memory.note_set_back()) }
        }
        Ended::Failed(failures) => Err(refused(&[], &failures)),
    }
}
