//! Every lease of a network.

use std::ops::ControlFlow;

use ipam_kit::Result;

use crate::entries::{entries_of_node, entry_of_key, read_holdings};
use crate::etcd_ledger::EntryVisitor;
use crate::session::EtcdSession;

/// Shows every entry of the network; only those of `node` where one is named.
pub(super) fn scan(
    session: &mut EtcdSession,
    node: Option<&str>,
    each: EntryVisitor<'_>,
) -> Result<()> {
    let Some(node) = node else {
        return session.each_below(session.keys.leases().to_owned(), &mut |keys, found| {
            entry_of_key(keys, found).map_or(ControlFlow::Continue(()), &mut *each)
        });
    };
    let prefix = session.keys.of_node(node);
    let holdings = read_holdings(session, prefix)?;
    // Whether it ended early is the caller's own doing.
    let _ = entries_of_node(&holdings, node, session.keys.network().as_str()).try_for_each(each);
    Ok(())
}
