//! The objects of whereabouts: an IPPool for each range, and a reservation for each address.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// The API group of both kinds, and its version.
pub(crate) const GROUP: &str = "whereabouts.cni.cncf.io";
pub(crate) const VERSION: &str = "v1alpha1";
/// The kinds as paths and rules write them.
pub(crate) const POOLS: &str = "ippools";
pub(crate) const RESERVATIONS: &str = "overlappingrangeipreservations";

/// An IPPool: the allocations of a range.
#[derive(Debug, Deserialize)]
pub(crate) struct IpPool {
    pub(crate) metadata: Metadata,
    pub(crate) spec: IpPoolSpec,
}

/// The members of an object's metadata that this delegate reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// It grows with each change of the spec.
    pub(crate) generation: u64,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) managed_fields: Vec<ManagedFields>,
}

/// An answer without the object.
#[derive(Debug, Deserialize)]
pub(crate) struct WrittenObject {
    #[serde(default)]
    pub(crate) metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IpPoolSpec {
    pub(crate) range: String,
    /// `None` if the object lacks the member.
    pub(crate) allocations: Option<BTreeMap<String, PoolEntry>>,
}

/// An entry of an IPPool. Releases of whereabouts write, and CRDs keep, some of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct PoolEntry {
    pub(crate) id: Option<String>,
    pub(crate) podref: Option<String>,
    pub(crate) ifname: Option<String>,
    /// This delegate's own member, in networks without reservations.
    #[serde(rename = "ipamDelegated")]
    pub(crate) mark: Option<String>,
}

/// An OverlappingRangeIPReservation: an address that no pool may give a second time.
#[derive(Debug, Deserialize)]
pub(crate) struct Reservation {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: ReservationSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReservationSpec {
    pub(crate) podref: Option<String>,
    pub(crate) ifname: Option<String>,
    pub(crate) containerid: Option<String>,
}

impl IpPool {
    /// Returns the subnet of the range; `None` if the object has none that can be read.
    pub(crate) fn range(&self) -> Option<IpNet> {
        self.spec.range.parse::<IpNet>().ok().map(|range| range.trunc())
    }

    /// Returns whether keys count from the network address of a subnet. Releases of whereabouts
    /// count from the address in the range, whatever its length.
    pub(crate) fn counts_from(&self, subnet: IpNet) -> bool {
        self.spec.range.parse::<IpNet>().is_ok_and(|range| range == subnet)
    }

    /// Returns the entries.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (&str, &PoolEntry)> {
        let entries = self.spec.allocations.iter().flatten();
        entries.map(|(key, allocation)| (key.as_str(), allocation))
    }

    /// Returns the entry of a key.
    pub(crate) fn allocation(&self, key: &str) -> Option<&PoolEntry> {
        self.spec.allocations.as_ref()?.get(key)
    }

    /// Returns whether the server tracks who wrote each key of the allocations. That is a quarter
    /// of the object, and half of the time of a change.
    pub(crate) fn is_tracked(&self) -> bool {
        self.metadata.managed_fields.iter().any(|managed| managed.fields.tracks_keys())
    }
}

impl Reservation {
    /// Returns whether it reserves the address for the holder of an entry.
    pub(crate) fn is_of(&self, entry: &PoolEntry) -> bool {
        self.spec.is_of(entry)
    }

    /// Returns whether it reserves the address for an id: of a container, or of a sticky lease.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        self.spec.containerid.as_deref() == Some(id)
    }
}

impl ReservationSpec {
    /// Returns what names the holder of an entry.
    pub(crate) fn of(entry: &PoolEntry) -> Self {
        let PoolEntry { id, podref, ifname, .. } = entry.clone();
        Self { podref, ifname, containerid: id }
    }

    /// Returns whether it names the holder of an entry: its container, or the same interface of its
    /// pod.
    pub(crate) fn is_of(&self, entry: &PoolEntry) -> bool {
        let Self { podref, ifname, containerid } = self;
        let is_container = containerid.is_some() && *containerid == entry.id;
        let has_pod = podref.as_ref().is_some_and(|podref| !podref.is_empty());
        let same_ifname = match (ifname, &entry.ifname) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        is_container || (has_pod && *podref == entry.podref && same_ifname)
    }
}

impl Metadata {
    /// Returns the version as a number, which grows with each change in the cluster.
    pub(crate) fn version(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }
}

impl PoolEntry {
    /// Writes the entry as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let Self { id, podref, ifname, mark } = self;
        let mut value = json!({"id": id, "podref": podref, "ifname": ifname});
        if let (Some(members), Some(mark)) = (value.as_object_mut(), mark) {
            members.insert("ipamDelegated".to_owned(), mark.as_str().into());
        }
        value
    }
}

/// The members of an object that one manager has written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ManagedFields {
    #[serde(rename = "fieldsV1")]
    fields: Fields,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:spec")]
    spec: SpecFields,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SpecFields {
    #[serde(rename = "f:allocations")]
    allocations: TrackedKeys,
}

impl Fields {
    fn tracks_keys(&self) -> bool {
        self.spec.allocations.0
    }
}

/// Whether a map of managed fields has keys of the object's map.
#[derive(Clone, Copy, Debug, Default)]
struct TrackedKeys(bool);

impl<'de> Deserialize<'de> for TrackedKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = TrackedKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of managed fields")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<TrackedKeys, M::Error> {
        let mut tracked = false;
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<IgnoredAny>()?;
            tracked |= key.starts_with("f:");
        }
        Ok(TrackedKeys(tracked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_any_release_is_read() {
        let pool: IpPool = serde_json::from_value(json!({
            "metadata": {"name": "10.0.0.0-24", "uid": "u", "resourceVersion": "7"},
            "spec": {"range": "10.0.0.0/24", "allocations": {
                "1": {"id": "a"},
                "2": {"id": "b", "podref": "n/p"},
                "3": {"id": "c", "podref": "n/p", "ifname": "net1", "later": 1},
                "x": {},
            }},
        }))
        .unwrap();
        assert_eq!(pool.range(), Some("10.0.0.0/24".parse().unwrap()));
        assert_eq!(pool.metadata.version(), Some(7));
        let keys: Vec<&str> = pool.allocations().map(|(key, _)| key).collect();
        assert_eq!(keys, ["1", "2", "3", "x"]);
        assert_eq!(pool.allocation("2").unwrap().podref.as_deref(), Some("n/p"));
        assert!(!pool.is_tracked());
        let bare: IpPool = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
        assert!(bare.spec.allocations.is_none() && bare.range().is_none());
    }

    #[test]
    fn tracked_keys_are_told_from_an_atomic_map() {
        let pool = |allocations: Value| -> IpPool {
            let fields = json!({"f:spec": {".": {}, "f:allocations": allocations, "f:range": {}}});
            let managed = json!([{"manager": "w", "operation": "Update", "fieldsV1": fields}]);
            let object = json!({"metadata": {"managedFields": managed}, "spec": {"range": ""}});
            serde_json::from_value(object).unwrap()
        };
        assert!(pool(json!({".": {}, "f:7": {".": {}, "f:id": {}}})).is_tracked());
        assert!(!pool(json!({})).is_tracked());
        assert!(!pool(json!({".": {}})).is_tracked());
    }

    #[test]
    fn a_reservation_is_of_its_container_or_of_its_pod() {
        let is_of = |spec: Value, entry: Value| {
            let reservation = json!({"metadata": {}, "spec": spec});
            let reservation: Reservation = serde_json::from_value(reservation).unwrap();
            reservation.is_of(&serde_json::from_value(entry).unwrap())
        };
        let entry = json!({"id": "c", "podref": "n/p", "ifname": "net1"});
        assert!(is_of(json!({"containerid": "c", "podref": ""}), json!({"id": "c"})));
        assert!(is_of(json!({"podref": "n/p"}), entry.clone()));
        // A release since 0.8 replaces the id of an entry alone.
        let earlier = json!({"containerid": "b", "podref": "n/p", "ifname": "net1"});
        assert!(is_of(earlier, entry.clone()));
        for other in [
            json!({}),
            json!({"podref": ""}),
            json!({"podref": "n/q"}),
            json!({"podref": "n/p", "ifname": "net2"}),
            json!({"containerid": "b", "podref": "n/q", "ifname": "net1"}),
        ] {
            assert!(!is_of(other.clone(), entry.clone()), "{other}");
        }
        assert!(!is_of(json!({"podref": ""}), json!({"id": "c", "podref": ""})));
    }

    #[test]
    fn an_entry_has_the_members_that_old_releases_read() {
        let text = |text: &str| Some(text.to_owned());
        let entry = PoolEntry { id: text("c"), podref: text(""), ifname: text("eth0"), mark: None };
        assert_eq!(entry.to_json(), json!({"id": "c", "podref": "", "ifname": "eth0"}));
        let marked = PoolEntry { mark: text("m"), ..entry };
        assert_eq!(marked.to_json()["ipamDelegated"], "m");
    }
}
