//! What an allocator over a ledger says of its own pools when `lint` asks it.

use std::ops::ControlFlow;

use crate::Row;
use ipam_kit::allocate::ledger::Fault;
use ipam_kit::allocate::{Inspect, RequestedPools};
use ipam_kit::cni::address::is_strange_gateway;
use ipam_kit::delegate::Request;
use ipam_kit::error::Result;
use ipam_kit::ipam_section::misspelt_settings;
use ipam_kit::keys::Key;
use ipam_kit::pool::{Pool, Range, RangeSet};

/// How many entries are named one by one.
const NAMED: usize = 20;

/// What there is to say of a configuration and of the pools that it asks for: each row has a `level` and a
/// `message`. `keys` are those of `ipam` that the allocator reads.
///
/// # Errors
/// The store cannot be read, and pools are asked for.
pub(crate) fn findings(
    books: &mut dyn Inspect,
    request: &Request,
    keys: &[Key],
    asked: &RequestedPools,
) -> Result<Vec<Row>> {
    let sets = books.sets(&asked.pools).map_err(|error| asked.explain(error))?;
    let rows = of_pools(books, &asked.pools, &sets).and_then(|mut rows| {
        let mut misspelt = misspelt_settings(&request.network, keys);
        misspelt.extend(books.misspelt(&asked.pools)?);
        rows.extend(misspelt.iter().map(|it| row("error", it.error().in_full())));
        Ok(rows)
    });
    // Without a previous result no delegate before this one has been asked.
    let is_chained = request.network.config().contains_key("prevResult");
    let Some(refusal) = asked.refuse_nothing().err().filter(|_| is_chained) else { return rows };
    // It holds also where the store is away.
    let mut rows = rows.unwrap_or_default();
    let mut first = row("error", refusal.in_full());
    first.text("about", "pools");
    rows.insert(0, first);
    Ok(rows)
}

fn of_pools(books: &mut dyn Inspect, pools: &[Pool], sets: &[RangeSet]) -> Result<Vec<Row>> {
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
    unreadable.extend(books.foreign_entries()?);
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

fn strange_gateway(range: &Range) -> Option<Row> {
    let (gateway, subnet) = (range.gateway()?, range.subnet());
    let message =
        format!("the gateway {gateway} lies outside of its subnet {subnet}: correct one of them");
    is_strange_gateway(gateway, subnet).then(|| row("warning", message))
}

fn row(level: &str, message: String) -> Row {
    let mut row = Row::default();
    row.text("level", level);
    row.text("message", &message);
    row
}
