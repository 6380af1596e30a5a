//! The object of a sticky name: its address, and the attachment that has it.

use std::fmt;
use std::net::IpAddr;

use ipam_kit::allocate::{Owner, StickyName};
use ipam_kube::Moment;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::ObjectNames;
use crate::objects::Metadata;
use crate::pod::Pod;

/// The API group of the kind. Its version is the one of whereabouts' kinds.
pub(crate) const STICKY_GROUP: &str = "ipam-delegated.io";
/// The kind, and as paths and rules write it.
pub(crate) const STICKY_KIND: &str = "StickyLease";
pub(crate) const STICKY_LEASES: &str = "stickyleases";

/// A StickyLease: the address of a sticky name in a pool. No call of this program changes the name
/// or the address of an object: another address is another object, with another uid.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "ReadObject")]
pub(crate) struct StickyLease {
    pub(crate) metadata: Metadata,
    /// The content; an error for an object that a person has edited so that it cannot be read.
    pub(crate) spec: Result<StickySpec, String>,
}

/// The content of a StickyLease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StickySpec {
    /// The sticky name, also if the name of the object is a hash.
    pub(crate) name: String,
    /// The IPPool of the first range of the pool.
    pub(crate) pool: String,
    pub(crate) address: IpAddr,
    /// The range of the IPPool that has the entry of the address.
    pub(crate) range: IpNet,
    /// How long the address stays after the holder.
    pub(crate) keep_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<StickyHolder>,
    /// When the address may go to others. It has no holder then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept_until: Option<Moment>,
}

/// The attachment that has the address of a sticky name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StickyHolder {
    pub(crate) node: String,
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    /// The pod, as NAMESPACE/NAME; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) pod: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) pod_uid: String,
    /// In milliseconds: calls for two sandboxes of a pod may begin within one second.
    pub(crate) since: Moment,
    /// Until when the address was kept before this holder, for an ADD that fails and gives it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept_until: Option<Moment>,
}

/// The id that the entry and the reservation of a sticky lease have in place of a container's. It
/// names the very object, so what has the id of an object that is gone can be removed at any time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StickyId {
    pub(crate) object: String,
    pub(crate) uid: String,
}

/// The state of a StickyLease, as part of a lease's revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StickyMark {
    pub(crate) object: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) keep_seconds: u64,
}

/// A sticky name that an owner claims, with an address.
#[derive(Clone, Debug)]
pub(crate) struct WantedSticky {
    pub(crate) object: String,
    pub(crate) pool: String,
    pub(crate) sticky: StickyName,
    /// The place of the name in the configuration.
    pub(crate) path: String,
    pub(crate) address: IpAddr,
    pub(crate) range: IpNet,
    /// The id of the entry that the address has, if it is of an object of this name.
    pub(crate) entered: Option<StickyId>,
}

/// An object as the server has it.
#[derive(Deserialize)]
struct ReadObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
}

impl From<ReadObject> for StickyLease {
    fn from(ReadObject { metadata, spec }: ReadObject) -> Self {
        let spec = StickySpec::deserialize(&spec).map_err(|error| error.to_string());
        Self { metadata, spec }
    }
}

impl StickyLease {
    pub(crate) fn id(&self) -> StickyId {
        let Metadata { name, uid, .. } = self.metadata.clone();
        StickyId { object: name, uid }
    }

    pub(crate) fn mark(&self) -> StickyMark {
        let Metadata { name, uid, resource_version, .. } = self.metadata.clone();
        let keep_seconds = self.spec.as_ref().map(|spec| spec.keep_seconds).unwrap_or_default();
        StickyMark { object: name, uid, version: resource_version, keep_seconds }
    }

    /// Returns the content, if it is as this program writes it for the name of the object.
    ///
    /// # Errors
    /// What a person has edited.
    pub(crate) fn sound(&self) -> Result<&StickySpec, String> {
        let spec = self.readable()?;
        let StickySpec { name, pool, address, range, .. } = spec;
        if ObjectNames::sticky(pool, name) != self.metadata.name {
            return Err(format!("spec.name {name:?} of spec.pool {pool:?} has another object"));
        }
        if !range.contains(address) {
            return Err(format!("spec.address {address} is outside of spec.range {range}"));
        }
        if self.is_ending() {
            return Err("metadata.deletionTimestamp is set".to_owned());
        }
        Ok(spec)
    }

    /// Returns the content, if it tells whether the address is in use.
    ///
    /// # Errors
    /// What a person has edited.
    pub(crate) fn readable(&self) -> Result<&StickySpec, String> {
        let spec = self.spec.as_ref().map_err(|fault| format!("spec cannot be read: {fault}"))?;
        match (&spec.holder, spec.kept_until) {
            (None, None) => Err("spec has neither holder nor keptUntil".to_owned()),
            _ => Ok(spec),
        }
    }

    /// Returns whether the address is kept, and has no holder.
    pub(crate) fn is_kept(&self) -> bool {
        self.readable().is_ok_and(|spec| spec.holder.is_none())
    }

    /// Returns whether the server has begun to delete the object, which finalizers keep.
    pub(crate) fn is_ending(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns what the object says and the holder, if it has one.
    pub(crate) fn held(&self) -> Option<(&StickySpec, &StickyHolder)> {
        let spec = self.spec.as_ref().ok()?;
        Some((spec, spec.holder.as_ref()?))
    }

    /// Returns what the object said before its holder, if it was kept then.
    pub(crate) fn before_holder(&self) -> Option<StickySpec> {
        let (spec, holder) = self.held()?;
        holder.kept_until.map(|_| StickySpec {
            holder: None,
            kept_until: holder.kept_until,
            ..spec.clone()
        })
    }

    /// Returns since when the address may go to others; `None` if it may not.
    pub(crate) fn expired(&self) -> Option<Moment> {
        let spec = self.spec.as_ref().ok()?;
        let until = spec.kept_until.filter(|until| *until <= Moment::now());
        until.filter(|_| spec.holder.is_none() && !self.is_ending())
    }
}

impl StickySpec {
    /// Returns whether it has what a claim has written, which does not know all times.
    pub(crate) fn is_as_written(&self, written: &Self) -> bool {
        let mut own = self.clone();
        if let (Some(own), Some(written)) = (&mut own.holder, &written.holder) {
            own.kept_until = written.kept_until;
        }
        own == *written
    }
}

impl StickyHolder {
    /// Makes an owner the holder.
    pub(crate) fn of(owner: &Owner, pod: &Pod) -> Self {
        Self {
            node: owner.scope.node.clone(),
            network: owner.scope.network.to_string(),
            container: owner.container.to_string(),
            ifname: owner.ifname.to_string(),
            pod: pod.podref.clone(),
            pod_uid: pod.uid.clone(),
            since: Moment::now_in_millis(),
            kept_until: None,
        }
    }

    /// Returns whether an owner is the holder.
    pub(crate) fn is(&self, owner: &Owner) -> bool {
        self.node == owner.scope.node && self.is_on_any_node(owner)
    }

    /// Returns whether an owner is the holder, on this node or on another one.
    pub(crate) fn is_on_any_node(&self, owner: &Owner) -> bool {
        self.container == owner.container.as_str() && self.is_attached_as(owner)
    }

    /// Returns whether the holder is another sandbox of an owner's pod. Some runtimes name no uid: then
    /// only the node tells pods of one name apart.
    pub(crate) fn is_of_pod(&self, owner: &Owner, pod: &Pod) -> bool {
        let is_same = match self.pod_uid.is_empty() || pod.uid.is_empty() {
            true => self.node == owner.scope.node,
            false => self.pod_uid == pod.uid,
        };
        is_same && self.pod == pod.podref && !pod.podref.is_empty()
    }

    /// Returns whether an owner has the interface of the holder.
    pub(crate) fn is_attached_as(&self, owner: &Owner) -> bool {
        self.network == owner.scope.network.as_str() && self.ifname == owner.ifname.as_str()
    }
}

impl fmt::Display for StickyHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, container, ifname, pod, .. } = self;
        if !pod.is_empty() {
            write!(f, "the pod {pod}, ")?;
        }
        write!(f, "{container}/{ifname} of node {node}")
    }
}

const PREFIX: &str = "sticky:";

impl StickyId {
    /// Reads the id of an entry or a reservation; `None` for that of a container, which has no
    /// colon.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let (object, uid) = id.strip_prefix(PREFIX)?.rsplit_once(':')?;
        Some(Self { object: object.to_owned(), uid: uid.to_owned() })
    }
}

impl fmt::Display for StickyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}:{}", self.object, self.uid)
    }
}

impl StickyMark {
    pub(crate) fn id(&self) -> StickyId {
        let Self { object, uid, .. } = self.clone();
        StickyId { object, uid }
    }

    /// Returns whether an object is in this state.
    pub(crate) fn is_state_of(&self, lease: &StickyLease) -> bool {
        self.uid == lease.metadata.uid && self.version == lease.metadata.resource_version
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_names_the_very_object() {
        let id = StickyId { object: "10.1.2.0-24.web-0".into(), uid: "7c0e".into() };
        assert_eq!(id.to_string(), "sticky:10.1.2.0-24.web-0:7c0e");
        assert_eq!(StickyId::parse(&id.to_string()), Some(id));
        for other in ["", "c1", "sticky", "sticky:a"] {
            assert_eq!(StickyId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn an_object_that_a_person_has_edited_is_read_with_what_is_wrong() {
        let read = |spec: Value| -> StickyLease {
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
        };
        let sound = json!({
            "name": "web-0", "pool": "10.1.2.0-24", "address": "10.1.2.7", "range": "10.1.2.0/24",
            "keepSeconds": 60, "keptUntil": "2026-03-01T09:30:00Z",
        });
        let spec = read(sound.clone()).spec.unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap(), sound);
        for (key, value) in [("address", "10.1.2"), ("range", "all"), ("keptUntil", "later")] {
            let mut edited = sound.clone();
            edited[key] = value.into();
            assert!(read(edited).spec.is_err(), "{key}");
        }
        assert!(read(Value::Null).spec.is_err());
    }
}
