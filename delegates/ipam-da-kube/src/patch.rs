//! JSON patches (RFC 6902) of pools and reservations, each operation guarded by tests.

use std::collections::BTreeMap;

use ipam_kube::Moment;
use serde_json::{Value, json};

use crate::lease_mark::ReservationMark;
use crate::objects::{IpPool, Metadata, PoolEntry};
use crate::stamp::OwnerStamp;
use crate::sticky_lease::{StickyHolder, StickyId, StickyMark, StickySpec};

/// A JSON patch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch(Vec<Value>);

/// The entry that a removal expects.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedEntry<'a> {
    pub(crate) id: &'a str,
    /// The interface, if the CRD keeps it.
    pub(crate) ifname: Option<&'a str>,
    /// The mark, if the CRD keeps it.
    pub(crate) mark: Option<&'a str>,
}

impl Patch {
    /// Stops the tracking of each key: on the CRDs of whereabouts it costs half of every change.
    /// The server begins again with the next manager that updates the whole map.
    pub(crate) fn stop_tracking(&mut self) {
        self.push("replace", "/metadata/managedFields", json!([{}]));
    }

    /// Adds entries at keys that must be free. `pool` is the object as it was read.
    pub(crate) fn add_entries(&mut self, pool: &IpPool, entries: &[(u64, PoolEntry)]) {
        if pool.spec.allocations.is_none() {
            let map: serde_json::Map<String, Value> =
                entries.iter().map(|(key, entry)| (key.to_string(), entry.to_json())).collect();
            self.test("/spec/allocations", Value::Null);
            self.push("add", "/spec/allocations", map.into());
            return;
        }
        for (key, entry) in entries {
            let path = entry_path(&key.to_string());
            // An absent key equals null.
            self.test(&path, Value::Null);
            self.push("add", &path, entry.to_json());
        }
    }

    /// Fails if a key has been added since the pool was read.
    pub(crate) fn expect_absent(&mut self, pool: &IpPool, key: &str) {
        if pool.spec.allocations.is_some() && pool.allocation(key).is_none() {
            self.test(&entry_path(key), Value::Null);
        }
    }

    /// Fails if a key is taken. `pool` is the object as it was read.
    pub(crate) fn expect_free(&mut self, pool: &IpPool, key: &str) {
        match pool.spec.allocations {
            Some(_) => self.test(&entry_path(key), Value::Null),
            None => self.test("/spec/allocations", Value::Null),
        }
    }

    /// Writes an annotation. `seen` is the metadata as it was read.
    pub(crate) fn annotate(&mut self, seen: &Metadata, key: &str, value: &str) {
        let one = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        self.add_annotations(&one, seen.annotations.is_empty());
    }

    /// Writes annotations, beside those of others. `lacks_map` says that the object was seen without
    /// any.
    pub(crate) fn add_annotations(&mut self, notes: &BTreeMap<String, String>, lacks_map: bool) {
        self.add_texts("/metadata/annotations", notes, lacks_map);
    }

    /// Writes labels, beside those of others. `lacks_map` says that the object was seen without any.
    pub(crate) fn add_labels(&mut self, labels: &BTreeMap<String, String>, lacks_map: bool) {
        self.add_texts("/metadata/labels", labels, lacks_map);
    }

    /// Removes an annotation that has a certain text.
    pub(crate) fn remove_annotation(&mut self, name: &str, text: &str) {
        let path = format!("/metadata/annotations/{}", escaped(name));
        self.test(&path, text.into());
        self.0.push(json!({"op": "remove", "path": path}));
    }

    /// Removes the entry of a key.
    pub(crate) fn remove_entry(&mut self, key: &str, expected: &ExpectedEntry<'_>) {
        self.test_entry(key, expected);
        self.0.push(json!({"op": "remove", "path": entry_path(key)}));
    }

    /// Replaces the entry of a key.
    pub(crate) fn replace_entry(
        &mut self,
        key: &str,
        expected: &ExpectedEntry<'_>,
        entry: &PoolEntry,
    ) {
        self.test_entry(key, expected);
        self.push("replace", &entry_path(key), entry.to_json());
    }

    /// Writes the owner of a reservation that is in a certain state.
    pub(crate) fn restamp(&mut self, seen: &ReservationMark, podref: &str, stamp: &OwnerStamp) {
        self.test("/metadata/uid", seen.uid.as_str().into());
        self.test("/metadata/resourceVersion", seen.resource_version.as_str().into());
        self.push("add", "/metadata/labels", stamp.labels());
        self.push("add", "/metadata/annotations", json!(stamp.annotations()));
        self.push("add", "/spec", reservation_spec(podref, stamp));
    }

    /// Writes what a StickyLease says, if the object is in a certain state.
    pub(crate) fn write_sticky(&mut self, seen: &StickyMark, spec: &StickySpec) {
        self.expect_sticky(seen);
        self.push("add", "/spec", json!(spec));
    }

    /// Writes the holder of a StickyLease that has none, if it is the object of an entry. The time
    /// until which it was kept moves to the holder.
    pub(crate) fn hold_sticky(&mut self, id: &StickyId, spec: &StickySpec) {
        self.test("/metadata/uid", id.uid.as_str().into());
        for (member, value) in [("name", json!(spec.name)), ("pool", json!(spec.pool))] {
            self.test(&format!("/spec/{member}"), value);
        }
        self.test("/spec/address", json!(spec.address));
        self.test("/spec/range", json!(spec.range));
        self.test("/spec/holder", Value::Null);
        self.test("/metadata/deletionTimestamp", Value::Null);
        self.push("add", "/spec/keepSeconds", spec.keep_seconds.into());
        self.push("add", "/spec/holder", json!(spec.holder));
        let (from, path) = ("/spec/keptUntil", "/spec/holder/keptUntil");
        self.0.push(json!({"op": "move", "from": from, "path": path}));
    }

    /// Writes the holder of a StickyLease anew, and how long the address stays after it.
    pub(crate) fn rehold_sticky(&mut self, seen: &StickyMark, holder: &StickyHolder, keep: u64) {
        self.expect_sticky(seen);
        self.push("add", "/spec/keepSeconds", keep.into());
        self.push("add", "/spec/holder", json!(holder));
    }

    /// Writes the time until which a StickyLease is kept in place of its holder.
    pub(crate) fn keep_sticky(&mut self, seen: &StickyMark, until: Moment) {
        self.expect_sticky(seen);
        self.push("add", "/spec/keptUntil", json!(until));
        self.0.push(json!({"op": "remove", "path": "/spec/holder"}));
    }

    fn expect_sticky(&mut self, seen: &StickyMark) {
        self.test("/metadata/uid", seen.uid.as_str().into());
        self.test("/metadata/resourceVersion", seen.version.as_str().into());
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // The members are plain, so writing cannot fail.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    fn test_entry(&mut self, key: &str, expected: &ExpectedEntry<'_>) {
        let members = [
            ("id", Some(expected.id)),
            ("ifname", expected.ifname),
            ("ipamDelegated", expected.mark),
        ];
        for (member, value) in members {
            if let Some(value) = value {
                self.test(&format!("{}/{member}", entry_path(key)), value.into());
            }
        }
    }

    fn add_texts(&mut self, map: &str, texts: &BTreeMap<String, String>, lacks_map: bool) {
        if lacks_map {
            self.test(map, Value::Null);
            return self.push("add", map, json!(texts));
        }
        for (name, text) in texts {
            self.push("add", &format!("{map}/{}", escaped(name)), text.as_str().into());
        }
    }

    fn test(&mut self, path: &str, value: Value) {
        self.push("test", path, value);
    }

    fn push(&mut self, op: &str, path: &str, value: Value) {
        self.0.push(json!({"op": op, "path": path, "value": value}));
    }
}

/// The members of a reservation that all releases of whereabouts read.
pub(crate) fn reservation_spec(podref: &str, stamp: &OwnerStamp) -> Value {
    json!({"podref": podref, "ifname": stamp.ifname, "containerid": stamp.container})
}

/// The path of an entry; a key of others may have any characters.
fn entry_path(key: &str) -> String {
    format!("/spec/allocations/{}", escaped(key))
}

/// A member's name in a path (RFC 6901).
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
