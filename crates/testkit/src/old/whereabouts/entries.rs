//! What a program makes of the entries of a pool: `toIPReservationList`, `toAllocationMap` and
//! `Update` of `pkg/storage/kubernetes/ipam.go`, in the fork of `pkg/storage/kubernetes.go`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value, json};

use super::is_late;
use crate::whereabouts::Release;

/// An entry as a program has it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// None where an offset is too large for the family.
    pub(super) address: Option<IpAddr>,
    /// As [`super::ranges::Chosen::is_short`].
    pub(super) is_short: bool,
    pub(super) id: String,
    pub(super) podref: String,
    pub(super) ifname: String,
}

/// The entries of a pool whose first address is `base`, but for those whose offset is not a number
/// of 64 bits with a sign.
pub(super) fn read(pool: &Value, base: IpAddr) -> Vec<Held> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let held = |(offset, entry): (&String, &Value)| {
        let offset = offset.parse::<i64>().ok()?;
        Some(Held {
            address: add(base, offset.cast_unsigned()),
            is_short: false,
            id: text(entry, "id"),
            podref: text(entry, "podref"),
            ifname: text(entry, "ifname"),
        })
    };
    entries(pool).iter().filter_map(held).collect()
}

/// The JSON patch to these entries: guarded by the resourceVersion of the pool, and by the absence
/// of what it adds. Members that a release does not know stay.
pub(super) fn patch(
    release: Release,
    pool: &Value,
    base: IpAddr,
    held: &[Held],
) -> Result<Value, String> {
    let known = |entry: &Value| {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        members(release, &text("id"), &text("podref"), &text("ifname"))
    };
    let old: BTreeMap<_, _> =
        entries(pool).iter().map(|(key, entry)| (key.clone(), known(entry))).collect();
    let mut new = BTreeMap::new();
    for one in held {
        let entry = members(release, &one.id, &one.podref, &one.ifname);
        new.insert(offset(release, one, base)?.to_string(), entry);
    }
    let path = |parts: &[&str]| {
        let escaped = parts.iter().map(|part| part.replace('~', "~0").replace('/', "~1"));
        format!("/spec/allocations/{}", escaped.collect::<Vec<_>>().join("/"))
    };
    let version = &pool["metadata"]["resourceVersion"];
    let mut tests =
        vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    let mut changes = Vec::new();
    let mut add = |path: String, value: Value| {
        tests.push(json!({"op": "test", "path": path, "value": null}));
        json!({"op": "add", "path": path, "value": value})
    };
    for (key, entry) in &new {
        let Some(before) = old.get(key) else {
            changes.push(add(path(&[key]), json!(entry)));
            continue;
        };
        for (member, value) in
            entry.iter().filter(|(member, value)| before.get(*member) != Some(value))
        {
            let path = path(&[key, member]);
            changes.push(match before.contains_key(member) {
                true => json!({"op": "replace", "path": path, "value": value}),
                false => add(path, value.clone()),
            });
        }
        let gone = before.keys().filter(|member| !entry.contains_key(*member));
        changes.extend(gone.map(|member| json!({"op": "remove", "path": path(&[key, member])})));
    }
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    changes.extend(gone.map(|key| json!({"op": "remove", "path": path(&[key])})));
    tests.extend(changes);
    Ok(tests.into())
}

fn entries(pool: &Value) -> Map<String, Value> {
    pool["spec"]["allocations"].as_object().cloned().unwrap_or_default()
}

/// An entry as a release writes it.
fn members(release: Release, id: &str, podref: &str, ifname: &str) -> Map<String, Value> {
    let late = release == Release::V094;
    let mut members = Map::new();
    members.insert("id".to_owned(), id.into());
    if late || !podref.is_empty() {
        members.insert("podref".to_owned(), podref.into());
    }
    if late && !ifname.is_empty() {
        members.insert("ifname".to_owned(), ifname.into());
    }
    members
}

/// `IPAddOffset`.
fn add(base: IpAddr, offset: u64) -> Option<IpAddr> {
    match base {
        IpAddr::V4(base) => {
            let offset = u32::try_from(offset).ok().filter(|offset| *offset < u32::MAX)?;
            Some(Ipv4Addr::from_bits(base.to_bits().checked_add(offset)?).into())
        }
        IpAddr::V6(base) => {
            Some(Ipv6Addr::from_bits(base.to_bits().wrapping_add(offset.into())).into())
        }
    }
}

/// `IPGetOffset`: 64 bits of the distance. Another family counts as 0 up to v0.5.4.
fn offset(release: Release, held: &Held, base: IpAddr) -> Result<u64, String> {
    let distance = match (held.address, base) {
        (Some(IpAddr::V4(address)), IpAddr::V4(base)) => {
            address.to_bits().abs_diff(base.to_bits()).into()
        }
        (Some(IpAddr::V6(address)), IpAddr::V6(base)) => address.to_bits().abs_diff(base.to_bits()),
        _ if is_late(release) => {
            return Err(format!(
                "cannot calculate offset between IPv6 (<nil>) and IPv4 address ({base})"
            ));
        }
        _ => 0,
    };
    #[allow(clippy::cast_possible_truncation, reason = "the programs cut it, too")]
    Ok(if held.is_short { 0 } else { distance as u64 })
}
