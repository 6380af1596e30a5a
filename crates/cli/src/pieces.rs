//! A pool in pieces that a map is drawn from.

use std::net::IpAddr;

use super::{Block, PoolRow};
use ipam_kit::cni::address::{distance, next, offset, parse_address};
use ipam_kit::pool::{Range, RangeConfig, RangeSet};

/// A pool has at most this many blocks, so that a picture of it fits a screen.
const BLOCKS: u128 = 1024;

impl PoolRow {
    /// A pool in numbers and pieces; `held` are its addresses that are taken.
    pub fn of(name: Option<&str>, set: &RangeSet, mut held: Vec<IpAddr>) -> Self {
        held.sort_unstable();
        let count = held.len() as u128;
        let ranges = set.ranges().iter();
        let segments = ranges.flat_map(|range| range.segments().iter().map(move |it| (range, *it)));
        let lengths = segments.clone().map(|(_, (first, last))| length(first, last));
        let total = lengths.fold(0, u128::saturating_add);
        // A power of two, so that blocks begin at round addresses where the range does.
        let step = total.div_ceil(BLOCKS).max(1).checked_next_power_of_two().unwrap_or(1 << 127);
        let mut gateways: Vec<IpAddr> = set.ranges().iter().filter_map(Range::gateway).collect();
        gateways.retain(|it| set.find(*it).is_some() && set.refusal(*it).is_some());
        gateways.sort_unstable();
        gateways.dedup();
        let mut blocks = Vec::new();
        for (range, (first, last)) in segments {
            let mut from = Some(first);
            while let Some(start) = from {
                let to = offset(start, step - 1).map_or(last, |end| end.min(last));
                let before = held.partition_point(|address| *address < start);
                let through = held.partition_point(|address| *address <= to);
                blocks.push(Block {
                    from: start,
                    to,
                    size: range.size_between(start, to),
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
            gateways,
            rules: set.to_config().into_iter().find_map(|range| range.rules),
            blocks,
        }
    }
}

/// The use of an address that no owner holds, in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolPlace {
    /// The next ADD may get it.
    Free,
    /// It is a gateway: no container gets it.
    Gateway,
    /// It lies in a range, which excludes it or whose rules forbid it.
    Excluded,
    /// It is free or never given: the allocator does not say which.
    Unclear,
}

impl PoolRow {
    /// Places an address that no owner holds; `None` if it is outside the pool.
    pub fn place(&self, address: IpAddr) -> Option<PoolPlace> {
        if self.gateways.contains(&address) {
            return Some(PoolPlace::Gateway);
        }
        let block = self.blocks.iter().find(|block| block.from <= address && address <= block.to);
        let Some(block) = block else {
            return self.spans(address).then_some(PoolPlace::Excluded);
        };
        let is_whole = block.size == length(block.from, block.to);
        Some(if !is_whole && RangeConfig::forbids(self.rules.as_deref(), address) {
            PoolPlace::Excluded
        } else if is_whole || self.rules.is_some() || !self.gateways.is_empty() {
            PoolPlace::Free
        } else {
            PoolPlace::Unclear
        })
    }

    /// Whether an address lies between the first and the last one of a range.
    fn spans(&self, address: IpAddr) -> bool {
        self.ranges.split(',').filter_map(|range| range.split_once('-')).any(|(first, last)| {
            let ends = [first, last].map(|end| parse_address(end.trim()));
            matches!(ends, [Ok(first), Ok(last)] if first <= address && address <= last)
        })
    }
}

/// The number of addresses between two, with both.
fn length(first: IpAddr, last: IpAddr) -> u128 {
    distance(first, last).unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(row: serde_json::Value) -> PoolRow {
        PoolRow::parse(&row, "[0]").unwrap()
    }

    fn place(pool: &PoolRow, address: &str) -> Option<PoolPlace> {
        pool.place(address.parse().unwrap())
    }

    #[test]
    fn an_address_is_free_a_gateway_excluded_or_outside() {
        let ranges: Vec<ipam_kit::pool::RangeConfig> = serde_json::from_value(json!([
            {"subnet": "10.0.0.0/16", "exclude": ["10.0.4.0/24"]},
            {"subnet": "10.9.0.0/29", "gateway": "10.9.0.6"},
            {"subnet": "10.16.0.0/16", "rules": RangeConfig::WHEREABOUTS},
        ]))
        .unwrap();
        let set = RangeSet::parse(&ranges, ipam_kit::pool::RangeRules::OURS, "ranges").unwrap();
        let written: serde_json::Value = PoolRow::of(None, &set, Vec::new()).to_row().into();
        let pool = pool(written);
        let sizes = pool.blocks.iter().map(|block| block.size);
        assert_eq!(sizes.sum::<u128>(), set.size());
        for (address, expected) in [
            ("10.0.0.2", Some(PoolPlace::Free)),
            ("10.0.0.1", Some(PoolPlace::Gateway)),
            ("10.0.4.7", Some(PoolPlace::Excluded)),
            ("10.9.0.1", Some(PoolPlace::Free)),
            ("10.9.0.6", Some(PoolPlace::Gateway)),
            ("10.9.0.7", None),
            ("10.16.0.1", Some(PoolPlace::Free)),
            ("10.16.1.0", Some(PoolPlace::Excluded)),
            ("10.0.0.0", None),
            ("fd00::1", None),
        ] {
            assert_eq!(place(&pool, address), expected, "{address}");
        }
    }

    #[test]
    fn an_allocator_that_names_no_gateways_leaves_it_open() {
        let row = |size: u32| {
            pool(json!({
                "ranges": "10.0.0.1-10.0.0.9", "size": size,
                "blocks": [{"from": "10.0.0.1", "to": "10.0.0.9", "size": size}],
            }))
        };
        assert_eq!(place(&row(8), "10.0.0.4"), Some(PoolPlace::Unclear));
        assert_eq!(place(&row(9), "10.0.0.4"), Some(PoolPlace::Free));
    }
}
