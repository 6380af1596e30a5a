//! The node object of this machine, and the answers about it that a network remembers.
//!
//! One request finds the object by its name: the configured one, `NODE_NAME`, or the host's name in
//! lower case. If no node has that name, all nodes are listed once for this machine's machine-id or
//! provider ID, and the name is remembered.

mod machine;
mod memory;
mod search;
mod settings;

use std::path::Path;
use std::time::Duration;

use log::{debug, warn};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CredentialsSource, Kube, Resource, is_unreachable};
use ipam_kit::cni::Environment;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;
use machine::Machine;
use memory::{CachedAnswer, NodeMemory};
use settings::NodeName;

pub use settings::{NodeKeys, NodeSettings};

/// The credentials for the API server, and the name of the node.
#[derive(Debug)]
pub struct OwnNode {
    source: CredentialsSource,
    name: OwnName,
    machine: Machine,
    unreached: ErrorCode,
    deadline: Deadline,
    memory: Option<NodeMemory>,
}

/// A node object.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeObject {
    /// Its name.
    pub name: String,
    /// All of it, or the parts that tell something.
    pub object: Value,
}

/// A network's question about the node, and the longest age of an answer.
#[derive(Clone, Copy, Debug)]
pub struct NodeQuery<'a> {
    /// The network.
    pub network: &'a str,
    /// The value that is asked for, as logs show it. Two queries of a network that differ have different
    /// subjects.
    pub subject: &'a str,
    /// The time for which an answer is valid.
    pub ttl: Duration,
}

/// The answer to a [`NodeQuery`], from the API server or from memory.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeAnswer<T> {
    /// The node's name.
    pub node: String,
    /// The value that was asked for.
    pub value: T,
    /// The age of a remembered answer, in words; `None` for an answer of the API server.
    pub remembered: Option<String>,
}

/// How much of a node object is kept.
#[derive(Clone, Copy, Debug)]
enum Extent {
    Whole,
    Parts,
}

/// The parts of a node object that queries need. The rest, above all its images, is larger, and costs
/// as much as everything else that is done with an answer.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeParts {
    metadata: NodePartsMetadata,
    spec: Value,
    status: Option<NodePartsStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodePartsMetadata {
    annotations: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodePartsStatus {
    node_info: Value,
}

impl NodeParts {
    fn into_object(self) -> Value {
        json!({
            "metadata": {"annotations": self.metadata.annotations},
            "spec": self.spec,
            "status": {"nodeInfo": self.status.unwrap_or_default().node_info},
        })
    }
}

/// The name to look for.
#[derive(Clone, Debug)]
enum OwnName {
    /// A setting or variable gives it.
    Given { name: String, path: String },
    /// The host's own.
    Host(String),
}

/// The variable that names the node; a pod sets it by Kubernetes' downward API.
const VARIABLE: &str = "NODE_NAME";

/// How long the API server may take if an older answer is at hand.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long an unreachable API server is not asked again if an older answer is at hand.
const REST: Duration = Duration::from_secs(10);

impl OwnNode {
    /// Finds the credentials and the name; it sends no request. `unreached` is the code of an error
    /// if no request reached the API server.
    ///
    /// # Errors
    /// No credentials for an API server are found; the given name is not valid for a node.
    pub fn new(
        settings: NodeSettings,
        environment: &Environment,
        host: &Settings,
        unreached: ErrorCode,
        deadline: Deadline,
    ) -> Result<Self> {
        let NodeSettings { kubeconfig, node_name, .. } = settings;
        let machine = Machine::this();
        let name = match (node_name, environment.text(VARIABLE)) {
            (Some(NodeName { name, path }), _) => OwnName::Given { name, path },
            (None, Some(name)) => {
                OwnName::Given { name: name.to_owned(), path: VARIABLE.to_owned() }
            }
            (None, None) => OwnName::Host(machine.host_name.to_lowercase()),
        };
        if let OwnName::Given { name, path } = &name {
            require_node_name(name, path)?;
        }
        let source = CredentialsSource::find("ipam.kubeconfig", kubeconfig, environment, host)?;
        Ok(Self { source, name, machine, unreached, deadline, memory: None })
    }

    /// Keeps answers in the state folder.
    #[must_use]
    pub fn remembering(mut self, state: &Path) -> Self {
        self.memory = Some(NodeMemory::below(state));
        self
    }

    /// Waits two seconds at most for the API server: for a call that does not need an answer.
    #[must_use]
    pub fn briefly(mut self) -> Self {
        self.source = self.source.within(PATIENCE);
        self
    }

    /// Reads the node object.
    ///
    /// # Errors
    /// The API server is unreachable or refuses, see [`ipam_kube`](crate); this machine is not a node.
    pub fn read(&self) -> Result<NodeObject> {
        self.find(&mut self.source.open(self.unreached, self.deadline)?, Extent::Whole)?
    }

    /// Reads the object of any node.
    ///
    /// # Errors
    /// The API server is unreachable or refuses; no node has this name.
    pub fn read_other(&self, name: &str) -> Result<NodeObject> {
        require_node_name(name, "--node")?;
        let mut kube = self.source.open(self.unreached, self.deadline)?;
        let node = self.get(&mut kube, name, Extent::Whole)?;
        node.ok_or_else(|| search::absent(name, "--node", &self.source))
    }

    /// Answers a query by `pick`, which sees the object's annotations, `spec` and
    /// `status.nodeInfo`. A remembered answer is valid for [`NodeQuery::ttl`]. An older one serves
    /// with a warning while the API server is unreachable, but not after an answer of the server
    /// that `pick` failed for.
    ///
    /// `pick` must fail only because of the object's content.
    ///
    /// # Errors
    /// As of [`OwnNode::read`], if nothing is remembered; those of `pick`.
    pub fn ask<T: Serialize + DeserializeOwned>(
        &self,
        query: &NodeQuery<'_>,
        pick: impl FnOnce(&NodeObject) -> Result<T>,
    ) -> Result<NodeAnswer<T>> {
        let question = self.question(query);
        let cached = self.memory.as_ref().and_then(|memory| memory.network(query.network));
        let cached = cached.filter(|cached| cached.question == question);
        let known = cached.as_ref().and_then(|cached| Some((cached, cached.answer::<T>()?)));
        let Some((cached, answer)) = known else {
            let mut kube = self.source.open(self.unreached, self.deadline)?;
            return self.ask_server(&mut kube, query, &question, pick)?;
        };
        if cached.age() < query.ttl {
            debug!("{} of node {}: as {:?} ago", query.subject, answer.node, cached.age());
            return Ok(answer);
        }
        let mut kube = self.source.clone().within(PATIENCE).open(self.unreached, self.deadline)?;
        // The credentials may be for another cluster by now.
        if cached.cluster != kube.cluster()? {
            return self.ask_server(&mut kube, query, &question, pick)?;
        }
        if cached.failed_since().is_some_and(|since| since < REST) {
            warn_of_age(query, cached, "it was unreachable a moment ago");
            return Ok(answer);
        }
        match self.ask_server(&mut kube, query, &question, pick) {
            Err(error) if is_unreachable(&error) => {
                warn_of_age(query, cached, &error.in_full());
                self.change_cached(query, CachedAnswer::fail);
                Ok(answer)
            }
            Ok(Err(error)) => {
                self.change_cached(query, |cached| *cached = CachedAnswer::unusable(question));
                Err(error)
            }
            other => other?,
        }
    }

    /// Whether a network remembers any answer, also one to another query.
    pub fn remembers(&self, network: &str) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.network(network).is_some())
    }

    /// Asks the API server and remembers the answer. The inner error is of `pick`, or says that
    /// this machine is not a node.
    fn ask_server<T: Serialize>(
        &self,
        kube: &mut Kube,
        query: &NodeQuery<'_>,
        question: &str,
        pick: impl FnOnce(&NodeObject) -> Result<T>,
    ) -> Result<Result<NodeAnswer<T>>> {
        let node = match self.find(kube, Extent::Parts)? {
            Ok(node) => node,
            Err(error) => return Ok(Err(error)),
        };
        let value = match pick(&node) {
            Ok(value) => value,
            Err(error) => return Ok(Err(error)),
        };
        let answer = NodeAnswer { node: node.name, value, remembered: None };
        let cached = CachedAnswer::now(question.to_owned(), kube.cluster()?, &answer);
        self.change_cached(query, |old| *old = cached);
        Ok(Ok(answer))
    }

    /// The key of an answer in memory: queries whose answers may differ have different keys.
    fn question(&self, query: &NodeQuery<'_>) -> String {
        let (OwnName::Given { name, .. } | OwnName::Host(name)) = &self.name;
        let credentials = self.source.identity();
        let machine = self.machine.identity();
        format!("{} of {name} by {credentials} on {machine}", query.subject)
    }

    fn change_cached(&self, query: &NodeQuery<'_>, change: impl FnOnce(&mut CachedAnswer)) {
        if let Some(memory) = &self.memory {
            memory.change_network(query.network, change);
        }
    }

    fn get(&self, kube: &mut Kube, name: &str, extent: Extent) -> Result<Option<NodeObject>> {
        let what = Resource::node(name);
        let object = match extent {
            Extent::Whole => kube.get::<Value>(&what)?,
            Extent::Parts => kube.get::<NodeParts>(&what)?.map(NodeParts::into_object),
        };
        Ok(object.map(|object| NodeObject { name: name.to_owned(), object }))
    }
}

/// The last answer of a network, of any age and source: for a call that may continue without asking.
/// `subject` is [`NodeQuery::subject`].
pub fn recall<T: DeserializeOwned>(
    state: &Path,
    network: &str,
    subject: &str,
) -> Option<NodeAnswer<T>> {
    let cached = NodeMemory::below(state).network(network)?;
    cached.question.starts_with(&format!("{subject} of ")).then(|| cached.answer())?
}

impl NodeObject {
    /// The string at a JSON pointer (RFC 6901); `None` for an empty one.
    pub fn string(&self, pointer: &str) -> Option<&str> {
        self.object.pointer(pointer)?.as_str().filter(|string| !string.is_empty())
    }

    /// An annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.object.pointer("/metadata/annotations")?.get(name)?.as_str()
    }
}

/// Fails for a name that no node can have.
fn require_node_name(name: &str, path: &str) -> Result<()> {
    if is_node_name(name) {
        return Ok(());
    }
    Err(Error::config(path, format_args!("invalid node name {name:?}"))
        .advise("expected a name that kubectl get nodes shows"))
}

/// Whether a node can have this name. Any other may have a meaning of its own in a path.
fn is_node_name(name: &str) -> bool {
    name.starts_with(is_alphanumeric)
        && name.ends_with(is_alphanumeric)
        && name.chars().all(|c| is_alphanumeric(c) || matches!(c, '-' | '.'))
}

fn is_alphanumeric(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn warn_of_age(query: &NodeQuery<'_>, cached: &CachedAnswer, why: &str) {
    let subject = query.subject;
    let when = cached.when();
    warn!("{subject}: the API server does not answer, using the value read {when}: {why}");
}

/// The error about a part of a node object, named by `path`.
pub fn rejected(node: &str, path: &str, message: impl std::fmt::Display) -> Error {
    Error::config(format_args!("{path} of node {node}"), message)
}
