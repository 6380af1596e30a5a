//! The choice of an address: pure functions of what is known of a pool.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ledger::{PoolView, Scan, Used};
use super::piece::{Count, Piece, clip, nth, scramble, shown};
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
    /// [`Strategy::parse`], with the place of the text for an error.
    pub(crate) fn read(text: &str, path: &str) -> Result<Self> {
        Self::parse(text).ok_or_else(|| {
            Error::config(path, format!("unknown strategy {text:?}"))
                .advise("write round-robin, lowest or random")
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

/// What a store can try in one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Candidates for each claim.
    pub each: usize,
    /// How many of them are random_candidates over a pool that goes round and of which nothing is known:
    /// for stores in which other nodes, too, claim what is next.
    pub random_candidates: usize,
    /// Pools are looked at before anything is tried.
    pub look_first: bool,
}

impl ClaimLimits {
    /// One candidate after the other, for a store that nobody else uses much.
    pub const IN_ORDER: Self = Self { each: 64, random_candidates: 0, look_first: false };
}

/// What a search goes by, beside the view of the pool.
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

/// How many times the one before a further window holds.
const GROWTH: u128 = 8;

/// From how many addresses on the whole pool is looked at.
const LARGEST: u128 = 32 * 1024;

impl Search<'_> {
    /// The best addresses to try, at most `limit`, each usable and not known to be taken. None
    /// means that all that was looked at is taken.
    pub fn candidates(&self, view: &PoolView, limit: usize) -> Vec<IpAddr> {
        let usable = |address: &IpAddr| self.is_usable(*address);
        let untried = |address: &IpAddr| usable(address) && !self.avoid.contains(address);
        if let Some(free) = view.remembered() {
            return self.of_free(free, view.cursor, limit);
        }
        if self.strategy == Strategy::Random && view.used == Used::Unknown {
            return self.random_candidates(limit, untried);
        }
        let mut pieces = self.pieces();
        if let Used::Windows(windows, _) = &view.used {
            pieces = match self.strategy {
                Strategy::Lowest => shown(pieces, windows),
                _ => {
                    let within = |piece| {
                        windows.iter().filter_map(move |(from, to)| clip(piece, *from, *to))
                    };
                    pieces.into_iter().flat_map(within).collect()
                }
            };
        }
        let after = match self.strategy {
            Strategy::Random => nth(&pieces, self.random),
            _ => self.start(view.cursor),
        };
        let ring = self.ring(pieces, after);
        let addresses = ring.into_iter().flat_map(|(first, last)| Count::new(first, last));
        match &view.used {
            Used::Windows(_, taken) | Used::All(taken) => {
                let free = addresses.filter(|a| usable(a) && !taken.contains(a));
                match self.strategy {
                    // The first after a random place would be the same from many places.
                    Strategy::Random => self.shuffled(free.take(limit.max(MIXED)).collect(), limit),
                    _ => free.take(limit).collect(),
                }
            }
            Used::Unknown => addresses.filter(untried).take(limit).collect(),
        }
    }

    /// Those of some free addresses that are the pool's, the best first.
    fn of_free(
        &self,
        free: &BTreeSet<IpAddr>,
        cursor: Option<IpAddr>,
        limit: usize,
    ) -> Vec<IpAddr> {
        let start = match self.strategy {
            Strategy::Random => None,
            _ => self.start(cursor),
        };
        let pieces = self.ring(self.pieces(), start).into_iter();
        let within = pieces.flat_map(|(first, last)| free.range(first..=last).copied());
        let usable = within.filter(|a| self.is_usable(*a) && !self.avoid.contains(a));
        if self.strategy != Strategy::Random {
            return usable.take(limit).collect();
        }
        self.shuffled(usable.collect(), limit)
    }

    /// Some of these addresses, in any order.
    fn shuffled(&self, mut all: Vec<IpAddr>, limit: usize) -> Vec<IpAddr> {
        let mut random = self.random;
        let mut chosen = Vec::new();
        while chosen.len() < limit && !all.is_empty() {
            random = scramble(random);
            let place = random % u64::try_from(all.len()).unwrap_or(u64::MAX);
            chosen.push(all.swap_remove(usize::try_from(place).unwrap_or(0)));
        }
        chosen
    }

    /// What to try in one commit: the best addresses, and random_candidates ones where `tries` says so.
    pub(crate) fn to_try(self, view: &PoolView, tries: ClaimLimits) -> Vec<IpAddr> {
        let blind = !view.is_known() && self.strategy == Strategy::RoundRobin;
        let random_candidates = if blind { tries.random_candidates.min(tries.each) } else { 0 };
        let mut found = self.candidates(view, tries.each - random_candidates);
        if random_candidates > 0 {
            let free =
                |a: &IpAddr| self.is_usable(*a) && !self.avoid.contains(a) && !found.contains(a);
            let more = self.random_candidates(random_candidates, free);
            found.extend(more);
        }
        found
    }

    /// Where to look after all of `seen` has proved taken, in windows that grow; `None` when that
    /// was everything.
    pub fn look_after(&self, seen: Scan, cursor: Option<IpAddr>) -> Option<Scan> {
        match seen {
            Scan::None => Some(self.window(self.start(cursor), WINDOW)),
            Scan::Range(from, to) => {
                let seen = address::distance(from, to).unwrap_or(0).saturating_add(1);
                let width = seen.max(WINDOW / GROWTH) * GROWTH;
                // In a pool of many small pieces windows would not grow.
                let enough = width >= LARGEST
                    || width >= self.set.size()
                    || (seen < WINDOW && self.pieces().len() > 2);
                Some(if enough { Scan::Full } else { self.window(Some(to), width) })
            }
            Scan::Full => None,
        }
    }

    /// The part of the pool that comes after an address.
    fn window(&self, after: Option<IpAddr>, width: u128) -> Scan {
        let Some((first, last)) = self.ring(self.pieces(), after).into_iter().next() else {
            return Scan::Full;
        };
        let end = address::offset(first, width - 1).map_or(last, |end| end.min(last));
        Scan::Range(first, end)
    }

    fn is_usable(&self, address: IpAddr) -> bool {
        self.set.find(address).is_some_and(|range| range.usable(address))
    }

    /// The address after which the strategy begins; `None` is before the first.
    fn start(&self, cursor: Option<IpAddr>) -> Option<IpAddr> {
        match self.strategy {
            Strategy::Lowest => None,
            Strategy::RoundRobin => cursor.filter(|cursor| self.set.find(*cursor).is_some()),
            Strategy::Random => nth(&self.pieces(), self.random),
        }
    }

    /// Pieces of the pool in the order in which their addresses are tried: those after an address,
    /// then those before it.
    fn ring(&self, pieces: Vec<Piece>, after: Option<IpAddr>) -> Vec<Piece> {
        let Some(after) = after else {
            return pieces;
        };
        // The pieces stand in the order of the ranges, which need not be that of the addresses.
        let of = |address| self.set.ranges().iter().position(|range| range.spans(address));
        let here = of(after);
        let (mut ahead, mut behind) = (Vec::new(), Vec::new());
        for (first, last) in pieces {
            let range = of(first);
            if range > here || (range == here && first > after) {
                ahead.push((first, last));
            } else if range < here || last <= after {
                behind.push((first, last));
            } else {
                behind.push((first, after));
                ahead.extend(address::next(after).map(|next| (next, last)));
            }
        }
        ahead.append(&mut behind);
        ahead
    }

    /// The pool's addresses without holes, in the order of the ranges.
    fn pieces(&self) -> Vec<Piece> {
        self.set.ranges().iter().flat_map(|range| range.segments().iter().copied()).collect()
    }

    /// Addresses all over the pool.
    fn random_candidates(&self, limit: usize, free: impl Fn(&IpAddr) -> bool) -> Vec<IpAddr> {
        let mut found = Vec::new();
        let mut random = self.random;
        let pieces = self.pieces();
        for _ in 0..limit.saturating_mul(4) {
            random = scramble(random);
            let candidate = nth(&pieces, random).filter(|a| free(a) && !found.contains(a));
            found.extend(candidate);
            if found.len() == limit {
                return found;
            }
        }
        // A pool with hardly an address left to try: one after the other.
        let rest = self
            .ring(self.pieces(), None)
            .into_iter()
            .flat_map(|(first, last)| Count::new(first, last));
        let rest = rest.filter(|a| free(a) && !found.contains(a)).take(limit - found.len());
        found.extend(rest.collect::<Vec<_>>());
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
    fn a_look_goes_on_where_the_strategy_would_choose() {
        let set = set(json!([{"subnet": "10.0.0.0/16"}]));
        let search = Search {
            set: &set,
            strategy: Strategy::RoundRobin,
            random: 0,
            avoid: &BTreeSet::new(),
        };
        let window = search.look_after(Scan::None, Some(address("10.0.3.255"))).unwrap();
        assert_eq!(window, Scan::Range(address("10.0.4.0"), address("10.0.4.255")));
        let wider = search.look_after(window, None).unwrap();
        assert_eq!(wider, Scan::Range(address("10.0.5.0"), address("10.0.12.255")));
        let widest = search.look_after(wider, None).unwrap();
        assert_eq!(widest, Scan::Range(address("10.0.13.0"), address("10.0.76.255")));
        assert_eq!(search.look_after(widest, None), Some(Scan::Full));
        assert_eq!(search.look_after(Scan::Full, None), None);
    }

    #[test]
    fn a_crowd_scatters_where_nothing_is_known() {
        let set = set(json!([{"subnet": "10.0.0.0/16"}]));
        let avoid = BTreeSet::new();
        let to_try = |strategy, used| {
            let search = Search { set: &set, strategy, random: 7, avoid: &avoid };
            let view = PoolView { cursor: Some(address("10.0.0.9")), used, ..PoolView::default() };
            search.to_try(&view, ClaimLimits { each: 4, random_candidates: 2, look_first: false })
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
