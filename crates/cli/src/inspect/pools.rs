//! `pools`.

use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::error::Result;

use super::InspectCall;
use crate::{PoolRow, print_pools};

pub(super) fn pools(call: &InspectCall<'_>) -> Result<String> {
    let mut network = call.open()?;
    let requested = network.requested_pools()?;
    let sets = network.ledger.sets(&requested)?;
    let mut held: Vec<Vec<IpAddr>> = vec![Vec::new(); sets.len()];
    network.ledger.entries(&mut |entry| {
        let address = entry.lease.address.addr();
        for (set, held) in sets.iter().zip(&mut held) {
            if set.refusal(address).is_none() {
                held.push(address);
            }
        }
        ControlFlow::Continue(())
    })?;
    let mut pools = Vec::new();
    for ((pool, set), held) in requested.pools.iter().zip(&sets).zip(held) {
        let pool = PoolRow::of(pool.name(), set, held);
        let row = pool.to_row();
        pools.push((pool, row));
    }
    Ok(print_pools(&call.arguments, &call.call.environment, pools))
}
