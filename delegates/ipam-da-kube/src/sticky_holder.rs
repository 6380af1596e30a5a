//! Whether the holder of a sticky name is alive, as its pod and its node say.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::allocate::Owner;
use ipam_kit::allocate::owner_index::time;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{STATIC_POD_UID, is_object_name};
use serde::Deserialize;

use crate::pod::Pod;
use crate::session::LeaseSession;
use crate::stamp::OwnerStamp;
use crate::sticky_lease::{StickyHolder, StickyId, StickySpec, WantedSticky};

/// A pod, as far as it tells whether it is alive.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HolderPod {
    metadata: PodMetadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodMetadata {
    uid: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

/// A node, as far as it tells whether its pods may still run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HolderNode {
    metadata: NodeMetadata,
    spec: NodeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeMetadata {
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

/// The state of a pod, as the objects of the API server tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodLife {
    /// It may run.
    Alive,
    /// It has ended, or its node is off.
    Ended,
    /// It is deleted, or its objects are in another cluster.
    Missing,
}

/// The taint, or label, of a node that an operator declares to be off.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The advice for a call that began before the present sandbox of its pod took the address.
const BEGAN_BEFORE: &str = "this call began before the present holder took the address: call \
    again; if it fails again, correct the clock of the node";

impl LeaseSession {
    /// Fails while the holder of a sticky name may have its address in use.
    ///
    /// # Errors
    /// Code 11: the holder is alive. Pod or node cannot be read, or the server is not that of the
    /// pods, which says nothing about it. Code 7: another interface of the owner's pod has the name.
    pub(crate) fn refuse_live_holder(
        &mut self,
        owner: &Owner,
        wanted: &WantedSticky,
        spec: &StickySpec,
        holder: &StickyHolder,
    ) -> Result<()> {
        if holder.pod.is_empty() {
            // A container without a pod lives until its DEL.
            return Err(held_by(spec, holder, "release it after its container has ended"));
        }
        if holder.is_of_pod(owner, &self.pod) {
            if !holder.is_attached_as(owner) {
                let message =
                    format!("{:?} is the name of another interface of this pod", spec.name);
                return Err(Error::config(&wanted.path, message)
                    .advise("give each interface in one IPPool a name of its own, by cni-args"));
            }
            if holder.since.time() <= time(self.began) {
                return Ok(());
            }
            return Err(held_by(spec, holder, BEGAN_BEFORE));
        }
        let pod = self.read_pod(&holder.pod)?;
        let is_ours = |pod: &HolderPod| pod.is_of(&self.pod.uid, &owner.scope.node);
        if holder.pod == self.pod.podref
            && holder.pod_uid.is_empty()
            && pod.as_ref().is_some_and(is_ours)
        {
            // The holder was an earlier pod of this name, on another node.
            return Ok(());
        }
        match pod_life(&holder.pod_uid, pod.as_ref(), |name| self.store.read_node(name))? {
            PodLife::Ended => return Ok(()),
            PodLife::Missing if self.has_own_pod(&holder.pod, pod.as_ref())? => return Ok(()),
            PodLife::Missing => return Err(self.other_cluster_of_pods(spec, holder)),
            PodLife::Alive => {}
        }
        let mut advice = "the address moves on when that pod has ended or is deleted".to_owned();
        let node = pod.as_ref().map(|pod| &pod.spec.node_name);
        if let Some(node) = node.filter(|node| !node.is_empty()) {
            advice = format!(
                "{advice}; if its node {node} is off for good, give the node the taint \
                 {OUT_OF_SERVICE}"
            );
        }
        Err(held_by(spec, holder, &advice))
    }

    /// Returns whether an entry without an object may be in use: the pod that its reservation names
    /// is not the owner's, and is alive or of another cluster.
    ///
    /// # Errors
    /// Pod or node cannot be read.
    pub(crate) fn is_rest_in_use(
        &mut self,
        owner: &Owner,
        id: &StickyId,
        address: IpAddr,
    ) -> Result<bool> {
        let Some(reservation) = self.read_reservation(address)? else { return Ok(false) };
        let stamp = OwnerStamp::of_reservation(&reservation);
        let stamp = stamp.filter(|stamp| stamp.container == id.to_string());
        let podref = reservation.spec.podref.filter(|podref| !podref.is_empty());
        let Some((stamp, podref)) = stamp.zip(podref) else { return Ok(false) };
        let is_earlier_sandbox = podref == self.pod.podref
            && stamp.pod_uid == self.pod.uid
            && stamp.node == owner.scope.node
            && stamp.network == owner.scope.network.as_str()
            && stamp.ifname == owner.ifname.as_str();
        if is_earlier_sandbox {
            return Ok(false);
        }
        let pod = self.read_pod(&podref)?;
        match pod_life(&stamp.pod_uid, pod.as_ref(), |name| self.store.read_node(name))? {
            PodLife::Alive => Ok(true),
            PodLife::Ended => Ok(false),
            PodLife::Missing => Ok(!self.has_own_pod(&podref, pod.as_ref())?),
        }
    }

    /// Returns whether the server has the pod of this call. Only if it has, a missing pod is a deleted
    /// one. `shown` is the pod of `podref` that was read.
    fn has_own_pod(&mut self, podref: &str, shown: Option<&HolderPod>) -> Result<bool> {
        let Pod { podref: own, uid } = self.pod.clone();
        let is_own = |pod: &HolderPod| uid.is_empty() || pod.has_uid(&uid);
        if own == podref {
            return Ok(shown.is_some_and(is_own));
        }
        if let Some(known) = self.has_own_pod {
            return Ok(known);
        }
        let has_it = !own.is_empty() && self.read_pod(&own)?.as_ref().is_some_and(is_own);
        self.has_own_pod = Some(has_it);
        Ok(has_it)
    }

    fn other_cluster_of_pods(&self, spec: &StickySpec, holder: &StickyHolder) -> Error {
        let own = match &*self.pod.podref {
            "" => "a container without a pod".to_owned(),
            podref => format!("the pod {podref}, which this API server does not have"),
        };
        let why = format!(
            "this call is for {own}, so nothing shows whether the holder has ended: a sticky name \
             needs its pods in the cluster of the leases"
        );
        let error = held_by(spec, holder, &why);
        if self.pod.podref.is_empty() {
            return error.advise("release the address after its container has ended");
        }
        error.advise(
            "if that pod was deleted meanwhile, ignore this error; else let ipam.pod.kubeconfig and \
             ipam.kube.kubeconfig name one cluster, or release the address after its container has \
             ended",
        )
    }

    /// Reads the present pod of a name, which a person may have written.
    fn read_pod(&mut self, podref: &str) -> Result<Option<HolderPod>> {
        let parts = podref.split_once('/');
        let parts = parts.filter(|(a, b)| is_object_name(a) && is_object_name(b));
        let Some((namespace, name)) = parts else {
            let message = format!("invalid name of the holder's pod, {podref:?}");
            return Err(Error::new(ErrorCode::BACKEND, message)
                .advise("release the address after its container has ended"));
        };
        self.store.read_pod(namespace, name)
    }
}

fn held_by(spec: &StickySpec, holder: &StickyHolder, advice: &str) -> Error {
    let StickySpec { name, pool, address, .. } = spec;
    let message = format!("the sticky name {name:?} of {pool}, {address}, is held by {holder}");
    Error::new(ErrorCode::TRY_AGAIN, message).advise(advice)
}

/// Returns what is known of a pod of this uid. `pod` is the present pod of its name, whose node object
/// is read if the pod says no more. A node that is NotReady changes nothing: it may run the pod.
///
/// A holder without a uid is known by the pod's name alone.
///
/// # Errors
/// Those of `read_node`.
pub(crate) fn pod_life(
    uid: &str,
    pod: Option<&HolderPod>,
    read_node: impl FnOnce(&str) -> Result<Option<HolderNode>>,
) -> Result<PodLife> {
    let Some(pod) = pod.filter(|pod| uid.is_empty() || pod.has_uid(uid)) else {
        return Ok(PodLife::Missing);
    };
    if matches!(&*pod.status.phase, "Succeeded" | "Failed") {
        return Ok(PodLife::Ended);
    }
    let is_on_node = match &*pod.spec.node_name {
        // No node has such a pod yet, and nothing proves that it has ended.
        "" => true,
        name => read_node(name)?.is_some_and(|node| !node.is_out_of_service()),
    };
    Ok(if is_on_node { PodLife::Alive } else { PodLife::Ended })
}

impl HolderPod {
    /// Returns whether it is the pod that a runtime calls for: by its uid or, without one, by its node.
    fn is_of(&self, uid: &str, node: &str) -> bool {
        if uid.is_empty() { self.spec.node_name == node } else { self.has_uid(uid) }
    }

    /// Returns whether runtimes know the pod by a uid: its own or, of a static pod, the one that its
    /// mirror in the API server names.
    fn has_uid(&self, uid: &str) -> bool {
        let PodMetadata { uid: own, annotations } = &self.metadata;
        let of_static = STATIC_POD_UID.iter().filter_map(|key| annotations.get(*key));
        own == uid || of_static.into_iter().any(|of_static| of_static == uid)
    }
}

impl HolderNode {
    fn is_out_of_service(&self) -> bool {
        self.metadata.labels.contains_key(OUT_OF_SERVICE)
            || self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::PodLife::{Alive, Ended, Missing};
    use super::*;

    fn pod(uid: &str, phase: &str, node: &str) -> Value {
        json!({"metadata": {"uid": uid}, "spec": {"nodeName": node}, "status": {"phase": phase}})
    }

    #[test]
    fn the_pod_object_decides_and_its_node_object_overrules() {
        let gone = Value::Null;
        let ready = json!({"metadata": {"labels": {"a": "b"}}, "spec": {}});
        let lost = json!({
            "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        });
        let tainted = json!({"spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}});
        let labelled = json!({"metadata": {"labels": {OUT_OF_SERVICE: ""}}});
        let running = pod("u1", "Running", "n1");
        let mut terminating = running.clone();
        terminating["metadata"]["deletionTimestamp"] = "2026-03-01T09:30:00Z".into();
        let mut mirror = running.clone();
        mirror["metadata"]["annotations"] = json!({STATIC_POD_UID[1]: "u0"});
        let bare = json!({"metadata": {"uid": "u1"}});
        for (what, uid, pod, node, expected) in [
            ("runs", "u1", &running, &ready, Alive),
            ("pending", "u1", &pod("u1", "Pending", "n1"), &ready, Alive),
            ("of no known phase", "u1", &pod("u1", "Unknown", "n1"), &ready, Alive),
            ("terminates", "u1", &terminating, &ready, Alive),
            ("terminates on a lost node", "u1", &terminating, &lost, Alive),
            ("runs on a lost node", "u1", &running, &lost, Alive),
            ("without node and phase", "u1", &bare, &gone, Alive),
            ("known by name alone", "", &running, &ready, Alive),
            ("static", "u0", &mirror, &ready, Alive),
            ("has succeeded", "u1", &pod("u1", "Succeeded", "n1"), &ready, Ended),
            ("has failed", "u1", &pod("u1", "Failed", "n1"), &ready, Ended),
            ("deleted", "u1", &gone, &gone, Missing),
            ("deleted, known by name alone", "", &gone, &gone, Missing),
            ("static, replaced", "u9", &mirror, &ready, Missing),
            ("replaced by one of its name", "u0", &running, &ready, Missing),
            ("its node was deleted", "u1", &running, &gone, Ended),
            ("its node is out of service by taint", "u1", &running, &tainted, Ended),
            ("its node is out of service by label", "u1", &terminating, &labelled, Ended),
        ] {
            let pod: Option<HolderPod> = serde_json::from_value(pod.clone()).unwrap();
            let node: Option<HolderNode> = serde_json::from_value(node.clone()).unwrap();
            assert_eq!(pod_life(uid, pod.as_ref(), |_| Ok(node)).unwrap(), expected, "{what}");
        }
        // The node is not asked of a pod that has ended.
        let ended: HolderPod = serde_json::from_value(pod("u1", "Failed", "n1")).unwrap();
        let asked = |_: &str| -> Result<_> { panic!("of an ended pod") };
        assert_eq!(pod_life("u1", Some(&ended), asked).unwrap(), Ended);
    }
}
