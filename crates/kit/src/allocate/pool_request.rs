use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::{Lease, Strategy};
use crate::error::{Error, ErrorCode, Result};
use crate::host::parse_duration_or_zero;
use crate::pool::{Pool, RangeRules, RangeSet};

/// The request of an ADD to a ledger: one address out of a pool.
#[derive(Clone, Debug)]
pub struct PoolRequest {
    /// Where a person or a delegate wrote it, for errors: `prevResult.pools[0]`, `ipam.ranges[0]`.
    pub path: String,
    /// The pool's name.
    pub pool: Option<String>,
    /// The number of the range set, which names its cursor.
    pub index: u32,
    /// The pool's ranges; `None` if the ledger knows them by the pool's name.
    pub set: Option<RangeSet>,
    /// The requested address.
    pub requested: Option<IpAddr>,
    /// How to choose an address.
    pub strategy: Strategy,
    /// The name that the address stays with.
    pub sticky: Option<StickyName>,
    /// Whether the requested address is taken from another owner who holds it.
    pub(crate) takeover: bool,
    /// Leases recorded under another pool's name do not count as this pool's, even inside its
    /// ranges.
    pub(crate) apart: bool,
    /// The store chooses the address ([`Profile::chooses`](super::Profile::chooses)).
    pub(crate) by_store: bool,
    /// Addresses that are never leased: a selector named them as static ones.
    pub(crate) static_addresses: Vec<IpAddr>,
}

/// The name that an address stays with, whichever container comes under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StickyName {
    /// The name.
    pub name: String,
    /// How long the address stays reserved for the name after the DEL.
    pub keep: Duration,
}

impl PoolRequest {
    /// Reads the pools of `prevResult.pools`.
    ///
    /// # Errors
    /// Ranges, a strategy or a time are invalid, two pools overlap, or a requested address may not be
    /// given out.
    pub fn read(pools: &[Pool], default: Strategy) -> Result<Vec<Self>> {
        let paths: Vec<String> =
            (0..pools.len()).map(|i| format!("prevResult.pools[{i}]")).collect();
        Self::read_at(paths.iter().map(String::as_str).zip(pools), default)
    }

    /// Reads pools, each with the path of its own.
    pub(super) fn read_at<'a>(
        pools: impl Iterator<Item = (&'a str, &'a Pool)>,
        default: Strategy,
    ) -> Result<Vec<Self>> {
        let requests: Vec<Self> = (0..)
            .zip(pools)
            .map(|(index, (path, pool))| Self::of(path, pool, index, default))
            .collect::<Result<_>>()?;
        RangeSet::refuse_overlaps(
            requests
                .iter()
                .filter_map(|request| Some((request.path.as_str(), request.set.as_ref()?))),
        )?;
        Ok(requests)
    }

    fn of(path: &str, pool: &Pool, index: u32, default: Strategy) -> Result<Self> {
        let strategy = match &pool.strategy {
            None => default,
            Some(text) => Strategy::read(text, &format!("{path}.strategy"))?,
        };
        let this = Self {
            pool: pool.name().map(str::to_owned),
            index: pool.index.unwrap_or(index),
            set: pool.range_set(RangeRules::ANY, path).map_err(|error| match pool.name() {
                // Its author knows the pool by its name, not by the place among others.
                Some(name) => error.within(format_args!("pool {name:?}")),
                None => error,
            })?,
            requested: pool.requested_ip,
            strategy,
            sticky: sticky(path, pool)?,
            takeover: pool.takeover.unwrap_or(false),
            apart: false,
            by_store: false,
            static_addresses: Vec::new(),
            path: path.to_owned(),
        };
        if let Some(set) = &this.set {
            this.check_requested_address(set)?;
        }
        Ok(this)
    }

    /// Fails for a pool with a sticky name: the ledger keeps no names.
    pub(super) fn refuse_sticky(&self) -> Result<()> {
        let Some(StickyName { name, .. }) = &self.sticky else { return Ok(()) };
        let message = format!("this allocator keeps no address for a name, such as {name:?}");
        Err(Error::config(format_args!("{}.sticky", self.path), message)
            .advise("name ipam-da-kube as the allocator in ipam.delegates, or set no sticky names"))
    }

    /// Fails when the requested address may not be given out of these ranges.
    pub(super) fn check_requested_address(&self, set: &RangeSet) -> Result<()> {
        let Some(requested) = self.requested else { return Ok(()) };
        let reason = match self.static_addresses.contains(&requested) {
            true => Some("a static address, which is given without a lease".to_owned()),
            false => set.refusal(requested),
        };
        let Some(reason) = reason else { return Ok(()) };
        let message = format!("requested address {requested} is {reason}");
        Err(Error::new(ErrorCode::NOT_IN_POOL, message)
            .at(&self.path)
            .advise("request an address inside a range of the pool"))
    }

    /// The addresses of a set that may be leased for the pool: without the static ones.
    pub fn leasable(&self, set: &RangeSet) -> RangeSet {
        set.clone().without(&self.static_addresses)
    }

    /// Whether an address that another owner holds may be taken: `ipam.takeover`.
    pub fn may_take_over(&self) -> bool {
        self.takeover
    }

    /// Whether the store may choose the address.
    pub fn is_by_store(&self) -> bool {
        self.by_store
    }

    /// Whether a lease the owner holds is one of this pool.
    pub fn is_served_by(&self, lease: &Lease, set: &RangeSet) -> bool {
        let address = lease.address.addr();
        self.is_home_of(lease, set)
            && lease.sticky.as_ref() == self.sticky.as_ref().map(|sticky| &sticky.name)
            && self.requested.is_none_or(|requested| requested == address)
            && set.find(address).is_some_and(|range| range.usable(address))
    }

    /// Whether a lease is of this pool, also if its address would not be given now. Pools of one
    /// call do not overlap, and a renamed pool is still the same unless names keep pools apart.
    pub(super) fn is_home_of(&self, lease: &Lease, set: &RangeSet) -> bool {
        set.find(lease.address.addr()).is_some() && (!self.apart || lease.pool == self.pool)
    }

    /// Whether a static address lies in the ranges, which the store would not know.
    pub(super) fn has_static_address_in(&self, set: &RangeSet) -> bool {
        self.static_addresses.iter().any(|address| set.find(*address).is_some())
    }

    /// An address of the pool as a lease, with prefix length and gateway of its range.
    pub(crate) fn lease(&self, set: &RangeSet, address: IpAddr, revision: Value) -> Lease {
        let is_asked = self.requested == Some(address);
        let range = if is_asked { set.find_last(address) } else { set.find(address) };
        let prefix = range.and_then(|range| IpNet::new(address, range.subnet().prefix_len()).ok());
        Lease {
            pool: self.pool.clone(),
            sticky: self.sticky.as_ref().map(|sticky| sticky.name.clone()),
            gateway: range.and_then(crate::pool::Range::gateway),
            ..Lease::bare(prefix.unwrap_or(IpNet::from(address)), revision)
        }
    }

    /// The pool in words, for errors.
    pub(super) fn describe(&self, set: &RangeSet) -> String {
        match &self.pool {
            Some(pool) => format!("{set} of the pool {pool:?}"),
            None => set.to_string(),
        }
    }
}

/// The longest time for which an address stays with a name after its holder: 100 years.
pub const LONGEST_KEEP: Duration = Duration::from_secs(876_000 * 3600);

/// Reads for how long an address stays with a name after its holder.
///
/// # Errors
/// The text is not a duration, or one longer than [`LONGEST_KEEP`].
pub fn parse_keep(path: &str, text: &str) -> Result<Duration> {
    let Some(keep) = parse_duration_or_zero(text) else {
        return Err(Error::config(path, format_args!("invalid duration {text:?}"))
            .advise(r#"expected for example "30m", "1h" or "0s""#));
    };
    if keep > LONGEST_KEEP {
        return Err(Error::config(path, format_args!("{text:?} is longer than 100 years"))
            .advise(r#"expected at most "876000h""#));
    }
    Ok(keep)
}

/// The sticky name of a pool, with its time, which is read even where the pool has no name.
fn sticky(path: &str, pool: &Pool) -> Result<Option<StickyName>> {
    let read = |text: &String| parse_keep(&format!("{path}.keep"), text);
    let keep = pool.keep.as_ref().map(read).transpose()?.unwrap_or_default();
    Ok(pool.sticky.clone().map(|name| StickyName { name, keep }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(pools: Value) -> Result<Vec<PoolRequest>> {
        let parse = |pool: &Value| Pool::parse(pool, "p").unwrap();
        let pools: Vec<Pool> = pools.as_array().unwrap().iter().map(parse).collect();
        PoolRequest::read(&pools, Strategy::Lowest)
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_its_place() {
        let lan = json!({"subnet": "10.0.0.0/24", "exclude": ["10.0.0.8/30"]});
        for (pools, code, start) in [
            (
                json!([{"name": "a"}, {"name": "b", "strategy": "best"}]),
                7,
                "prevResult.pools[1].strategy: ",
            ),
            (
                json!([{"name": "a", "keep": "a day"}]),
                7,
                r#"prevResult.pools[0].keep: invalid duration "a day""#,
            ),
            (
                json!([{"name": "a", "keep": "876001h"}]),
                7,
                r#"prevResult.pools[0].keep: "876001h" is longer than 100 years"#,
            ),
            (json!([{"ranges": [lan]}, {"ranges": [lan]}]), 7, "prevResult.pools[1]: "),
            (
                json!([{"name": "a", "ranges": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.0/8"]}]}]),
                7,
                r#"pool "a": prevResult.pools[0].ranges: every address of 10.0.0.1-10.0.0.254 is excluded"#,
            ),
            (
                json!([{"ranges": [lan], "requested-ip": "10.0.0.1"}]),
                101,
                "prevResult.pools[0]: requested address 10.0.0.1 is the gateway",
            ),
            (
                json!([{"ranges": [lan], "requested-ip": "10.0.0.9"}]),
                101,
                "prevResult.pools[0]: requested address 10.0.0.9 is excluded",
            ),
            (
                json!([{"ranges": [lan], "requested-ip": "10.0.1.9"}]),
                101,
                "prevResult.pools[0]: requested address 10.0.1.9 is not in 10.0.0.1-10.0.0.254",
            ),
            (
                json!([{"ranges": [lan], "requested-ip": "10.0.0.255"}]),
                101,
                "prevResult.pools[0]: ",
            ),
        ] {
            let error = read(pools).unwrap_err();
            assert_eq!(error.code().number(), code);
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }

    #[test]
    fn a_pool_says_index_and_strategy_or_goes_by_its_place() {
        let requests =
            read(json!([{"name": "a"}, {"name": "b", "index": 7, "strategy": "random"}])).unwrap();
        let read: Vec<_> =
            requests.iter().map(|request| (request.index, request.strategy)).collect();
        assert_eq!(read, [(0, Strategy::Lowest), (7, Strategy::Random)]);
    }

    #[test]
    fn a_sticky_name_has_its_time() {
        for (pool, expected) in [
            (json!({"name": "a"}), None),
            (json!({"name": "a", "sticky": "", "keep": "1h"}), None),
            (json!({"name": "a", "sticky": "web-0"}), Some(("web-0", 0))),
            (json!({"name": "a", "sticky": "web-0", "keep": "0s"}), Some(("web-0", 0))),
            (json!({"name": "a", "sticky": "w", "keep": "876000h"}), Some(("w", 3_153_600_000))),
            (json!({"name": "a", "sticky": "n/web-0", "keep": "1h30m"}), Some(("n/web-0", 5400))),
        ] {
            let name = |(name, seconds): (&str, u64)| StickyName {
                name: name.to_owned(),
                keep: Duration::from_secs(seconds),
            };
            assert_eq!(read(json!([pool])).unwrap()[0].sticky, expected.map(name), "{pool}");
        }
    }

    #[test]
    fn a_lease_serves_the_pool_that_it_is_of() {
        let requests = read(
            json!([{"name": "a", "ranges": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.9"]}]}]),
        )
        .unwrap();
        let set = requests[0].set.clone().unwrap();
        let lease = |pool: Option<&str>, address: &str| Lease {
            pool: pool.map(str::to_owned),
            ..Lease::bare(address.parse().unwrap(), Value::Null)
        };
        for (pool, address, serves, home) in [
            (None, "10.0.0.7/32", true, true),
            (Some("a"), "10.0.0.7/24", true, true),
            (Some("b"), "10.0.0.7/24", true, true),
            (None, "10.0.0.9/24", false, true),
            (None, "10.0.0.1/24", false, true),
            (None, "10.0.1.7/24", false, false),
        ] {
            let lease = lease(pool, address);
            assert_eq!(requests[0].is_served_by(&lease, &set), serves, "{lease:?}");
            assert_eq!(requests[0].is_home_of(&lease, &set), home, "{lease:?}");
        }
    }
}
