//! Node objects.

use serde_json::{Value, json};

use super::client::Client;

/// A node object that is to be made.
#[derive(Clone, Debug)]
pub struct Node {
    object: Value,
}

impl Node {
    pub fn named(name: &str) -> Self {
        let metadata = json!({"name": name});
        Self { object: json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}) }
    }

    /// `spec.podCIDRs`, and the first as `spec.podCIDR`: at most one of each family.
    pub fn cidrs(mut self, cidrs: &[&str]) -> Self {
        self.object["spec"]["podCIDRs"] = json!(cidrs);
        self.object["spec"]["podCIDR"] = json!(cidrs[0]);
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["labels"][key] = value.into();
        self
    }

    /// `status.nodeInfo.machineID`.
    pub fn machine_id(mut self, id: &str) -> Self {
        self.object["status"]["nodeInfo"]["machineID"] = id.into();
        self
    }

    /// `spec.providerID`.
    pub fn provider_id(mut self, id: &str) -> Self {
        self.object["spec"]["providerID"] = id.into();
        self
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    /// The object as it is sent.
    pub fn json(&self) -> &Value {
        &self.object
    }
}

impl Client {
    /// The node object of this name.
    #[track_caller]
    pub fn node(&self, name: &str) -> Option<Value> {
        self.get(&path(name))
    }

    /// Makes a node object, with its status.
    #[track_caller]
    pub fn create_node(&self, node: &Node) -> Value {
        self.create(node.json())
    }

    /// Puts a node object into the place of one of its name, under another uid. So its podCIDRs
    /// and its providerID may change, which no patch can do.
    #[track_caller]
    pub fn replace_node(&self, node: &Node) -> Value {
        self.delete_node(node.name());
        self.create_node(node)
    }

    /// Merges into a node object, but for its status.
    #[track_caller]
    pub fn patch_node(&self, name: &str, change: &Value) -> Value {
        self.patch(&path(name), change)
    }

    /// Sets or removes an annotation.
    #[track_caller]
    pub fn annotate_node(&self, name: &str, key: &str, value: Option<&str>) {
        self.patch_node(name, &json!({"metadata": {"annotations": {key: value}}}));
    }

    /// Sets `status.nodeInfo.machineID`.
    #[track_caller]
    pub fn set_machine_id(&self, name: &str, id: &str) {
        let change = json!({"status": {"nodeInfo": {"machineID": id}}});
        self.patch(&format!("{}/status", path(name)), &change);
    }

    #[track_caller]
    pub fn delete_node(&self, name: &str) {
        self.delete(&path(name));
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}
