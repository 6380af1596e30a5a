//! Whether the addresses of an answer are what the pools ask for.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use serde_json::Value;

use super::{REQUESTED, Range, RangeConfig, RangeRules};
use crate::cni::{address, parse_value};
use crate::error::{Error, ErrorCode, Result};

/// Compares an answer with the pools that it is for: each pool has an address of its own, inside
/// its ranges and the one that it asks for, and no address is beside them.
///
/// The chain compares so what standard plugins answer: `shown` are the pools that a delegate was
/// shown, `left` those that it did not serve, and `given` the addresses that it gave. A pool that
/// shows no ranges takes any address.
///
/// # Errors
/// A pool has no address, or an address has no pool (112); both are named. So is a pool whose
/// ranges or request cannot be read.
pub fn compare_answer(shown: &[&Value], left: &[Value], given: &[IpAddr]) -> Result<()> {
    let served = served(shown, left);
    let expected: Vec<ExpectedPool<'_>> =
        served.into_iter().map(ExpectedPool::read).collect::<Result<_>>()?;
    let (pools, addresses) = assign(&expected, given);
    let answer = match given {
        [] => "no address".to_owned(),
        given => list(given.iter()),
    };
    if let Some(pool) = first_without(&expected, &pools) {
        return Err(unserved(match pool.requested {
            Some(address) => format!("{pool} asks for {address}: the answer gives {answer}"),
            None => format!("no address for {pool}: the answer gives {answer}"),
        }));
    }
    match first_without(given, &addresses) {
        Some(address) if expected.is_empty() => {
            Err(unserved(format!("the answer gives {address}, and serves no pool")))
        }
        Some(address) => {
            let pools = list(expected.iter());
            Err(unserved(format!(
                "the answer gives {address} in addition to one address for each pool: {pools}"
            )))
        }
        None => Ok(()),
    }
}

fn unserved(message: String) -> Error {
    Error::new(ErrorCode::UNSERVED, message)
}

/// The addresses that a pool takes.
struct ExpectedPool<'a> {
    name: Option<&'a str>,
    /// Without ranges, it takes any address.
    ranges: Vec<Range>,
    requested: Option<IpAddr>,
}

impl<'a> ExpectedPool<'a> {
    fn read(pool: &'a Value) -> Result<Self> {
        Self::parse(pool).map_err(|error| {
            let pool = match non_empty(&pool["name"]) {
                Some(name) => format!("the pool {name:?}"),
                None => "a pool".to_owned(),
            };
            error.within(format_args!("cannot read {pool}")).with_code(ErrorCode::UNSERVED)
        })
    }

    fn parse(pool: &'a Value) -> Result<Self> {
        let configs: Option<Vec<RangeConfig>> = parse_value(&pool["ranges"], "ranges")?;
        let mut ranges = Vec::new();
        for (i, config) in configs.unwrap_or_default().iter().enumerate() {
            ranges.push(Range::parse(config, RangeRules::ANY, &format!("ranges[{i}]"))?);
        }
        let mut requested = None;
        if let Some(address) = REQUESTED.iter().find_map(|key| non_empty(&pool[*key])) {
            let (address, _) = address::parse_address_or_cidr(address)
                .map_err(|error| Error::config(REQUESTED[0], error))?;
            requested = Some(address);
        }
        Ok(Self { name: non_empty(&pool["name"]), ranges, requested })
    }

    /// Whether this address serves it. The allocator has checked that it is not the gateway: its
    /// rules decide which gateway a range without one has.
    fn takes(&self, address: IpAddr) -> bool {
        self.requested.is_none_or(|requested| requested == address)
            && (self.ranges.is_empty() || self.ranges.iter().any(|range| range.offers(address)))
    }
}

fn non_empty(value: &Value) -> Option<&str> {
    value.as_str().filter(|string| !string.is_empty())
}

impl fmt::Display for ExpectedPool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = list(self.ranges.iter());
        match self.name {
            Some(name) if ranges.is_empty() => write!(f, "the pool {name:?}"),
            Some(name) => write!(f, "the pool {name:?} ({ranges})"),
            None => write!(f, "the pool {ranges}"),
        }
    }
}

/// The pools shown less those left. An identical pool is removed before one of the same name.
fn served<'a>(shown: &[&'a Value], left: &[Value]) -> Vec<&'a Value> {
    let mut served = shown.to_vec();
    let mut renamed = Vec::new();
    for pool in left {
        match served.iter().position(|shown| *shown == pool) {
            Some(index) => drop(served.remove(index)),
            None => renamed.push(pool),
        }
    }
    for pool in renamed {
        if let Some(index) = served.iter().position(|shown| identity(shown) == identity(pool)) {
            served.remove(index);
        }
    }
    served
}

/// The name of a pool, else its ranges.
fn identity(pool: &Value) -> &Value {
    if pool["name"].is_string() { &pool["name"] } else { &pool["ranges"] }
}

/// A largest matching: for each pool its address, and for each address its pool.
fn assign(
    expected: &[ExpectedPool<'_>],
    given: &[IpAddr],
) -> (Vec<Option<usize>>, Vec<Option<usize>>) {
    let mut of_pool: Vec<Option<usize>> = vec![None; expected.len()];
    let mut of_address: Vec<Option<usize>> = vec![None; given.len()];
    for start in 0..given.len() {
        // Breadth first over the addresses that would have to move to free a pool for this one.
        let mut reached: Vec<Option<usize>> = vec![None; expected.len()];
        let mut queue = VecDeque::from([start]);
        let mut free = None;
        while let Some(address) = queue.pop_front() {
            let fits =
                |pool: &usize| reached[*pool].is_none() && expected[*pool].takes(given[address]);
            let next: Vec<usize> = (0..expected.len()).filter(fits).collect();
            for &pool in &next {
                reached[pool] = Some(address);
            }
            free = next.iter().copied().find(|pool| of_pool[*pool].is_none());
            if free.is_some() {
                break;
            }
            queue.extend(next.iter().filter_map(|pool| of_pool[*pool]));
        }
        while let Some(pool) = free {
            let Some(address) = reached[pool] else { break };
            free = of_address[address].replace(pool);
            of_pool[pool] = Some(address);
        }
    }
    (of_pool, of_address)
}

fn first_without<'a, T>(things: &'a [T], partners: &[Option<usize>]) -> Option<&'a T> {
    things.iter().zip(partners).find(|(_, partner)| partner.is_none()).map(|(thing, _)| thing)
}

fn list(things: impl Iterator<Item = impl fmt::Display>) -> String {
    Error::listed(things.map(|thing| thing.to_string()), ", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is wrong with an answer, nothing where it is right.
    fn fault(shown: &Value, left: &Value, given: &[&str]) -> String {
        let given: Vec<IpAddr> = given.iter().map(|text| text.parse().unwrap()).collect();
        let shown: Vec<&Value> = shown.as_array().unwrap().iter().collect();
        match compare_answer(&shown, left.as_array().unwrap(), &given) {
            Ok(()) => String::new(),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::UNSERVED);
                error.to_string()
            }
        }
    }

    fn ranges(subnets: &[&str]) -> Value {
        json!({"ranges": subnets.iter().map(|subnet| json!({"subnet": subnet})).collect::<Vec<_>>()})
    }

    #[test]
    fn each_pool_has_an_address_and_each_address_a_pool() {
        let (four, six) = (ranges(&["10.0.0.0/24", "10.0.2.0/24"]), ranges(&["fd00::/64"]));
        let both = json!([four, six]);
        for (given, expected) in [
            (&["10.0.0.2", "fd00::2"][..], ""),
            (&["fd00::2", "10.0.2.2"], ""),
            // A range that writes no gateway may have none.
            (&["10.0.0.1", "fd00::2"], ""),
            (
                &["10.0.0.2"],
                "no address for the pool fd00::1-fd00::ffff:ffff:ffff:ffff: the answer gives 10.0.0.2",
            ),
            (
                &[],
                "no address for the pool 10.0.0.1-10.0.0.254, 10.0.2.1-10.0.2.254: the answer gives no address",
            ),
            (
                &["10.0.1.2", "fd00::2"],
                "no address for the pool 10.0.0.1-10.0.0.254, 10.0.2.1-10.0.2.254: the answer gives 10.0.1.2, fd00::2",
            ),
        ] {
            assert_eq!(fault(&both, &json!([]), given), expected, "{given:?}");
        }
        let beside = fault(&json!([{"name": "a"}]), &json!([]), &["10.0.0.2", "10.0.0.3"]);
        assert_eq!(
            beside,
            "the answer gives 10.0.0.3 in addition to one address for each pool: the pool \"a\""
        );
        assert_eq!(fault(&json!([]), &json!([]), &[]), "");
        let none = fault(&json!([]), &json!([]), &["10.0.0.2"]);
        assert_eq!(none, "the answer gives 10.0.0.2, and serves no pool");
    }

    #[test]
    fn a_pool_that_is_left_asks_for_nothing() {
        let shown = json!([
            {"name": "a", "index": 0}, {"name": "a", "index": 1}, {"name": "b"},
            ranges(&["10.0.0.0/24"]),
        ]);
        for (left, given) in [
            (json!([]), &["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"][..]),
            (shown.clone(), &[]),
            // Without the members that it did not know.
            (json!([{"name": "a"}, {"name": "a", "index": 0}, {"name": "b"}]), &["10.0.0.2"]),
            (json!([ranges(&["10.0.0.0/24"]), {"name": "b"}]), &["10.9.0.2", "10.9.0.3"]),
            // One that it was not shown.
            (json!([{"name": "c"}, {"name": "b"}, {"name": "a"}, {"name": "a"}]), &["10.0.0.2"]),
        ] {
            assert_eq!(fault(&shown, &left, given), "", "{left}");
            let more = [given, &["10.9.9.9"]].concat();
            assert!(!fault(&shown, &left, &more).is_empty(), "{left}");
        }
    }

    #[test]
    fn pools_that_overlap_share_out_the_addresses() {
        let nested = json!([
            ranges(&["10.0.0.0/8"]), ranges(&["10.0.0.0/16"]), ranges(&["10.0.0.0/24"]), {"name": "any"},
        ]);
        let given = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
        assert_eq!(fault(&nested, &json!([]), &given), "");
        let mut given = ["10.0.0.2", "10.0.9.2", "10.9.0.2", "192.168.0.2"];
        for _ in 0..given.len() {
            given.rotate_left(1);
            assert_eq!(fault(&nested, &json!([]), &given), "", "{given:?}");
        }
        let given = ["10.0.9.3", "10.0.9.2", "10.9.0.2", "10.9.0.3"];
        assert!(fault(&nested, &json!([]), &given).contains("the pool 10.0.0.1-10.0.0.254:"));
    }

    #[test]
    fn excludes_and_requests_count() {
        let pool = json!([{
            "name": "a", "ranges": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.8/29"]}],
        }]);
        assert_eq!(fault(&pool, &json!([]), &["10.0.0.7"]), "");
        assert!(fault(&pool, &json!([]), &["10.0.0.9"]).contains("the pool \"a\" (10.0.0.1-"));
        for key in REQUESTED {
            let asks = json!([{"name": "a", key: "10.0.0.9/24"}]);
            assert_eq!(fault(&asks, &json!([]), &["10.0.0.9"]), "");
            assert_eq!(
                fault(&asks, &json!([]), &["10.0.0.7"]),
                "the pool \"a\" asks for 10.0.0.9: the answer gives 10.0.0.7"
            );
        }
        assert_eq!(fault(&json!([{"name": "a", "requested-ip": ""}]), &json!([]), &["::1"]), "");
        let rules = json!([{"ranges": [{"subnet": "10.0.0.0/16", "rules": "whereabouts"}]}]);
        assert_eq!(fault(&rules, &json!([]), &["10.0.0.1"]), "");
        assert!(fault(&rules, &json!([]), &["10.0.1.0"]).starts_with("no address for the pool"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (pool, place) in [
            (json!({"name": "a", "ranges": "10.0.0.0/24"}), "cannot read the pool \"a\": ranges"),
            (json!({"ranges": [{"subnet": "pear"}]}), "cannot read a pool: ranges[0].subnet: "),
            (
                json!({"name": "a", "requested-ip": "pear"}),
                "cannot read the pool \"a\": requested-ip: ",
            ),
        ] {
            let message = fault(&json!([pool]), &json!([]), &["10.0.0.2"]);
            assert!(message.starts_with(place), "{message}");
        }
    }
}
