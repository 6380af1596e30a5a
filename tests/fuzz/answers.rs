//! Answers of an ADD, compared with the pools that they are for.

use std::net::IpAddr;

use ipam_kit::cni::address::parse_address_or_cidr;
use ipam_kit::pool::{Range, RangeConfig, RangeRules, compare_answer};
use serde_json::{Value, json};

use crate::engine::fuzz;

/// More pools than these are too many for the oracle, which tries every order.
const MOST: usize = 5;

/// What a pool takes; none where it cannot be read.
struct Pool {
    ranges: Vec<Range>,
    asked: Option<IpAddr>,
}

impl Pool {
    fn read(pool: &Value) -> Option<Self> {
        let configs: Option<Vec<RangeConfig>> =
            serde_json::from_value(pool["ranges"].clone()).ok()?;
        let parse = |range| Range::parse(range, RangeRules::ANY, "r").ok();
        let ranges = configs.unwrap_or_default().iter().map(parse).collect::<Option<_>>()?;
        let texts = ["requested-ip", "requested_ip"].map(|key| pool[key].as_str());
        let text = texts.into_iter().flatten().find(|text| !text.is_empty());
        let asked = match text {
            Some(text) => Some(parse_address_or_cidr(text).ok()?.0),
            None => None,
        };
        Some(Self { ranges, asked })
    }

    /// Between start and end, and in nothing that is excluded.
    fn takes(&self, address: IpAddr) -> bool {
        let inside = |range: &Range| {
            range.start().is_ipv4() == address.is_ipv4()
                && range.start() <= address
                && address <= range.end()
                && !range.exclude().iter().any(|net| net.contains(&address))
        };
        self.asked.is_none_or(|asked| asked == address)
            && (self.ranges.is_empty() || self.ranges.iter().any(inside))
    }
}

/// Whether the addresses can be dealt out, one to each pool: every order is tried.
fn fits(pools: &[Pool], given: &[IpAddr]) -> bool {
    match pools.split_first() {
        None => given.is_empty(),
        Some((first, others)) => (0..given.len()).any(|i| {
            let rest: Vec<IpAddr> = [&given[..i], &given[i + 1..]].concat();
            first.takes(given[i]) && fits(others, &rest)
        }),
    }
}

#[test]
fn an_answer_that_is_accepted_has_one_address_for_each_pool() {
    let range = |subnet: &str| json!({"subnet": subnet});
    let seeds = [
        json!({
            "shown": [{"ranges": [range("10.0.0.0/8")]}, {"ranges": [range("10.0.0.0/24")]}, {"name": "a"}],
            "left": [], "given": ["10.0.0.1", "10.0.0.2", "10.1.0.1"],
        }),
        json!({
            "shown": [{"name": "a", "ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.1",
                "rangeEnd": "10.0.0.9", "gateway": "10.0.0.1", "exclude": ["10.0.0.2/31"]}]},
                {"requested-ip": "fd00::1/64", "ranges": [range("fd00::/64"), range("fd01::/64")]}],
            "left": [], "given": ["fd00::1", "10.0.0.1"],
        }),
        json!({
            "shown": [{"name": "a"}, {"name": "a", "requested_ip": "10.0.0.1"}, {"name": "b"}],
            "left": [{"name": "b"}], "given": ["10.0.0.2", "10.0.0.1"],
        }),
    ];
    fuzz("pools", &seeds.map(|seed| seed.to_string().into_bytes()), |input| {
        let Ok(input) = serde_json::from_slice::<Value>(input) else { return };
        let list = |key: &str| input[key].as_array().cloned().unwrap_or_default();
        let (shown, left) = (list("shown"), list("left"));
        let given: Vec<IpAddr> =
            list("given").iter().filter_map(|text| text.as_str()?.parse().ok()).collect();
        let all: Vec<&Value> = shown.iter().collect();
        let compared = compare_answer(&all, &left, &given);
        if let Err(error) = &compared {
            assert_eq!(error.code().number(), 112, "{error}");
        }
        // Those that are left as they were shown; others may be left under another form.
        let mut served = all.clone();
        for pool in &left {
            match served.iter().position(|shown| *shown == pool) {
                Some(place) => drop(served.remove(place)),
                None => return,
            }
        }
        if served.len() > MOST || given.len() > MOST {
            return;
        }
        let pools: Option<Vec<Pool>> = served.into_iter().map(Pool::read).collect();
        let right = pools.is_some_and(|pools| fits(&pools, &given));
        assert_eq!(compared.is_ok(), right, "{compared:?}");
    });
}
