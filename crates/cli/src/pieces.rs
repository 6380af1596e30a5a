//! A pool in pieces that a map is drawn from.

use std::net::IpAddr;

use super::{Block, PoolRow};
use ipam_kit::cni::address::{distance, next, offset};
use ipam_kit::pool::{Range, RangeSet};

/// A pool has at most this many blocks, so that a picture of it fits a screen.
const BLOCKS: u128 = 1024;

impl PoolRow {
    /// A pool in numbers and pieces; `held` are its addresses that are taken.
    pub fn of(name: Option<&str>, set: &RangeSet, mut held: Vec<IpAddr>) -> Self {
        held.sort_unstable();
        let count = held.len() as u128;
        let mut segments: Vec<(IpAddr, IpAddr)> = Vec::new();
        set.ranges().iter().for_each(|range| segments.extend(range.segments()));
        let lengths = segments.iter().map(|(first, last)| length(*first, *last));
        let total = lengths.fold(0, u128::saturating_add);
        // A power of two, so that blocks begin at round addresses where the range does.
        let step = total.div_ceil(BLOCKS).max(1).checked_next_power_of_two().unwrap_or(1 << 127);
        let mut blocks = Vec::new();
        for (first, last) in segments {
            let mut from = Some(first);
            while let Some(start) = from {
                let to = offset(start, step - 1).map_or(last, |end| end.min(last));
                let gateway =
                    set.ranges().iter().filter_map(Range::gateway).any(|g| start <= g && g <= to);
                let before = held.partition_point(|address| *address < start);
                let through = held.partition_point(|address| *address <= to);
                blocks.push(Block {
                    from: start,
                    to,
                    size: length(start, to) - u128::from(gateway),
                    held: Some((through - before) as u128),
                });
                from = if to < last { next(to) } else { None };
            }
        }
        Self {
            pool: name.map(str::to_owned),
            ranges: set.to_string(),
            size: set.size(),
            held: Some(count),
            free: Some(set.size().saturating_sub(count)),
            blocks,
        }
    }
}

/// How many addresses lie between two, with both.
fn length(first: IpAddr, last: IpAddr) -> u128 {
    distance(first, last).unwrap_or(0).saturating_add(1)
}
