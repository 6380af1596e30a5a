use std::fmt;
use std::ops::ControlFlow;

use log::{debug, info, warn};
use serde::Deserialize;

use super::memory::Found;
use super::{Extent, Name, Node, OwnNode, VARIABLE, is_name};
use crate::{Kube, List, Resource, Source, is_away};
use ipam_kit::error::{Error, ErrorCode, Result};

/// As much of a node as tells whose it is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "providerID")]
    provider_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    node_info: NodeInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeInfo {
    #[serde(rename = "machineID")]
    machine_id: String,
}

/// How many names an error tells.
const SHOWN: usize = 5;

impl OwnNode {
    /// Reads this machine's node: by its name if that is known, else out of the list of all. The inner
    /// error is what the API server's answer means: this machine is no node.
    pub(super) fn find(&self, kube: &mut Kube, extent: Extent) -> Result<Result<Node>> {
        let host = match &self.name {
            Name::Said { name, place } => {
                debug!("this is node {name}, as {place} says");
                let node = self.get(kube, name, extent)?;
                return Ok(node.ok_or_else(|| absent(name, place, &self.source)));
            }
            Name::Host(host) => host,
        };
        if let Some(node) = self.remembered(kube, extent)? {
            return Ok(Ok(node));
        }
        let named = if is_name(host) { self.get(kube, host, extent)? } else { None };
        let named = match named {
            Some(node) if self.is_other(&node) => {
                let id = node.text("/status/nodeInfo/machineID").unwrap_or_default();
                warn!("node {host} has this host's name, but another machine-id ({id})");
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
                // Programs in containers see another machine-id now and then.
                (Ok(None), Some(node)) => {
                    return Ok(Ok(Self::nevertheless(node, "no node has this machine-id")));
                }
                (Ok(None), None) => return Ok(Err(self.unknown())),
            },
            (Err(error), _) if is_away(&error) => return Err(error),
            (Err(error), Some(node)) => {
                return Ok(Ok(Self::nevertheless(node, &error.in_full())));
            }
            (Err(error), None) => {
                return Err(error
                    .within(format_args!(
                        "no node is called {host:?}, and looking for this machine"
                    ))
                    .advise(SAY));
            }
        };
        info!("this is node {name}, by its {how}");
        let node = self.get(kube, &name, extent)?;
        if node.is_some() {
            self.note_found(&name);
        }
        Ok(node.ok_or_else(|| absent(&name, how, &self.source)))
    }

    /// Takes the node that has the host's name, though it has another machine-id. That is not remembered:
    /// this machine's own node may still come.
    fn nevertheless(node: Node, why: &str) -> Node {
        warn!("this is node {} nevertheless: {why}", node.name);
        node
    }

    fn note_found(&self, name: &str) {
        if let Some(memory) = &self.memory {
            memory.note_found(Found {
                cluster: self.source.identity(),
                machine: self.machine.identity(),
                node: name.to_owned(),
            });
        }
    }

    /// The node that this machine was found to be, if it still is.
    fn remembered(&self, kube: &mut Kube, extent: Extent) -> Result<Option<Node>> {
        let Some(memory) = &self.memory else { return Ok(None) };
        let Found { cluster, machine, node } = memory.found();
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

    /// Whether a node is certainly another machine.
    fn is_other(&self, node: &Node) -> bool {
        let id = node.text("/status/nodeInfo/machineID").unwrap_or_default();
        self.machine.has_id(id) == Some(false)
    }

    /// The nodes of all that have this machine's machine-id or provider ID.
    fn listed(&self, kube: &mut Kube) -> Result<Alike> {
        let mut alike = Alike::default();
        kube.list(&List::all(Resource::nodes()), &mut |node: Listed| {
            let name = node.metadata.name;
            if self.machine.has_id(&node.status.node_info.machine_id) == Some(true) {
                alike.by_id.push(name);
            } else if self.machine.is_instance(&node.spec.provider_id) {
                alike.by_instance.push(name);
            }
            ControlFlow::Continue(())
        })?;
        Ok(alike)
    }

    fn unknown(&self) -> Error {
        let ids = self.machine.ids.join(" ");
        let message = format!(
            "this machine is no node of the cluster of {}: none is called {:?}, or has the machine-id {ids:?} or the provider ID of this machine",
            self.source, self.machine.host_name,
        );
        Error::new(ErrorCode::BACKEND, message).advise(SAY)
    }
}

/// Names of nodes that are like this machine.
#[derive(Default)]
struct Alike {
    by_id: Vec<String>,
    by_instance: Vec<String>,
}

impl Alike {
    /// The one that has the machine-id, else the provider ID, and which of both it is.
    fn only(self) -> Result<Option<(String, &'static str)>> {
        for (mut names, how) in [(self.by_id, "machine-id"), (self.by_instance, "provider ID")] {
            // A list that began anew shows some once more.
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

/// What to do where the name cannot be found out.
const SAY: &str = "name the node by nodeName in the configuration, or in the variable NODE_NAME";

fn ambiguous(names: &[String], how: &str) -> Error {
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let message = format!("{} nodes have the {how} of this machine: {shown}", names.len());
    Error::new(ErrorCode::BACKEND, message)
        .advise(
            "machines that were cloned need machine-ids of their own (systemd-machine-id-setup)",
        )
        .advise(SAY)
}

/// There is no node of this name.
pub(super) fn absent(name: &str, place: impl fmt::Display, source: &Source) -> Error {
    let message = format!("there is no node {name} in the cluster of {source} ({place} names it)");
    Error::new(ErrorCode::BACKEND, message)
        .advise(format!("see kubectl get nodes; {VARIABLE} or nodeName must be a node's name"))
}
