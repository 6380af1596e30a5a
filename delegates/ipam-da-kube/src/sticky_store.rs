//! The objects of sticky names, and what tells whether their holders are alive: one request for each
//! function.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kube::{ApiChange, List, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::objects::{VERSION, WrittenObject};
use crate::patch::Patch;
use crate::sticky_holder::{HolderNode, HolderPod};
use crate::sticky_lease::{
    STICKY_GROUP, STICKY_KIND, STICKY_LEASES, StickyLease, StickyMark, StickySpec,
};
use crate::store::{ObjectStore, Outcome, change, explain, sticky_resource};

impl ObjectStore {
    /// Reads a StickyLease; `None` if it does not exist.
    ///
    /// # Errors
    /// The server does not answer, refuses, or answers something else. So everywhere here.
    pub(crate) fn read_sticky(&mut self, name: &str) -> Result<Option<StickyLease>> {
        let resource = sticky_resource(&self.namespace, Some(name));
        self.kube.get(&resource).map_err(explain(STICKY_LEASES))
    }

    /// Shows each StickyLease with these labels. If the list is interrupted, one is shown again.
    pub(crate) fn list_sticky(
        &mut self,
        labels: &str,
        each: &mut dyn FnMut(StickyLease),
    ) -> Result<()> {
        let resource = sticky_resource(&self.namespace, None);
        let list = List { labels, page: 500, ..List::all(resource) };
        let mut each = |lease| {
            each(lease);
            ControlFlow::Continue(())
        };
        self.kube.list(&list, &mut each).map_err(explain(STICKY_LEASES))
    }

    /// Makes a StickyLease, which exists once.
    pub(crate) fn create_sticky(
        &mut self,
        name: &str,
        labels: &BTreeMap<String, String>,
        spec: &StickySpec,
    ) -> Result<Outcome<StickyLease>> {
        let object = json!({
            "apiVersion": format!("{STICKY_GROUP}/{VERSION}"),
            "kind": STICKY_KIND,
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "spec": spec,
        });
        let object = object.to_string();
        let resource = sticky_resource(&self.namespace, None);
        change(&mut self.kube, &ApiChange::post(resource, &object))
    }

    /// Changes a StickyLease.
    pub(crate) fn patch_sticky(
        &mut self,
        name: &str,
        patch: &Patch,
    ) -> Result<Outcome<StickyLease>> {
        let (body, resource) = (patch.to_bytes(), sticky_resource(&self.namespace, Some(name)));
        change(&mut self.kube, &ApiChange::patch(resource, &body))
    }

    /// Deletes a StickyLease that is in a certain state. The answer has the object if finalizers keep
    /// it.
    pub(crate) fn delete_sticky(&mut self, seen: &StickyMark) -> Result<Outcome<WrittenObject>> {
        let StickyMark { object, uid, version, .. } = seen;
        let preconditions = json!({"uid": uid, "resourceVersion": version});
        let body = json!({"preconditions": preconditions}).to_string();
        let resource = sticky_resource(&self.namespace, Some(object));
        change(&mut self.kube, &ApiChange::delete(resource, &body))
    }

    /// Reads a pod; `None` if it does not exist.
    pub(crate) fn read_pod(&mut self, namespace: &str, name: &str) -> Result<Option<HolderPod>> {
        self.read_core(&Resource { namespace: Some(namespace), ..core("pods", name) })
    }

    /// Reads a node; `None` if it does not exist.
    pub(crate) fn read_node(&mut self, name: &str) -> Result<Option<HolderNode>> {
        self.read_core(&core("nodes", name))
    }

    pub(crate) fn read_core<T: DeserializeOwned>(
        &mut self,
        resource: &Resource<'_>,
    ) -> Result<Option<T>> {
        self.kube.get(resource).map_err(explain(resource.plural))
    }
}

/// An object of the core of Kubernetes.
fn core<'a>(plural: &'a str, name: &'a str) -> Resource<'a> {
    Resource { group: "", version: "v1", plural, namespace: None, name: Some(name) }
}
