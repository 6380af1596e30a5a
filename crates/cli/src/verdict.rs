//! What an allocator over a ledger says of its own pools when `lint` asks it.

use std::net::IpAddr;
use std::ops::ControlFlow;

use crate::Row;
use ipam_kit::allocate::Books;
use ipam_kit::allocate::ledger::Fault;
use ipam_kit::error::Result;
use ipam_kit::pool::{Pool, Range, RangeSet};

/// How many entries are named one by one.
const NAMED: usize = 20;

/// What there is to say of pools: each row has a `level` and a `message`.
pub(crate) fn findings(books: &dyn Books, pools: &[Pool], sets: &[RangeSet]) -> Result<Vec<Row>> {
    let mut held = vec![0_u64; sets.len()];
    let mut unreadable = Vec::new();
    let mut leftovers = 0_u64;
    let mut bare = 0_u64;
    books.entries(&mut |entry| {
        let address = entry.lease.address.addr();
        for (held, set) in held.iter_mut().zip(sets) {
            *held += u64::from(set.refusal(address).is_none());
        }
        match &entry.fault {
            Some(Fault::Unreadable(reason)) => unreadable.push(format!("{address}: {reason}")),
            Some(Fault::Leftover) => leftovers += 1,
            None => {}
        }
        bare += u64::from(entry.holder.as_ref().is_some_and(|holder| holder.ifname.is_none()));
        ControlFlow::Continue(())
    })?;
    unreadable.extend(books.strangers()?);
    let mut rows = Vec::new();
    for ((pool, set), held) in pools.iter().zip(sets).zip(held) {
        let name = pool.name().map(|name| format!(" {name}")).unwrap_or_default();
        let size = set.size();
        let full = if u128::from(held) >= size { ": it is full" } else { "" };
        let level = if full.is_empty() { "note" } else { "warning" };
        rows.push(row(
            level,
            format!("pool{name} ({set}): {held} of {size} addresses are held{full}"),
        ));
        // Ranges that a configuration writes, its network is told of.
        if pool.ranges().is_empty() {
            rows.extend(set.ranges().iter().filter_map(strange_gateway));
        }
        rows.extend(set.remarks().iter().map(|remark| row("warning", remark.clone())));
    }
    let more = unreadable.len().saturating_sub(NAMED);
    rows.extend(unreadable.into_iter().take(NAMED).map(|what| row("warning", what)));
    if more > 0 {
        rows.push(row("warning", format!("and {more} more that cannot be read")));
    }
    if leftovers > 0 {
        rows.push(row("note", format!("{leftovers} entries are leftovers that hold nothing")));
    }
    if bare > 0 {
        let message = format!(
            "{bare} addresses are held by entries that name no interface, as older systems write them"
        );
        rows.push(row("note", message));
    }
    Ok(rows)
}

/// A gateway that lies outside of its subnet; a link-local one is meant so.
fn strange_gateway(range: &Range) -> Option<Row> {
    let (gateway, subnet) = (range.gateway()?, range.subnet());
    let is_link_local = match gateway {
        IpAddr::V4(gateway) => gateway.is_link_local(),
        IpAddr::V6(gateway) => gateway.is_unicast_link_local(),
    };
    let is_strange = !is_link_local && !subnet.contains(&gateway);
    let message =
        format!("the gateway {gateway} lies outside of its subnet {subnet}: correct one of them");
    is_strange.then(|| row("warning", message))
}

/// A finding.
pub(crate) fn row(level: &str, message: String) -> Row {
    let mut row = Row::default();
    row.text("level", level);
    row.text("message", &message);
    row
}
