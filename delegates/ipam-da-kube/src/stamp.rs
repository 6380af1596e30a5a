//! The owner of a lease, as this delegate writes it beside what whereabouts does.

use std::collections::BTreeMap;

use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::Holder;
use ipam_kit::text::stable_hash;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::objects::{PoolEntry, Reservation};

/// The owner of a lease and its times. It is in the labels and annotations of a reservation; in a
/// network without reservations, in one member of the pool's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OwnerStamp {
    pub(crate) node: String,
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    /// The range of the pool, as the pool has it.
    pub(crate) range: IpNet,
    /// The uid of the pod; empty if the runtime names none.
    pub(crate) pod_uid: String,
    /// When the address was taken, in milliseconds since 1970.
    pub(crate) taken: u64,
    /// When the lease was confirmed, likewise.
    pub(crate) confirmed: u64,
}

/// The text of the member `ipamDelegated` of a pool's entry.
#[derive(Serialize, Deserialize)]
struct EntryText {
    generation: String,
    #[serde(flatten)]
    stamp: OwnerStamp,
}

pub(crate) const NODE: &str = "ipam-delegated/node";
const NETWORK: &str = "ipam-delegated/network";
pub(crate) const CONTAINER: &str = "ipam-delegated/container";
const IFNAME: &str = "ipam-delegated/ifname";
const RANGE: &str = "ipam-delegated/range";
const POD_UID: &str = "ipam-delegated/pod-uid";
const TAKEN: &str = "ipam-delegated/taken";
const CONFIRMED: &str = "ipam-delegated/confirmed";

impl OwnerStamp {
    /// Makes the stamp of an owner.
    pub(crate) fn of(
        owner: &Owner,
        range: IpNet,
        pod_uid: &str,
        taken: u64,
        confirmed: u64,
    ) -> Self {
        Self {
            node: owner.scope.node.clone(),
            network: owner.scope.network.to_string(),
            container: owner.container.to_string(),
            ifname: owner.ifname.to_string(),
            range,
            pod_uid: pod_uid.to_owned(),
            taken,
            confirmed,
        }
    }

    /// Reads the stamp of a reservation; `None` if another program made it.
    pub(crate) fn of_reservation(reservation: &Reservation) -> Option<Self> {
        let annotations = &reservation.metadata.annotations;
        let text = |key: &str| annotations.get(key).cloned();
        let time = |key: &str| annotations.get(key).and_then(|text| text.parse().ok());
        Some(Self {
            node: text(NODE)?,
            network: text(NETWORK)?,
            container: text(CONTAINER)?,
            ifname: text(IFNAME)?,
            range: annotations.get(RANGE)?.parse().ok()?,
            pod_uid: text(POD_UID).unwrap_or_default(),
            taken: time(TAKEN).unwrap_or_default(),
            confirmed: time(CONFIRMED).unwrap_or_default(),
        })
    }

    /// Reads the stamp of a pool's entry; `None` without one, or if an old release has replaced
    /// the entry's id since.
    pub(crate) fn of_allocation(allocation: &PoolEntry) -> Option<Self> {
        let EntryText { stamp, .. } = serde_json::from_str(allocation.mark.as_deref()?).ok()?;
        (allocation.id.as_ref() == Some(&stamp.container)).then_some(stamp)
    }

    /// Writes the member of a pool's entry. The generation makes each text another one.
    pub(crate) fn to_mark(&self, generation: &str) -> String {
        let mark = EntryText { generation: generation.to_owned(), stamp: self.clone() };
        // The members are plain, so writing cannot fail.
        serde_json::to_string(&mark).unwrap_or_default()
    }

    /// Returns whether an owner wrote it.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.node == owner.scope.node
            && self.network == owner.scope.network.as_str()
            && self.container == owner.container.as_str()
            && self.ifname == owner.ifname.as_str()
    }

    /// Returns the holder, as a scan of this network shows it.
    pub(crate) fn holder(&self, network: &str) -> Holder {
        Holder {
            node: Some(self.node.clone()),
            container: self.container.clone(),
            ifname: Some(self.ifname.clone()),
            network: (self.network != network).then(|| self.network.clone()),
            ..Holder::default()
        }
    }

    /// Returns the labels, by which the leases of a node and of a network are listed.
    pub(crate) fn labels(&self) -> Value {
        json!({NODE: label_value(&self.node), NETWORK: label_value(&self.network)})
    }

    /// Returns the annotations, which have the exact values.
    pub(crate) fn annotations(&self) -> BTreeMap<&'static str, String> {
        let Self { node, network, container, ifname, range, pod_uid, taken, confirmed } = self;
        BTreeMap::from([
            (NODE, node.clone()),
            (NETWORK, network.clone()),
            (CONTAINER, container.clone()),
            (IFNAME, ifname.clone()),
            (RANGE, range.to_string()),
            (POD_UID, pod_uid.clone()),
            (TAKEN, taken.to_string()),
            (CONFIRMED, confirmed.to_string()),
        ])
    }
}

/// Returns the selector of the reservations of a network and, if one is named, of a node.
pub(crate) fn selector(network: &str, node: Option<&str>) -> String {
    let network = format!("{NETWORK}={}", label_value(network));
    match node {
        Some(node) => format!("{network},{NODE}={}", label_value(node)),
        None => network,
    }
}

/// The longest value of a label.
const LONGEST: usize = 63;

/// Makes a text the value of a label: itself if it may be one, else its beginning and a hash.
pub(crate) fn label_value(text: &str) -> String {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends_well = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if text.len() <= LONGEST && text.bytes().all(inside) && ends_well(text) {
        return text.to_owned();
    }
    let plain = |byte: u8| if inside(byte) { char::from(byte) } else { '-' };
    let begin: String = text.bytes().take(40).map(plain).collect();
    format!("x{begin}-{:016x}", stable_hash(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> OwnerStamp {
        OwnerStamp {
            node: "n-1".into(),
            network: "lan".into(),
            container: "c1".into(),
            ifname: "eth0".into(),
            range: "10.0.0.0/24".parse().unwrap(),
            pod_uid: String::new(),
            taken: 5,
            confirmed: 7,
        }
    }

    #[test]
    fn a_reservation_gives_its_stamp_back() {
        let metadata = json!({"annotations": stamp().annotations()});
        let reservation = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        assert_eq!(OwnerStamp::of_reservation(&reservation), Some(stamp()));
        let other = serde_json::from_value(json!({"metadata": {}, "spec": {"podref": "a/b"}}));
        assert_eq!(OwnerStamp::of_reservation(&other.unwrap()), None);
    }

    #[test]
    fn a_mark_counts_while_it_names_the_id_of_its_entry() {
        let mark = Some(stamp().to_mark("g1"));
        let entry = PoolEntry { id: Some("c1".into()), mark, ..PoolEntry::default() };
        assert_eq!(OwnerStamp::of_allocation(&entry), Some(stamp()));
        let replaced = PoolEntry { id: Some("c2".into()), ..entry };
        assert_eq!(OwnerStamp::of_allocation(&replaced), None);
    }

    #[test]
    fn any_text_becomes_the_value_of_a_label() {
        for text in ["n-1", "3f2c8a1e-0000-4000-8000-123456789abc", "a_b.c"] {
            assert_eq!(label_value(text), text);
        }
        let long = "n".repeat(64);
        for text in ["", "-a", "a-", "a b", "ä", &long] {
            let value = label_value(text);
            assert!(value.len() <= LONGEST && value.starts_with('x'), "{value}");
            assert_eq!(label_value(&value), value);
        }
        assert_ne!(label_value("a b"), label_value("a  b"));
        assert_eq!(selector("lan", Some("n")), "ipam-delegated/network=lan,ipam-delegated/node=n");
    }
}
