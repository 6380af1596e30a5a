//! Misspelt keys of `ipam` and of pools: an error, or a warning where a replaced system ignores
//! them.

use serde_json::{Map, Value};

use crate::cni::Network;
use crate::error::Result;
use crate::keys::{
    Key, MisspeltKey, OF_HOST_LOCAL, misspelt, misspelt_inside, names, refuse_other_letters,
};
use crate::pool::RangeConfig;

/// Whether a section `ipam` is read by the rules of a replaced system, as a preset sets them: its
/// unchanged configurations keep working.
pub fn reads_as_replaced(ipam: &Map<String, Value>) -> bool {
    ipam.get("rangeRules").and_then(Value::as_str).is_some_and(|rules| rules != "own")
}

/// The misspelt keys in the sections of `ipam` that a delegate with these keys reads; with the
/// ranges of the runtime, where it reads `ipam.ranges`.
pub fn misspelt_settings(network: &Network, keys: &[Key]) -> Vec<MisspeltKey> {
    let mut found = misspelt_inside(network.ipam(), keys, "ipam");
    if let Some(ranges) = network.ip_ranges().filter(|_| names(keys).contains(&"ranges")) {
        let of_runtime = misspelt(ranges, RangeConfig::KEYS, "runtimeConfig.ipRanges");
        found.extend(of_runtime.into_iter().map(|it| MisspeltKey { foreign: true, ..it }));
    }
    found
}

/// Refuses misspelt keys of a section `ipam`, except those that a replaced system ignores.
///
/// # Errors
/// There is such a key: code 7, with its place.
pub(crate) fn refuse(ipam: &Map<String, Value>, found: &[MisspeltKey]) -> Result<()> {
    let by_theirs = reads_as_replaced(ipam);
    let refused = found.iter().find(|it| !(by_theirs && it.foreign));
    refused.map_or(Ok(()), |it| Err(it.error()))
}

const RANGE_OF_HOST_LOCAL: &[&str] = &["gateway", "rangeEnd", "rangeStart", "subnet"];

const ROUTE_OF_HOST_LOCAL: &[&str] = &["dst", "gw"];

/// Refuses keys that differ from host-local's in upper and lower case alone: host-local reads a
/// `RANGESTART`, and here it would be ignored, with the addresses that it keeps free.
pub(super) fn check_letters(ipam: &Map<String, Value>) -> Result<()> {
    refuse_other_letters(ipam, OF_HOST_LOCAL, "ipam")?;
    for (i, set) in elements(ipam.get("ranges")).enumerate() {
        check_letters_of(Some(set), RANGE_OF_HOST_LOCAL, &format!("ipam.ranges[{i}]"))?;
    }
    check_letters_of(ipam.get("routes"), ROUTE_OF_HOST_LOCAL, "ipam.routes")
}

fn check_letters_of(array: Option<&Value>, known: &[&str], path: &str) -> Result<()> {
    let objects = elements(array).enumerate().filter_map(|(i, v)| Some((i, v.as_object()?)));
    let mut checked =
        objects.map(|(i, object)| refuse_other_letters(object, known, &format!("{path}[{i}]")));
    checked.try_for_each(|result| result)
}

fn elements(array: Option<&Value>) -> impl Iterator<Item = &Value> {
    array.and_then(Value::as_array).into_iter().flatten()
}
