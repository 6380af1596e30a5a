//! Pools of addresses: what selectors choose and allocators serve.
//!
//! A [`Pool`] is what one delegate tells the next. Its ranges travel as they were written
//! ([`RangeConfig`]); who allocates reads them by the [`RangeRules`] of the system it replaces
//! into a [`RangeSet`] of [`Range`]s, which cannot be wrong. Addresses are read as Go does:
//! [`address`].

mod answer;
mod bounds;
mod lenient;
mod placing;
mod range;
mod range_config;
mod range_set;

use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

pub use answer::compare_answer;
pub use placing::Placement;
pub use range::Range;
use range_config::{DefaultGateway, GatewayPlace, HostBits, Sets, SmallSubnets};
pub use range_config::{RangeConfig, RangeRules};
pub use range_set::RangeSet;

use crate::cni::{address, parse_value};
use crate::error::{Error, Result};
use crate::keys::{Key, MisspeltKey, misspelt};

/// A pool of the contract between delegates: a name or ranges or both, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    name: Option<String>,
    ranges: Vec<RangeConfig>,
    /// The address asked for.
    pub requested_ip: Option<IpAddr>,
    /// The number of the range set, so that a left-out pool shifts no cursor.
    pub index: Option<u32>,
    /// How to choose an address, as written.
    pub strategy: Option<String>,
    /// Whether an address in use may be taken over.
    pub takeover: Option<bool>,
    /// The name that the address stays with: a later owner of the name gets the same address.
    pub sticky: Option<String>,
    /// How long the address stays reserved for that name after the DEL, as written.
    pub keep: Option<String>,
    /// Members of others, kept as they came.
    pub unknown: Map<String, Value>,
}

const REQUESTED: [&str; 2] = ["requested-ip", "requested_ip"];

impl Pool {
    /// The members of a pool.
    pub const KEYS: &'static [Key] = &[
        Key::Value("name"),
        Key::Value(REQUESTED[0]),
        Key::Value(REQUESTED[1]),
        Key::Foreign("ranges", RangeConfig::KEYS),
        Key::Value("index"),
        Key::Value("strategy"),
        Key::Value("takeover"),
        Key::Value("sticky"),
        Key::Value("keep"),
    ];

    /// The misspelt keys of pools; `path` is their place, as in `prevResult.pools`.
    pub fn misspelt(pools: &[Value], path: &str) -> Vec<MisspeltKey> {
        let numbered = pools.iter().enumerate();
        numbered.flat_map(|(i, pool)| misspelt(pool, Self::KEYS, &format!("{path}[{i}]"))).collect()
    }

    /// A pool of which nothing is asked; none when there is neither a name nor a range.
    pub fn new(name: Option<String>, ranges: Vec<RangeConfig>) -> Option<Self> {
        let name = name.filter(|name| !name.is_empty());
        (name.is_some() || !ranges.is_empty()).then(|| Self {
            name,
            ranges,
            requested_ip: None,
            index: None,
            strategy: None,
            takeover: None,
            sticky: None,
            keep: None,
            unknown: Map::new(),
        })
    }

    /// Reads a pool; `path` is its place, as in `prevResult.pools[0]`. Null and, for the two names
    /// and the requested address, `""` mean absent.
    ///
    /// # Errors
    /// The pool is not an object, has neither name nor ranges, a member is of the wrong type, or
    /// the requested address is malformed or differs between its two spellings.
    pub fn parse(value: &Value, path: &str) -> Result<Self> {
        let Value::Object(members) = value else {
            return Err(Error::config(path, "expected an object with name or ranges"));
        };
        let mut members = PoolMembers { members: members.clone(), path };
        let ranges = members.take("ranges")?.unwrap_or_default();
        let pool = Self::new(members.take("name")?, ranges)
            .ok_or_else(|| Error::config(path, "expected a name or ranges"))?;
        Ok(Self {
            requested_ip: members.requested()?,
            index: members.take("index")?,
            strategy: members.take("strategy")?,
            takeover: members.take("takeover")?,
            sticky: members.take("sticky")?.filter(|name: &String| !name.is_empty()),
            keep: members.take("keep")?,
            unknown: members.members,
            ..pool
        })
    }

    /// The pool's name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The ranges as written; empty when the store knows them by the pool's name.
    pub fn ranges(&self) -> &[RangeConfig] {
        &self.ranges
    }

    /// Whether the pool leaves the choice of an address open: it names no ranges, no strategy and
    /// no address.
    pub(crate) fn is_open(&self) -> bool {
        self.ranges.is_empty() && self.strategy.is_none() && self.requested_ip.is_none()
    }

    /// Reads the ranges, if there are any; `path` is the pool's place.
    ///
    /// # Errors
    /// The ranges are not a valid set, see [`RangeSet::parse`].
    pub fn range_set(&self, rules: RangeRules, path: &str) -> Result<Option<RangeSet>> {
        if self.ranges.is_empty() {
            return Ok(None);
        }
        RangeSet::parse(&self.ranges, rules, &format!("{path}.ranges")).map(Some)
    }

    /// The pool for the next delegate, the requested address in both spellings.
    pub fn to_json(&self) -> Value {
        let mut members = self.unknown.clone();
        let mut put = |key: &str, value: Option<Value>| {
            members.extend(value.map(|value| (key.to_owned(), value)));
        };
        put("name", self.name.as_ref().map(|name| json!(name)));
        for key in REQUESTED {
            put(key, self.requested_ip.map(|address| json!(address.to_string())));
        }
        put("ranges", (!self.ranges.is_empty()).then(|| json!(self.ranges)));
        put("index", self.index.map(Value::from));
        put("strategy", self.strategy.as_ref().map(|strategy| json!(strategy)));
        put("takeover", self.takeover.map(Value::from));
        put("sticky", self.sticky.as_ref().map(|name| json!(name)));
        put("keep", self.keep.as_ref().map(|time| json!(time)));
        Value::Object(members)
    }
}

struct PoolMembers<'a> {
    members: Map<String, Value>,
    path: &'a str,
}

impl PoolMembers<'_> {
    fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.members.remove(key) else {
            return Ok(None);
        };
        parse_value(&value, &format!("{}.{key}", self.path))
    }

    fn requested(&mut self) -> Result<Option<IpAddr>> {
        let [ours, passcod] = REQUESTED.map(|key| self.address(key));
        match (ours?, passcod?) {
            (Some(one), Some(other)) if one != other => {
                let [key, other_key] = REQUESTED;
                let message = format!("{key} {one} and {other_key} {other} differ");
                Err(Error::config(self.path, message))
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    fn address(&mut self, key: &str) -> Result<Option<IpAddr>> {
        let text: Option<String> = self.take(key)?;
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        match address::parse_address_or_cidr(&text) {
            Ok((address, _)) => Ok(Some(address)),
            Err(error) => Err(Error::config(format_args!("{}.{key}", self.path), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::names;

    fn parse(value: Value) -> Result<Pool> {
        Pool::parse(&value, "prevResult.pools[0]")
    }

    #[test]
    fn every_member_goes_through() {
        let value = json!({
            "name": "blue", "requested-ip": "10.1.2.3", "requested_ip": "10.1.2.3", "index": 2,
            "strategy": "lowest", "takeover": true, "sticky": "web-0", "keep": "1h", "colour": {"r": 1},
            "ranges": [{"subnet": "10.1.2.0/24", "exclude": ["10.1.2.9"], "vlan": 7}],
        });
        let pool = parse(value.clone()).unwrap();
        assert_eq!(pool.to_json(), value);
        assert_eq!(pool.name(), Some("blue"));
        assert_eq!(pool.unknown, *json!({"colour": {"r": 1}}).as_object().unwrap());
        let set = pool.range_set(RangeRules::OURS, "p").unwrap().unwrap();
        assert_eq!(set.size(), 252);
    }

    #[test]
    fn every_member_is_declared() {
        let members: Map<String, Value> =
            names(Pool::KEYS).into_iter().map(|key| (key.to_owned(), Value::Null)).collect();
        let mut members = Value::Object(members);
        members["name"] = json!("blue");
        assert_eq!(parse(members).unwrap().unknown, Map::new());
        let Pool {
            name: _,
            ranges: _,
            requested_ip: _,
            index: _,
            strategy: _,
            takeover: _,
            sticky: _,
            keep: _,
            unknown: _,
        } = Pool::new(Some("blue".to_owned()), Vec::new()).unwrap();
        assert_eq!(Pool::KEYS.len(), 9, "one for each, the requested address in two spellings");
    }

    #[test]
    fn one_spelling_becomes_two_without_prefix() {
        for key in REQUESTED {
            let pool = parse(json!({"name": "a", key: "::ffff:10.1.2.3/120"})).unwrap();
            assert_eq!(
                pool.to_json(),
                json!({"name": "a", "requested-ip": "10.1.2.3", "requested_ip": "10.1.2.3"})
            );
        }
    }

    #[test]
    fn null_is_absent() {
        let value = json!({
            "name": "a", "requested-ip": "", "requested_ip": null, "ranges": null, "index": null,
            "strategy": null, "takeover": null, "sticky": "", "keep": null,
        });
        let pool = parse(value).unwrap();
        assert_eq!(pool.to_json(), json!({"name": "a"}));
        assert_eq!(pool.range_set(RangeRules::OURS, "p").unwrap(), None);
    }

    #[test]
    fn errors_name_the_member() {
        for (value, message) in [
            (json!("blue"), ": expected an object with name or ranges"),
            (json!({"name": "", "ranges": []}), ": expected a name or ranges"),
            (
                json!({"name": "a", "requested-ip": "10.0.0.1", "requested_ip": "10.0.0.2/8"}),
                ": requested-ip 10.0.0.1 and requested_ip 10.0.0.2 differ",
            ),
            (
                json!({"name": "a", "requested_ip": "10.0.0.01"}),
                r#".requested_ip: "10.0.0.01" is not an IP address"#,
            ),
            (
                json!({"name": "a", "sticky": ["web-0"]}),
                ".sticky: expected a string, found an array",
            ),
            (
                json!({"name": "a", "index": -1}),
                ".index: invalid value: integer `-1`, expected u32",
            ),
            (
                json!({"ranges": [{"subnet": "10.0.0.0/8"}, {"subnet": 5}]}),
                ".ranges[1].subnet: expected a string, found a number",
            ),
            (
                json!({"ranges": [{"exclude": ["10.0.0.1", 5]}]}),
                ".ranges[0].exclude[1]: expected a string, found a number",
            ),
        ] {
            let error = parse(value).unwrap_err().to_string();
            assert_eq!(error, format!("prevResult.pools[0]{message}"));
        }
    }

    #[test]
    fn bad_ranges_name_the_pool() {
        let pool = parse(json!({"ranges": [{"subnet": "10.0.0.1/8"}]})).unwrap();
        let error = pool.range_set(RangeRules::OURS, "ipam.pools[3]").unwrap_err();
        assert_eq!(
            error.to_string(),
            "ipam.pools[3].ranges[0].subnet: 10.0.0.1/8 has host bits set: write 10.0.0.0/8"
        );
    }
}
