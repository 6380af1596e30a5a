//! The choice of an address: pure functions of what is known of a pool.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ledger::{PoolView, Scan, Used};
use super::span::{AddressSpan, SpanAddresses, clip, first_shown, random_address, scramble};
use crate::cni::address;
use crate::error::{Error, Result};
use crate::pool::RangeSet;

/// How an address is chosen among the free ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The next one after the address given out last: host-local's way, which reuses an address
    /// as late as possible.
    RoundRobin,
    /// The lowest of the first range that has one.
    Lowest,
    /// Any.
    Random,
}

impl Strategy {
    /// [`Strategy::parse`], with the path of the text for an error.
    pub(crate) fn read(text: &str, path: &str) -> Result<Self> {
        Self::parse(text).ok_or_else(|| {
            Error::config(
                path,
                format!("unknown strategy {text:?}: expected round-robin, lowest or random"),
            )
        })
    }

    /// Reads `round-robin`, `lowest` or `random`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "round-robin" => Some(Self::RoundRobin),
            "lowest" => Some(Self::Lowest),
            "random" => Some(Self::Random),
            _ => None,
        }
    }
}

/// The limits of one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Candidates for each claim.
    pub each: usize,
    /// How many of them are random addresses, in a pool with round robin of which nothing is known:
    /// for stores in which other nodes claim the next address, too.
    pub random_candidates: usize,
    /// Pools are scanned before anything is tried.
    pub look_first: bool,
}

impl ClaimLimits {
    /// One candidate after the other, for a store with little contention.
    pub const IN_ORDER: Self = Self { each: 64, random_candidates: 0, look_first: false };
}

/// A search for free addresses, by the view of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The pool's ranges.
    pub set: &'a RangeSet,
    /// How to choose.
    pub strategy: Strategy,
    /// Random bits.
    pub random: u64,
    /// Addresses that were found taken where nothing else is known.
    pub avoid: &'a BTreeSet<IpAddr>,
}

/// Among how many free addresses one is chosen at random, at least.
const MIXED: usize = 1024;

/// How many addresses the first window holds.
const WINDOW: u128 = 256;

/// By how much each further window is larger.
const GROWTH: u128 = 8;

/// A window of this size or more is the whole pool.
const LARGEST: u128 = 32 * 1024;

impl Search<'_> {
    /// The best addresses to try, at most `limit`, each usable, not known to be taken and not
    /// resting. Without any, all that was scanned is taken or rests.
    pub fn candidates(&self, view: &PoolView, limit: usize) -> Vec<IpAddr> {
        if let Some(free) = view.remembered() {
            return self.remembered(free, view, limit);
        }
        let (spans, taken) = match &view.used {
            Used::Unknown if self.strategy == Strategy::Random => {
                return self.random_candidates(limit, view, &[]);
            }
            Used::Unknown => (self.spans(), None),
            Used::Windows(windows, taken) => (self.spans_in(windows), Some(taken)),
            Used::All(taken) => (self.spans(), Some(taken)),
        };
        let after = match self.strategy {
            Strategy::Random => random_address(&spans, self.random),
            _ => self.start(view.cursor),
        };
        let ring = self.ring(spans, after).into_iter().flat_map(SpanAddresses::of);
        let ring = ring.filter(|address| !view.resting.contains_key(address));
        let Some(taken) = taken else {
            return ring.filter(|address| self.is_untried(*address)).take(limit).collect();
        };
        let free = ring.filter(|address| self.is_usable(*address) && !taken.contains(address));
        match self.strategy {
            // From many random addresses, the next free one would be the same.
            Strategy::Random => self.shuffled(free.take(limit.max(MIXED)).collect(), limit),
            _ => free.take(limit).collect(),
        }
    }

    /// The candidates of one commit: the best addresses, and random ones if the limits say so.
    pub(crate) fn claim_candidates(self, view: &PoolView, limits: ClaimLimits) -> Vec<IpAddr> {
        let is_blind = !view.is_known() && self.strategy == Strategy::RoundRobin;
        let random = if is_blind { limits.random_candidates.min(limits.each) } else { 0 };
        let mut candidates = self.candidates(view, limits.each - random);
        if random > 0 {
            candidates.extend(self.random_candidates(random, view, &candidates));
        }
        candidates
    }

    /// The free addresses that rest, at most `limit`, those freed first before the others. None
    /// while the view does not show the whole pool.
    pub(crate) fn resting_candidates(&self, view: &PoolView, limit: usize) -> Vec<IpAddr> {
        let Used::All(taken) = &view.used else { return Vec::new() };
        let resting = view.resting.iter().map(|(address, freed)| (*freed, *address));
        let mut free: Vec<_> = resting
            .filter(|(_, address)| self.is_usable(*address) && !taken.contains(address))
            .collect();
        free.sort_unstable();
        free.into_iter().map(|(_, address)| address).take(limit).collect()
    }

    /// The next scan after all addresses of this one proved taken, in windows that grow; `None`
    /// after the whole pool.
    pub fn next_scan(&self, scanned: Scan, cursor: Option<IpAddr>) -> Option<Scan> {
        match scanned {
            Scan::None => Some(self.window(self.start(cursor), WINDOW)),
            Scan::Range(from, to) => {
                let size = address::distance(from, to).unwrap_or(0).saturating_add(1);
                let width = size.max(WINDOW / GROWTH) * GROWTH;
                // In a pool of many small spans windows would not grow.
                let is_full = width >= LARGEST
                    || width >= self.set.size()
                    || (size < WINDOW && self.spans().len() > 2);
                Some(if is_full { Scan::Full } else { self.window(Some(to), width) })
            }
            Scan::Full => None,
        }
    }

    /// Those of some free addresses that are the pool's, the best first.
    fn remembered(&self, free: &BTreeSet<IpAddr>, view: &PoolView, limit: usize) -> Vec<IpAddr> {
        let start = match self.strategy {
            Strategy::Random => None,
            _ => self.start(view.cursor),
        };
        let spans = self.ring(self.spans(), start).into_iter();
        let of_pool = spans.flat_map(|(first, last)| free.range(first..=last).copied());
        let untried = of_pool
            .filter(|address| self.is_untried(*address) && !view.resting.contains_key(address));
        match self.strategy {
            Strategy::Random => self.shuffled(untried.collect(), limit),
            _ => untried.take(limit).collect(),
        }
    }

    /// Some of these addresses, in any order.
    fn shuffled(&self, mut all: Vec<IpAddr>, limit: usize) -> Vec<IpAddr> {
        let mut random = self.random;
        let mut chosen = Vec::new();
        while chosen.len() < limit && !all.is_empty() {
            random = scramble(random);
            let index = random % u64::try_from(all.len()).unwrap_or(u64::MAX);
            chosen.push(all.swap_remove(usize::try_from(index).unwrap_or(0)));
        }
        chosen
    }

    /// The part of the pool that comes after an address.
    fn window(&self, after: Option<IpAddr>, width: u128) -> Scan {
        let Some((first, last)) = self.ring(self.spans(), after).into_iter().next() else {
            return Scan::Full;
        };
        let end = address::offset(first, width - 1).map_or(last, |end| end.min(last));
        Scan::Range(first, end)
    }

    fn is_usable(&self, address: IpAddr) -> bool {
        self.set.find(address).is_some_and(|range| range.usable(address))
    }

    fn is_untried(&self, address: IpAddr) -> bool {
        self.is_usable(address) && !self.avoid.contains(&address)
    }

    /// The address after which the strategy begins; `None` is before the first.
    fn start(&self, cursor: Option<IpAddr>) -> Option<IpAddr> {
        match self.strategy {
            Strategy::Lowest => None,
            Strategy::RoundRobin => cursor.filter(|cursor| self.set.find(*cursor).is_some()),
            Strategy::Random => random_address(&self.spans(), self.random),
        }
    }

    /// Spans of the pool in the order in which their addresses are tried: those after an address,
    /// then those before it.
    fn ring(&self, spans: Vec<AddressSpan>, after: Option<IpAddr>) -> Vec<AddressSpan> {
        let Some(after) = after else {
            return spans;
        };
        // The order is that of the ranges, which need not be that of the addresses.
        let range_of_after = self.range_index(after);
        let mut ahead = Vec::new();
        let mut behind = Vec::new();
        for (first, last) in spans {
            let range = self.range_index(first);
            if range > range_of_after || (range == range_of_after && first > after) {
                ahead.push((first, last));
            } else if range < range_of_after || last <= after {
                behind.push((first, last));
            } else {
                behind.push((first, after));
                ahead.extend(address::next(after).map(|next| (next, last)));
            }
        }
        ahead.append(&mut behind);
        ahead
    }

    fn range_index(&self, address: IpAddr) -> Option<usize> {
        self.set.ranges().iter().position(|range| range.spans(address))
    }

    /// The spans of the pool, in the order of the ranges.
    fn spans(&self) -> Vec<AddressSpan> {
        self.set.ranges().iter().flat_map(|range| range.segments().iter().copied()).collect()
    }

    /// The parts of the spans that windows show.
    fn spans_in(&self, windows: &[AddressSpan]) -> Vec<AddressSpan> {
        match self.strategy {
            Strategy::Lowest => first_shown(self.spans(), windows),
            _ => self.spans().into_iter().flat_map(|span| clip(span, windows)).collect(),
        }
    }

    /// Untried addresses all over the pool, beside some that are candidates already.
    fn random_candidates(&self, limit: usize, view: &PoolView, beside: &[IpAddr]) -> Vec<IpAddr> {
        let is_open = |address: &IpAddr| {
            self.is_untried(*address)
                && !view.resting.contains_key(address)
                && !beside.contains(address)
        };
        let mut found: Vec<IpAddr> = Vec::new();
        let mut random = self.random;
        let spans = self.spans();
        for _ in 0..limit.saturating_mul(4) {
            random = scramble(random);
            let address = random_address(&spans, random);
            found.extend(address.filter(|address| is_open(address) && !found.contains(address)));
            if found.len() == limit {
                return found;
            }
        }
        // Hardly an address of the pool is left to try: one after the other.
        for address in spans.into_iter().flat_map(SpanAddresses::of) {
            if found.len() == limit {
                break;
            }
            if is_open(&address) && !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::RangeRules;
    use serde_json::{Value, json};

    fn set(ranges: Value) -> RangeSet {
        let ranges: Vec<_> = serde_json::from_value(ranges).unwrap();
        RangeSet::parse(&ranges, RangeRules::OURS, "r").unwrap()
    }

    fn address(text: &str) -> IpAddr {
        address::parse_address(text).unwrap()
    }

    fn tried(set: &RangeSet, strategy: Strategy, cursor: Option<&str>, used: Used) -> Vec<String> {
        let search = Search { set, strategy, random: 7, avoid: &BTreeSet::new() };
        let view = PoolView { cursor: cursor.map(address), used, ..PoolView::default() };
        search.candidates(&view, 4).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn round_robin_goes_round_the_ranges_as_written() {
        let set = set(json!([
            {"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.4", "rangeEnd": "10.0.1.5"},
            {"subnet": "10.0.0.0/30", "rangeEnd": "10.0.0.3"},
        ]));
        for (cursor, order) in [
            (None, ["10.0.1.4", "10.0.1.5", "10.0.0.2", "10.0.0.3"]),
            (Some("10.0.1.4"), ["10.0.1.5", "10.0.0.2", "10.0.0.3", "10.0.1.4"]),
            (Some("10.0.1.5"), ["10.0.0.2", "10.0.0.3", "10.0.1.4", "10.0.1.5"]),
            (Some("10.0.0.1"), ["10.0.0.2", "10.0.0.3", "10.0.1.4", "10.0.1.5"]),
            (Some("10.0.0.3"), ["10.0.1.4", "10.0.1.5", "10.0.0.2", "10.0.0.3"]),
            (Some("192.0.2.1"), ["10.0.1.4", "10.0.1.5", "10.0.0.2", "10.0.0.3"]),
        ] {
            assert_eq!(tried(&set, Strategy::RoundRobin, cursor, Used::Unknown), order);
        }
        let order = ["10.0.1.4", "10.0.1.5", "10.0.0.2", "10.0.0.3"];
        assert_eq!(tried(&set, Strategy::Lowest, Some("10.0.1.4"), Used::Unknown), order);
    }

    #[test]
    fn a_scan_goes_on_where_the_strategy_would_choose() {
        let set = set(json!([{"subnet": "10.0.0.0/16"}]));
        let search = Search {
            set: &set,
            strategy: Strategy::RoundRobin,
            random: 0,
            avoid: &BTreeSet::new(),
        };
        let window = search.next_scan(Scan::None, Some(address("10.0.3.255"))).unwrap();
        assert_eq!(window, Scan::Range(address("10.0.4.0"), address("10.0.4.255")));
        let wider = search.next_scan(window, None).unwrap();
        assert_eq!(wider, Scan::Range(address("10.0.5.0"), address("10.0.12.255")));
        let widest = search.next_scan(wider, None).unwrap();
        assert_eq!(widest, Scan::Range(address("10.0.13.0"), address("10.0.76.255")));
        assert_eq!(search.next_scan(widest, None), Some(Scan::Full));
        assert_eq!(search.next_scan(Scan::Full, None), None);
    }

    #[test]
    fn random_candidates_are_added_where_nothing_is_known() {
        let set = set(json!([{"subnet": "10.0.0.0/16"}]));
        let avoid = BTreeSet::new();
        let to_try = |strategy, used| {
            let search = Search { set: &set, strategy, random: 7, avoid: &avoid };
            let view = PoolView { cursor: Some(address("10.0.0.9")), used, ..PoolView::default() };
            search.claim_candidates(
                &view,
                ClaimLimits { each: 4, random_candidates: 2, look_first: false },
            )
        };
        let next = ["10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13"].map(address);
        let blind = to_try(Strategy::RoundRobin, Used::Unknown);
        assert_eq!(blind[..2], next[..2]);
        assert!(blind.len() == 4 && blind[2..].iter().all(|a| !next.contains(a)), "{blind:?}");
        assert_eq!(to_try(Strategy::RoundRobin, Used::All(BTreeSet::new())), next);
        let lowest = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"].map(address);
        assert_eq!(to_try(Strategy::Lowest, Used::Unknown), lowest);
    }

    #[test]
    fn strategies_have_names() {
        for (text, strategy) in [
            ("round-robin", Some(Strategy::RoundRobin)),
            ("lowest", Some(Strategy::Lowest)),
            ("random", Some(Strategy::Random)),
            ("Random", None),
            ("", None),
        ] {
            assert_eq!(Strategy::parse(text), strategy, "{text}");
        }
    }
}
