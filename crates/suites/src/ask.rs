//! Pools that a check asks for.

use serde_json::{Value, json};

/// One pool that an ADD asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) ranges: Value,
    pub(crate) requested: Option<String>,
    strategy: Option<&'static str>,
}

/// The ranges that checks use most: a gateway `.1`, and addresses `.2` to `.14`.
pub(crate) fn small() -> Ask {
    ask(json!([{"subnet": "10.1.2.0/28"}]))
}

/// As [`small`], elsewhere.
pub(crate) fn other() -> Ask {
    ask(json!([{"subnet": "10.1.3.0/28"}]))
}

pub(crate) fn ipv6() -> Ask {
    ask(json!([{"subnet": "fd00:1::/64"}]))
}

/// 10.1.2.7 and nothing else.
pub(crate) fn single() -> Ask {
    ask(json!([{"subnet": "10.1.2.0/28", "rangeStart": "10.1.2.7", "rangeEnd": "10.1.2.7"}]))
}

/// 10.1.3.7 and nothing else.
pub(crate) fn other_single() -> Ask {
    ask(json!([{"subnet": "10.1.3.0/28", "rangeStart": "10.1.3.7", "rangeEnd": "10.1.3.7"}]))
}

pub(crate) fn ask(ranges: Value) -> Ask {
    Ask { ranges, requested: None, strategy: None }
}

impl Ask {
    pub(crate) fn requesting(mut self, address: &str) -> Self {
        self.requested = Some(address.to_owned());
        self
    }

    pub(crate) fn by(mut self, strategy: &'static str) -> Self {
        self.strategy = Some(strategy);
        self
    }

    pub(crate) fn pool(&self, index: usize) -> Value {
        let mut pool = json!({"ranges": self.ranges, "index": index});
        if let Some(address) = &self.requested {
            pool["requested-ip"] = json!(address);
        }
        if let Some(strategy) = self.strategy {
            pool["strategy"] = json!(strategy);
        }
        pool
    }
}
