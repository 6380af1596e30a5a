//! The keys of `ipam` that pools, routes and name resolution are read from.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cni::{Route, parse_value};
use crate::error::{Error, Result};
use crate::pool::{RangeConfig, RangeRules};

/// The section `ipam`: pools, or host-local's own keys.
#[derive(Debug)]
pub(super) struct SectionConfig<'a> {
    /// Pools, as they are written.
    pub pools: Option<&'a Value>,
    /// host-local's range sets.
    pub ranges: Vec<Vec<RangeConfig>>,
    /// The range of host-local's old style, there if `subnet` is.
    pub single_range: Option<RangeConfig>,
    /// The rules by which ranges are read.
    pub rules: RangeRules,
    /// The file with the name resolution.
    pub resolv_conf: Option<PathBuf>,
    routes: &'a [Value],
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rules {
    HostLocal,
    Etcd,
    Own,
}

impl<'a> SectionConfig<'a> {
    /// Reads the keys.
    ///
    /// # Errors
    /// One is of the wrong type; of several the first by its name.
    pub(super) fn read(ipam: &'a Map<String, Value>) -> Result<Self> {
        let mut single_range = RangeConfig {
            exclude: key(ipam, "exclude")?.unwrap_or_default(),
            gateway: key(ipam, "gateway")?,
            range_end: key(ipam, "rangeEnd")?,
            ..RangeConfig::default()
        };
        let rules = match key(ipam, "rangeRules")?.unwrap_or(Rules::HostLocal) {
            Rules::HostLocal => RangeRules::HOST_LOCAL,
            Rules::Etcd => RangeRules::ETCD,
            Rules::Own => RangeRules::OURS,
        };
        single_range.range_start = key(ipam, "rangeStart")?;
        let ranges = ipam.get("ranges").map(|sets| range_sets(sets, "ipam.ranges"));
        let ranges = ranges.transpose()?.unwrap_or_default();
        let resolv_conf: Option<PathBuf> = key(ipam, "resolvConf")?;
        let routes = ipam.get("routes").map(|routes| elements(routes, "ipam.routes"));
        let routes = routes.transpose()?.unwrap_or_default();
        single_range.subnet = key(ipam, "subnet")?;
        let has_subnet = single_range.subnet.as_ref().is_some_and(|subnet| !subnet.is_empty());
        Ok(Self {
            pools: ipam.get("pools").filter(|pools| !pools.is_null()),
            ranges,
            single_range: has_subnet.then_some(single_range),
            rules,
            resolv_conf: resolv_conf.filter(|path| path != Path::new("")),
            routes,
        })
    }

    /// The routes.
    ///
    /// # Errors
    /// An element is not a route; the error names its place.
    pub(super) fn routes(&self) -> Result<Vec<Route>> {
        let routes = self.routes.iter().cloned().enumerate();
        routes.map(|(i, route)| Route::parse(route, &format!("ipam.routes[{i}]"))).collect()
    }
}

/// Range sets in the form of `ipam.ranges`; null is an empty list.
///
/// # Errors
/// This is not an array of arrays of ranges; the error names the place.
pub(super) fn range_sets(value: &Value, path: &str) -> Result<Vec<Vec<RangeConfig>>> {
    let mut sets = Vec::new();
    for (i, set) in elements(value, path)?.iter().enumerate() {
        sets.push(range_set(set, &format!("{path}[{i}]"))?);
    }
    Ok(sets)
}

fn range_set(value: &Value, path: &str) -> Result<Vec<RangeConfig>> {
    let set: Option<_> = parse_value(value, path).map_err(|error| match value {
        Value::Object(_) => {
            error.advise(r#"each range set is an array: write [[{"subnet": …}], …]"#)
        }
        _ => error,
    })?;
    set.ok_or_else(|| Error::config(path, "expected an array, found null"))
}

fn elements<'a>(value: &'a Value, path: &str) -> Result<&'a [Value]> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(elements) => Ok(elements),
        other => parse_value::<Option<Vec<String>>>(other, path).map(|_| Default::default()),
    }
}

fn key<T: DeserializeOwned>(ipam: &Map<String, Value>, key: &str) -> Result<Option<T>> {
    match ipam.get(key) {
        None => Ok(None),
        Some(value) => parse_value(value, &format!("ipam.{key}")),
    }
}
