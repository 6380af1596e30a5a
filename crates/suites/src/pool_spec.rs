//! Pools that a check requests.

use serde_json::{Value, json};

/// One pool that an ADD requests.
#[derive(Clone, Debug)]
pub(crate) struct PoolSpec {
    pub(crate) ranges: Value,
    /// The store's name of the pool, in place of ranges.
    name: Option<String>,
    pub(crate) requested: Option<String>,
    strategy: Option<&'static str>,
    sticky: Option<(&'static str, &'static str)>,
}

/// The ranges that checks use most: a gateway `.1`, and addresses `.2` to `.14`.
pub(crate) fn small() -> PoolSpec {
    with_ranges(json!([{"subnet": "10.1.2.0/28"}]))
}

/// As [`small`], elsewhere.
pub(crate) fn other() -> PoolSpec {
    with_ranges(json!([{"subnet": "10.1.3.0/28"}]))
}

pub(crate) fn ipv6() -> PoolSpec {
    with_ranges(json!([{"subnet": "fd00:1::/64"}]))
}

/// 10.1.2.7 and nothing else.
pub(crate) fn single() -> PoolSpec {
    with_ranges(
        json!([{"subnet": "10.1.2.0/28", "rangeStart": "10.1.2.7", "rangeEnd": "10.1.2.7"}]),
    )
}

/// 10.1.3.7 and nothing else.
pub(crate) fn other_single() -> PoolSpec {
    with_ranges(
        json!([{"subnet": "10.1.3.0/28", "rangeStart": "10.1.3.7", "rangeEnd": "10.1.3.7"}]),
    )
}

pub(crate) fn with_ranges(ranges: Value) -> PoolSpec {
    PoolSpec { ranges, name: None, requested: None, strategy: None, sticky: None }
}

/// A pool that the store knows.
pub(crate) fn of_store(name: String) -> PoolSpec {
    PoolSpec { name: Some(name), ..with_ranges(Value::Null) }
}

impl PoolSpec {
    pub(crate) fn requesting(mut self, address: &str) -> Self {
        self.requested = Some(address.to_owned());
        self
    }

    pub(crate) fn by(mut self, strategy: &'static str) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// With a sticky name, and how long the address stays with it.
    pub(crate) fn named(mut self, name: &'static str, keep: &'static str) -> Self {
        self.sticky = Some((name, keep));
        self
    }

    pub(crate) fn to_json(&self, index: usize) -> Value {
        let mut pool = match &self.name {
            Some(name) => json!({"name": name, "index": index}),
            None => json!({"ranges": self.ranges, "index": index}),
        };
        if let Some(address) = &self.requested {
            pool["requested-ip"] = json!(address);
        }
        if let Some(strategy) = self.strategy {
            pool["strategy"] = json!(strategy);
        }
        if let Some((name, keep)) = self.sticky {
            pool["sticky"] = json!(name);
            pool["keep"] = json!(keep);
        }
        pool
    }
}
