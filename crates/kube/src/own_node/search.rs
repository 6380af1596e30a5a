use std::fmt;
use std::ops::ControlFlow;

use log::{debug, info, warn};
use serde::Deserialize;

use super::memory::FoundNode;
use super::{Extent, NodeObject, OwnName, OwnNode, VARIABLE, is_node_name};
use crate::{CredentialsSource, Kube, List, Resource, is_unreachable};
use ipam_kit::error::{Error, ErrorCode, Result};

/// The parts of a node that identify its machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListedNode {
    metadata: ListedMetadata,
    spec: ListedSpec,
    status: ListedStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListedMetadata {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListedSpec {
    #[serde(rename = "providerID")]
    provider_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListedStatus {
    node_info: ListedInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListedInfo {
    #[serde(rename = "machineID")]
    machine_id: String,
}

/// How many names an error shows.
const SHOWN: usize = 5;

impl OwnNode {
    /// Reads this machine's node: by its name if that is known, else from the list of all nodes. The
    /// inner error says that this machine is not a node.
    pub(super) fn find(&self, kube: &mut Kube, extent: Extent) -> Result<Result<NodeObject>> {
        let host = match &self.name {
            OwnName::Given { name, path } => {
                debug!("this is node {name}, as {path} says");
                let node = self.get(kube, name, extent)?;
                return Ok(node.ok_or_else(|| absent(name, path, &self.source)));
            }
            OwnName::Host(host) => host,
        };
        if let Some(node) = self.remembered(kube, extent)? {
            return Ok(Ok(node));
        }
        let named = if is_node_name(host) { self.get(kube, host, extent)? } else { None };
        let named = match named {
            Some(node) if self.is_other(&node) => {
                let id = node.string("/status/nodeInfo/machineID").unwrap_or_default();
                warn!(
                    "node {host} has this host's name, but the machine-id {id} of another machine"
                );
                Some(node)
            }
            Some(node) => {
                debug!("this is node {host}, by the host's name");
                return Ok(Ok(node));
            }
            None => None,
        };
        let (name, how) = match (self.listed(kube), named) {
            (Ok(listed), named) => match (listed.only(), named) {
                (Ok(Some(found)), _) => found,
                (Err(ambiguous), _) => return Ok(Err(ambiguous)),
                // A program in a container may see another machine-id.
                (Ok(None), Some(node)) => {
                    return Ok(Ok(Self::accept_despite(node, "no node has this machine-id")));
                }
                (Ok(None), None) => return Ok(Err(self.unknown())),
            },
            (Err(error), _) if is_unreachable(&error) => return Err(error),
            (Err(error), Some(node)) => {
                return Ok(Ok(Self::accept_despite(node, &error.in_full())));
            }
            (Err(error), None) => {
                return Err(error
                    .within(format_args!(
                        "node {host:?} not found, and the search for this machine failed"
                    ))
                    .advise(ADVICE));
            }
        };
        info!("this is node {name}, by its {how}");
        let node = self.get(kube, &name, extent)?;
        if node.is_some() {
            self.remember_node(&name);
        }
        Ok(node.ok_or_else(|| absent(&name, how, &self.source)))
    }

    /// Accepts the node with the host's name despite its other machine-id. It is not remembered:
    /// this machine's own node may still be created.
    fn accept_despite(node: NodeObject, why: &str) -> NodeObject {
        warn!("this is node {}, despite its machine-id: {why}", node.name);
        node
    }

    fn remember_node(&self, name: &str) {
        if let Some(memory) = &self.memory {
            memory.set_found(FoundNode {
                cluster: self.source.identity(),
                machine: self.machine.identity(),
                node: name.to_owned(),
            });
        }
    }

    /// The remembered node, if it is still this machine's.
    fn remembered(&self, kube: &mut Kube, extent: Extent) -> Result<Option<NodeObject>> {
        let Some(memory) = &self.memory else { return Ok(None) };
        let FoundNode { cluster, machine, node } = memory.found();
        let is_here = cluster == self.source.identity() && machine == self.machine.identity();
        if !is_here || node.is_empty() {
            return Ok(None);
        }
        let found = self.get(kube, &node, extent)?;
        let found = found.filter(|found| !self.is_other(found));
        if found.is_some() {
            debug!("this is node {node}, as found earlier");
        }
        Ok(found)
    }

    /// Whether a node is certainly another machine's.
    fn is_other(&self, node: &NodeObject) -> bool {
        let id = node.string("/status/nodeInfo/machineID").unwrap_or_default();
        self.machine.has_id(id) == Some(false)
    }

    /// All nodes with this machine's machine-id or provider ID.
    fn listed(&self, kube: &mut Kube) -> Result<MatchingNodes> {
        let mut matching = MatchingNodes::default();
        kube.list(&List::all(Resource::nodes()), &mut |node: ListedNode| {
            let name = node.metadata.name;
            if self.machine.has_id(&node.status.node_info.machine_id) == Some(true) {
                matching.by_id.push(name);
            } else if self.machine.is_instance(&node.spec.provider_id) {
                matching.by_instance.push(name);
            }
            ControlFlow::Continue(())
        })?;
        Ok(matching)
    }

    fn unknown(&self) -> Error {
        let ids = self.machine.ids.join(" ");
        let message = format!(
            "this machine is not a node of the cluster of {}: no node has the name {:?}, the machine-id {ids:?} or this machine's provider ID",
            self.source, self.machine.host_name,
        );
        Error::new(ErrorCode::BACKEND, message).advise(ADVICE)
    }
}

/// Names of the nodes that may be this machine.
#[derive(Default)]
struct MatchingNodes {
    by_id: Vec<String>,
    by_instance: Vec<String>,
}

impl MatchingNodes {
    /// The one node with the machine-id, else with the provider ID, and which of both it has.
    fn only(self) -> Result<Option<(String, &'static str)>> {
        for (mut names, how) in [(self.by_id, "machine-id"), (self.by_instance, "provider ID")] {
            // A list that began anew shows some nodes twice.
            names.sort_unstable();
            names.dedup();
            match names.len() {
                0 => {}
                1 => return Ok(names.pop().map(|name| (name, how))),
                _ => return Err(ambiguous(&names, how)),
            }
        }
        Ok(None)
    }
}

/// Advice if the name cannot be found.
const ADVICE: &str = "set nodeName in the configuration, or the variable NODE_NAME";

fn ambiguous(names: &[String], how: &str) -> Error {
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let message = format!("{} nodes have the {how} of this machine: {shown}", names.len());
    Error::new(ErrorCode::BACKEND, message)
        .advise("give each cloned machine a machine-id of its own (systemd-machine-id-setup)")
        .advise(ADVICE)
}

/// The error that no node has this name.
pub(super) fn absent(name: &str, path: impl fmt::Display, source: &CredentialsSource) -> Error {
    let message = format!("node {name} not found in the cluster of {source} ({path} names it)");
    Error::new(ErrorCode::BACKEND, message)
        .advise(format!("set {VARIABLE} or nodeName to a name that kubectl get nodes shows"))
}
