//! Keys that host-local would read, in other letters.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The keys of `ipam` that host-local reads.
const IPAM: &[&str] =
    &["dataDir", "gateway", "rangeEnd", "rangeStart", "ranges", "resolvConf", "routes", "subnet"];

const RANGE: &[&str] = &["gateway", "rangeEnd", "rangeStart", "subnet"];

const ROUTE: &[&str] = &["dst", "gw"];

/// Refuses keys that differ from host-local's in upper and lower case alone.
///
/// host-local reads them, we pass over them: a `RANGESTART` would silently be lost, and with it the
/// addresses that it keeps free.
///
/// # Errors
/// There is such a key; the error names its place.
pub(super) fn check(ipam: &Map<String, Value>) -> Result<()> {
    check_object(ipam, IPAM, "ipam")?;
    for (i, set) in elements(ipam.get("ranges")).enumerate() {
        check_all(Some(set), RANGE, &format!("ipam.ranges[{i}]"))?;
    }
    check_all(ipam.get("routes"), ROUTE, "ipam.routes")
}

fn check_all(array: Option<&Value>, known: &[&str], path: &str) -> Result<()> {
    let objects = elements(array).enumerate().filter_map(|(i, v)| Some((i, v.as_object()?)));
    let mut checked =
        objects.map(|(i, object)| check_object(object, known, &format!("{path}[{i}]")));
    checked.try_for_each(|result| result)
}

/// Refuses keys of an object that differ from known ones in upper and lower case alone, which a system
/// written in Go reads.
///
/// # Errors
/// There is such a key; the error names its place.
pub fn check_object(object: &Map<String, Value>, known: &[&str], path: &str) -> Result<()> {
    for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
        if let Some(meant) = known.iter().find(|known| known.eq_ignore_ascii_case(key)) {
            return Err(Error::config(format!("{path}.{key}"), format!("write {meant}"))
                .advise("keys are read in these very letters"));
        }
    }
    Ok(())
}

fn elements(array: Option<&Value>) -> impl Iterator<Item = &Value> {
    array.and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::offer::call::Call;

    #[test]
    fn keys_in_other_letters_are_not_passed_over() {
        let details = Call::ipam(json!({"subnet": "10.1.2.0/24", "RangeStart": "10.1.2.9"}))
            .err(7, "ipam.RangeStart: write rangeStart");
        assert_eq!(details, "keys are read in these very letters");
        Call::ipam(json!({"subnet": "10.1.2.0/24", "DATADIR": "/leases"}))
            .err(7, "ipam.DATADIR: write dataDir");
        Call::ipam(json!({"ranges": [[], [{"subnet": "10.1.2.0/24", "Gateway": "10.1.2.9"}]]}))
            .err(7, "ipam.ranges[1][0].Gateway: write gateway");
        Call::ipam(json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "::/0", "GW": "fd00::1"}]}))
            .err(7, "ipam.routes[0].GW: write gw");
    }

    #[test]
    fn keys_of_others_are_none_of_its_business() {
        Call::ipam(json!({"subnet": "10.1.2.0/24", "Server": 1, "subnets": 2})).ok();
        Call::ipam(json!({"ranges": [[{"subnet": "10.1.2.0/24", "comment": "x"}]]})).ok();
    }
}
