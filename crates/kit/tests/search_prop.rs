//! What holds for every search of a free address, compared with a plain model.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipam_kit::allocate::Strategy as Choice;
use ipam_kit::allocate::ledger::{Hint, PoolView, Scan, Used};
use ipam_kit::allocate::search::Search;
use ipam_kit::pool::{RangeConfig, RangeRules, RangeSet};
use proptest::prelude::*;
use serde_json::json;

/// A pool small enough to be counted, of ranges in any order, and what is known of it.
#[derive(Clone, Debug)]
struct Case {
    set: RangeSet,
    taken: BTreeSet<IpAddr>,
    cursor: Option<IpAddr>,
    window: (IpAddr, IpAddr),
    limit: usize,
    random: u64,
}

/// One of 256 addresses around 10.0.1.0.
fn v4(number: u8) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 120).to_bits() + u32::from(number)).into()
}

/// Two bounds, a gateway, what is excluded, as offsets, and whether the rules are whereabouts'.
type Spread = (u8, u8, Option<u8>, Vec<u8>, bool);

/// Ranges that do not touch: each has 32 addresses of the 256 to itself.
fn set() -> impl Strategy<Value = RangeSet> {
    let holes = prop::collection::vec(0_u8..32, 0..5);
    let range = (0_u8..30, 0_u8..30, prop::option::of(0_u8..32), holes, any::<bool>());
    let ranges = prop::collection::vec(range, 1..=8);
    (ranges, Just((0_u8..8).collect::<Vec<_>>()).prop_shuffle()).prop_filter_map(
        "not wholly excluded",
        |(ranges, places)| {
            let config = |(range, place): (&Spread, u8)| {
                let (a, b, gateway, exclude, is_whereabouts) = range;
                let at = |offset: &u8| v4(place * 32 + offset).to_string();
                let value = json!({
                    "subnet": "10.0.0.120/23", "rangeStart": at(a.min(b)), "rangeEnd": at(a.max(b)),
                    "gateway": gateway.as_ref().map(at),
                    "exclude": exclude.iter().map(at).collect::<Vec<_>>(),
                    "rules": is_whereabouts.then_some(RangeConfig::WHEREABOUTS),
                });
                serde_json::from_value::<RangeConfig>(value).unwrap()
            };
            let configs: Vec<_> = ranges.iter().zip(places).map(config).collect();
            RangeSet::parse(&configs, RangeRules::ANY, "r").ok()
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let taken = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        prop::collection::vec(any::<u8>(), 150..600),
    ];
    let cursor = prop::option::of(any::<u8>());
    let window = (any::<u8>(), any::<u8>());
    (set(), taken, cursor, window, 1_usize..80, any::<u64>()).prop_map(
        |(set, taken, cursor, (a, b), limit, random)| Case {
            set,
            taken: taken.into_iter().map(v4).collect(),
            cursor: cursor.map(v4),
            window: (v4(a.min(b)), v4(a.max(b))),
            limit,
            random,
        },
    )
}

impl Case {
    /// host-local's walk: from the address after the one reserved last, if that lies in the set,
    /// else from the start of the first range; the ranges form a ring; it ends where it began.
    /// Gateways, and what is excluded or against whereabouts' rules, are skipped.
    fn walk(&self, cursor: Option<IpAddr>) -> Vec<IpAddr> {
        let mut ring = Vec::new();
        for range in self.set.ranges() {
            let skips_zero = range.to_config().rules.is_some();
            for address in (0..=255).map(v4) {
                if range.start() <= address && address <= range.end() {
                    let excluded = range.exclude().iter().any(|net| net.contains(&address));
                    let skipped = skips_zero && address.to_string().ends_with(".0");
                    let gateway = range.gateway() == Some(address);
                    ring.push((address, !gateway && !excluded && !skipped));
                }
            }
        }
        let after =
            cursor.and_then(|cursor| ring.iter().position(|(address, _)| *address == cursor));
        let start = after.map_or(0, |place| (place + 1) % ring.len());
        ring.rotate_left(start);
        ring.into_iter().filter(|(_, usable)| *usable).map(|(address, _)| address).collect()
    }

    fn free(&self, cursor: Option<IpAddr>) -> Vec<IpAddr> {
        self.walk(cursor).into_iter().filter(|address| !self.taken.contains(address)).collect()
    }

    /// What the window shows of the set's addresses, up to the first behind that it does not show.
    fn shown(&self) -> BTreeSet<IpAddr> {
        let (from, to) = self.window;
        let in_window = |address: &IpAddr| from <= *address && *address <= to;
        let pieces = self.set.ranges().iter().flat_map(|range| range.segments());
        let all = pieces.flat_map(|(first, last)| {
            (0..=255).map(v4).filter(move |address| first <= address && address <= last)
        });
        all.skip_while(|address| !in_window(address)).take_while(in_window).collect()
    }

    fn search<'a>(&'a self, strategy: Choice, avoid: &'a BTreeSet<IpAddr>) -> Search<'a> {
        Search { set: &self.set, strategy, random: self.random, avoid }
    }

    fn candidates_of(&self, strategy: Choice, free: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let hint = Some(Hint { free: free.clone(), contended: false });
        let view = PoolView { cursor: self.cursor, hint, ..PoolView::default() };
        self.search(strategy, &self.taken).candidates(&view, self.limit)
    }

    fn candidates(&self, strategy: Choice, used: Used, avoid: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let view = PoolView { cursor: self.cursor, used, ..PoolView::default() };
        self.search(strategy, avoid).candidates(&view, self.limit)
    }
}

fn first(mut addresses: Vec<IpAddr>, limit: usize) -> Vec<IpAddr> {
    addresses.truncate(limit);
    addresses
}

fn distinct(addresses: &[IpAddr]) -> bool {
    addresses.iter().collect::<BTreeSet<_>>().len() == addresses.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn round_robin_is_host_locals_walk(case in case()) {
        let free = first(case.free(case.cursor), case.limit);
        let none = BTreeSet::new();
        let all = Used::All(case.taken.clone());
        prop_assert_eq!(&case.candidates(Choice::RoundRobin, all, &none), &free);
        // What was tried in vain is avoided while nothing else is known.
        let blind = case.candidates(Choice::RoundRobin, Used::Unknown, &case.taken);
        prop_assert_eq!(&blind, &free);
    }

    #[test]
    fn the_lowest_does_not_depend_on_the_cursor(case in case()) {
        let free = case.free(None);
        let all = Used::All(case.taken.clone());
        let found = case.candidates(Choice::Lowest, all, &BTreeSet::new());
        prop_assert_eq!(&found, &first(free, case.limit));
        // Within a range, in order.
        for range in case.set.ranges() {
            let its: Vec<_> = found.iter().filter(|address| range.spans(**address)).collect();
            prop_assert!(its.is_sorted(), "{:?}", its);
        }
    }

    #[test]
    fn random_candidates_are_free_distinct_and_as_many_as_there_are(case in case()) {
        let free: BTreeSet<_> = case.free(None).into_iter().collect();
        for (used, avoid) in [
            (Used::All(case.taken.clone()), BTreeSet::new()),
            (Used::Unknown, case.taken.clone()),
        ] {
            let found = case.candidates(Choice::Random, used, &avoid);
            prop_assert!(distinct(&found), "{:?}", found);
            prop_assert!(found.iter().all(|address| free.contains(address)), "{:?}", found);
            prop_assert_eq!(found.len(), case.limit.min(free.len()));
        }
    }

    #[test]
    fn of_addresses_that_were_free_those_found_taken_are_not_tried_again(case in case()) {
        // The store knows no ranges: what it showed as free may lie outside, and be taken by now.
        let shown: BTreeSet<_> = (0..=255).map(v4).collect();
        let lowest = case.candidates_of(Choice::Lowest, &shown);
        prop_assert_eq!(&lowest, &first(case.free(None), case.limit));
        let next = case.candidates_of(Choice::RoundRobin, &shown);
        prop_assert_eq!(&next, &first(case.free(case.cursor), case.limit));
        let free: BTreeSet<_> = case.free(None).into_iter().collect();
        let any = case.candidates_of(Choice::Random, &shown);
        prop_assert!(distinct(&any) && any.iter().all(|a| free.contains(a)), "{:?}", any);
        prop_assert_eq!(any.len(), case.limit.min(free.len()));
    }

    #[test]
    fn nothing_outside_a_window_is_tried(case in case()) {
        let (from, to) = case.window;
        let within: BTreeSet<_> =
            case.taken.iter().copied().filter(|a| from <= *a && *a <= to).collect();
        for strategy in [Choice::RoundRobin, Choice::Lowest, Choice::Random] {
            let used = Used::Windows(vec![(from, to)], within.clone());
            let found = case.candidates(strategy, used, &BTreeSet::new());
            let cursor = case.cursor.filter(|_| strategy == Choice::RoundRobin);
            let mut free = case.free(cursor);
            free.retain(|address| from <= *address && *address <= to);
            if strategy == Choice::Lowest {
                // Not those behind an address that the window does not show.
                let shown = case.shown();
                free.retain(|address| shown.contains(address));
            }
            prop_assert!(distinct(&found));
            prop_assert_eq!(found.len(), case.limit.min(free.len()));
            if strategy == Choice::Random {
                prop_assert!(found.iter().all(|address| free.contains(address)));
            } else {
                prop_assert_eq!(found, first(free, case.limit));
            }
        }
    }

    #[test]
    fn looks_go_on_to_everything_and_begin_where_the_strategy_does(case in case()) {
        let none = BTreeSet::new();
        for strategy in [Choice::RoundRobin, Choice::Lowest, Choice::Random] {
            let search = case.search(strategy, &none);
            let near = search.next_scan(Scan::None, case.cursor).unwrap();
            if let Scan::Range(from, to) = near {
                prop_assert!(from <= to);
                let range = case.set.find(from).unwrap();
                prop_assert!(range.spans(to));
                // The first that would be tried, unless none of these is given.
                let cursor = case.cursor.filter(|_| strategy == Choice::RoundRobin);
                let walk = case.walk(cursor);
                let is_shown = |address: &IpAddr| from <= *address && *address <= to;
                prop_assert!(
                    strategy == Choice::Random || walk.first().is_none_or(is_shown)
                        || !walk.iter().any(is_shown),
                    "{:?} is best, {} to {}", walk.first(), from, to
                );
            }
            let mut look = near;
            for _ in 0..5 {
                look = search.next_scan(look, case.cursor).unwrap_or(look);
            }
            prop_assert_eq!(look, Scan::Full);
            prop_assert_eq!(search.next_scan(Scan::Full, case.cursor), None);
        }
    }
}

const SUBNETS: &[&str] =
    &["fd00::/64", "fd00::/16", "::/0", "2001:db8::/32", "10.0.0.0/8", "0.0.0.0/0"];

/// A set of one huge range, with a hole of 2^40 addresses or so.
fn huge() -> impl Strategy<Value = RangeSet> {
    (prop::sample::select(SUBNETS), any::<bool>()).prop_map(|(subnet, is_whereabouts)| {
        let exclude = if subnet.contains(':') { "fd00::100/88" } else { "10.0.0.128/25" };
        let rules = is_whereabouts.then_some(RangeConfig::WHEREABOUTS);
        let value = json!([{"subnet": subnet, "exclude": [exclude], "rules": rules}]);
        let configs: Vec<RangeConfig> = serde_json::from_value(value).unwrap();
        RangeSet::parse(&configs, RangeRules::ANY, "r").unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// It would not end in this century if it counted.
    #[test]
    fn huge_pools_are_searched_without_counting(
        set in huge(), random: u64, taken in 0_u128..300, at_end: bool,
    ) {
        let start = set.ranges()[0].start();
        let end = set.ranges()[0].end();
        let offset = |by| ipam_kit::cni::address::offset(start, by);
        let taken: BTreeSet<IpAddr> = (0..taken).filter_map(offset).collect();
        let avoid = BTreeSet::new();
        for strategy in [Choice::RoundRobin, Choice::Lowest, Choice::Random] {
            for used in [Used::Unknown, Used::All(taken.clone())] {
                let search = Search { set: &set, strategy, random, avoid: &avoid };
                let known = used != Used::Unknown;
                let view = PoolView { cursor: at_end.then_some(end), used, ..PoolView::default() };
                let found = search.candidates(&view, 64);
                prop_assert_eq!(found.len(), 64);
                prop_assert!(distinct(&found));
                prop_assert!(found.iter().all(|address| set.refusal(*address).is_none()));
                prop_assert!(!known || found.iter().all(|address| !taken.contains(address)));
                prop_assert!(search.next_scan(Scan::None, view.cursor).is_some());
            }
        }
    }

    #[test]
    fn random_spreads_over_the_pool(random: u64) {
        let value = json!([{"subnet": "fd00::/64"}]);
        let configs: Vec<RangeConfig> = serde_json::from_value(value).unwrap();
        let set = RangeSet::parse(&configs, RangeRules::ANY, "r").unwrap();
        let avoid = BTreeSet::new();
        let search = Search { set: &set, strategy: Choice::Random, random, avoid: &avoid };
        let view = PoolView::default();
        let found = search.candidates(&view, 64);
        let upper = |address: &IpAddr| match address {
            IpAddr::V6(address) => address.segments()[4],
            IpAddr::V4(_) => 0,
        };
        // Of 65536 parts of the pool, 64 addresses lie in nearly as many.
        let parts: BTreeSet<u16> = found.iter().map(upper).collect();
        prop_assert!(parts.len() > 48, "{} parts", parts.len());
    }
}
