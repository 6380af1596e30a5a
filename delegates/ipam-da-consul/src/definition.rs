//! The definition of a pool: its ranges in Consul.

use ipam_kit::keys::{MisspeltKey, misspelt};
use ipam_kit::pool::{RangeConfig, RangeRules, RangeSet};
use ipam_kit::{Error, ErrorCode, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::keys::ConsulKeys;
use crate::txn::Pair;

/// The value of a pool's key, with its index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Definition {
    /// The modification index.
    pub(crate) index: u64,
    /// The ranges as they are written.
    pub(crate) ranges: Vec<RangeConfig>,
}

impl Definition {
    /// Reads a pool's key.
    ///
    /// # Errors
    /// The value is not an array of ranges: code 103, with the key.
    pub(crate) fn read(pair: &Pair) -> Result<Self> {
        let Pair { key, value, index, .. } = pair;
        let value = value.as_ref().ok_or_else(|| no_definition(key, "the value is empty"))?;
        let ranges: Vec<RangeConfig> = serde_json::from_slice(value).map_err(|error| {
            no_definition(key, "expected a JSON array of ranges").caused_by(error)
        })?;
        if ranges.is_empty() {
            return Err(no_definition(key, "the array has no range"));
        }
        Ok(Self { index: *index, ranges })
    }

    /// Returns the misspelt keys of its ranges.
    pub(crate) fn misspelt(&self, pool: &str) -> Vec<MisspeltKey> {
        if self.ranges.iter().all(|range| range.unknown.is_empty()) {
            return Vec::new();
        }
        misspelt(&json!(self.ranges), RangeConfig::KEYS, &ConsulKeys::definition(pool))
    }

    /// Returns the ranges of this pool.
    ///
    /// # Errors
    /// A range is wrong: code 103, with the key and the path in its value.
    pub(crate) fn set(&self, pool: &str) -> Result<RangeSet> {
        let key = ConsulKeys::definition(pool);
        RangeSet::parse(&self.ranges, RangeRules::CONSUL, &key).map_err(|error| {
            Error::new(ErrorCode::BACKEND, format!("invalid pool in Consul key {error}"))
                .advise(example(&key))
        })
    }
}

/// Makes the error of a pool that does not exist.
pub(crate) fn no_such_pool(pool: &str) -> Error {
    let key = ConsulKeys::definition(pool);
    Error::new(ErrorCode::BACKEND, format!("pool {pool:?} not found: Consul has no key {key}"))
        .advise(example(&key))
}

fn no_definition(key: &str, why: &str) -> Error {
    Error::new(ErrorCode::BACKEND, format!("invalid pool in Consul key {key}: {why}"))
        .advise(example(key))
}

fn example(key: &str) -> String {
    format!(
        r#"define it, for example: consul kv put {key} '[{{"subnet": "10.0.20.0/23", "gateway": "10.0.20.1"}}]'"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: &str) -> Result<RangeSet> {
        let pair = Pair { key: "ipam/p".into(), value: Some(value.into()), created: 3, index: 3 };
        Definition::read(&pair)?.set("p")
    }

    #[test]
    fn ranges_are_read_as_passcod_reads_them() {
        for (value, ranges) in [
            (r#"[{"subnet":"10.0.20.0/23"}]"#, "10.0.20.1-10.0.21.254"),
            (r#"[{"subnet":"10.0.20.7/23"}]"#, "10.0.20.1-10.0.21.254"),
            (
                r#"[{"subnet":"10.0.0.0/30","rangeStart":"10.0.0.0","rangeEnd":"10.0.0.3"}]"#,
                "10.0.0.0-10.0.0.3",
            ),
            (
                r#"[{"subnet":"10.0.0.0/31"},{"subnet":"10.1.0.0/32"}]"#,
                "10.0.0.0-10.0.0.1,10.1.0.0-10.1.0.0",
            ),
        ] {
            assert_eq!(set(value).map(|set| set.to_string()).unwrap(), ranges, "{value}");
        }
        let plain = set(r#"[{"subnet":"10.0.20.0/23"}]"#).unwrap();
        assert!(plain.ranges()[0].gateway().is_none());
    }

    #[test]
    fn an_error_about_a_definition_names_its_key() {
        for value in [
            "null",
            "{}",
            "[]",
            "[{}]",
            r#"[{"subnet":"x"}]"#,
            r#"[{"subnet":"10.0.0.0/24","rangeStart":"10.0.1.1"}]"#,
        ] {
            let error = set(value).unwrap_err();
            assert!(error.to_string().starts_with("invalid pool in Consul key ipam/p"), "{error}");
            assert_eq!(error.code(), ErrorCode::BACKEND);
        }
    }
}
