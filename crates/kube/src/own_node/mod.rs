//! The node object of the machine that this runs on, and what a network remembers of it.
//!
//! The object is found by its name where that is known: as configured, `NODE_NAME`, or the host's name in
//! lower case, with one request. Where no node is called so, all are listed once for this machine's
//! machine-id or provider ID, and the name is remembered.

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

use crate::{Kube, Resource, Source, is_away};
use ipam_kit::cni::Environment;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use machine::Machine;
use memory::{Memory, Noted};
use settings::NodeName;

pub use settings::{Keys, Settings};

/// How to reach the API server, and by which name to look for the node.
#[derive(Debug)]
pub struct OwnNode {
    source: Source,
    name: Name,
    machine: Machine,
    unreached: ErrorCode,
    deadline: Deadline,
    memory: Option<Memory>,
}

/// A node object.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// All of it, or the parts that tell something.
    pub object: Value,
}

/// What a network asks of the node, and what it is content with.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The network.
    pub network: &'a str,
    /// What is asked for, in words that tell it from anything else a network may ask.
    pub what: &'a str,
    /// For how long an answer is believed.
    pub ttl: Duration,
}

/// What the node said, now or not long ago.
#[derive(Clone, Debug, PartialEq)]
pub struct Known<T> {
    /// The node's name.
    pub node: String,
    /// What was asked for.
    pub value: T,
    /// How long ago the API server said so, in words; `None` where it said so now.
    pub remembered: Option<String>,
}

/// How much of a node object is kept.
#[derive(Clone, Copy, Debug)]
enum Extent {
    Whole,
    Told,
}

/// The parts of a node object that tell something of it. The rest, images above all, is most of it, and
/// costs as much as all else that is done with an answer.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    metadata: ToldMetadata,
    spec: Value,
    status: Option<ToldStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldMetadata {
    annotations: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ToldStatus {
    node_info: Value,
}

impl Told {
    fn into_object(self) -> Value {
        json!({
            "metadata": {"annotations": self.metadata.annotations},
            "spec": self.spec,
            "status": {"nodeInfo": self.status.unwrap_or_default().node_info},
        })
    }
}

/// The name to look by.
#[derive(Clone, Debug)]
enum Name {
    /// Somebody has said it, at this place.
    Said { name: String, place: String },
    /// The host's own.
    Host(String),
}

/// The variable that names the node, as Kubernetes' downward API sets it in pods.
const VARIABLE: &str = "NODE_NAME";

/// How long the API server may take where an older answer would do.
const PATIENCE: Duration = Duration::from_secs(2);

/// For how long it is not asked again after it was away, where an older answer does.
const REST: Duration = Duration::from_secs(10);

impl OwnNode {
    /// Finds out whom to ask, and by which name; it asks nobody yet. `unreached` is the code of an error
    /// when the API server could not be asked for anything.
    ///
    /// # Errors
    /// There is no login to an API server; no node can have the name that is said.
    pub fn new(
        settings: Settings,
        environment: &Environment,
        unreached: ErrorCode,
        deadline: Deadline,
    ) -> Result<Self> {
        let Settings { kubeconfig, node_name, .. } = settings;
        let machine = Machine::this();
        let name = match (node_name, environment.text(VARIABLE)) {
            (Some(NodeName { name, path }), _) => Name::Said { name, place: path },
            (None, Some(name)) => Name::Said { name: name.to_owned(), place: VARIABLE.to_owned() },
            (None, None) => Name::Host(machine.host_name.to_lowercase()),
        };
        if let Name::Said { name, place } = &name {
            judge(name, place)?;
        }
        let source = Source::find(kubeconfig, environment)?;
        Ok(Self { source, name, machine, unreached, deadline, memory: None })
    }

    /// Remembers in the state folder what it learns.
    #[must_use]
    pub fn remembering(mut self, state: &Path) -> Self {
        self.memory = Some(Memory::below(state));
        self
    }

    /// Gives the API server up after two seconds: for a call that can do without an answer.
    #[must_use]
    pub fn briefly(mut self) -> Self {
        self.source = self.source.within(PATIENCE);
        self
    }

    /// Reads the node object.
    ///
    /// # Errors
    /// The API server is away or refuses, see [`ipam_kube`](crate); this machine is no node.
    pub fn read(&self) -> Result<Node> {
        self.find(&mut self.source.open(self.unreached, self.deadline)?, Extent::Whole)?
    }

    /// Reads the object of any node.
    ///
    /// # Errors
    /// The API server is away or refuses; there is no node of this name.
    pub fn read_other(&self, name: &str) -> Result<Node> {
        judge(name, "--node")?;
        let mut kube = self.source.open(self.unreached, self.deadline)?;
        let node = self.get(&mut kube, name, Extent::Whole)?;
        node.ok_or_else(|| search::absent(name, "--node", &self.source))
    }

    /// What a network wants to know of the node, as `pick` takes it out of the object's annotations, `spec`
    /// and `status.nodeInfo`: it is shown no more. An answer that is
    /// remembered is believed for [`Wish::ttl`]; an older one serves while the API server is away, with a
    /// warning, but not once the server has given an answer that is of no use.
    ///
    /// `pick` is to fail for what the object says, and for nothing else.
    ///
    /// # Errors
    /// As of [`OwnNode::read`], where nothing is remembered; those of `pick`.
    pub fn ask<T: Serialize + DeserializeOwned>(
        &self,
        wish: &Wish<'_>,
        pick: impl FnOnce(&Node) -> Result<T>,
    ) -> Result<Known<T>> {
        let question = self.question(wish);
        let noted = self.memory.as_ref().and_then(|memory| memory.network(wish.network));
        let noted = noted.filter(|noted| noted.question == question);
        let known = noted.as_ref().and_then(|noted| Some((noted, noted.known::<T>()?)));
        let Some((noted, known)) = known else {
            let mut kube = self.source.open(self.unreached, self.deadline)?;
            return self.ask_now(&mut kube, wish, &question, pick)?;
        };
        if noted.age() < wish.ttl {
            debug!("{} of node {}: as {:?} ago", wish.what, known.node, noted.age());
            return Ok(known);
        }
        let mut kube = self.source.clone().within(PATIENCE).open(self.unreached, self.deadline)?;
        // The login may be to another cluster by now.
        if noted.cluster != kube.cluster()? {
            return self.ask_now(&mut kube, wish, &question, pick)?;
        }
        if noted.failed_since().is_some_and(|since| since < REST) {
            warn_of_age(wish, noted, "it was away a moment ago");
            return Ok(known);
        }
        match self.ask_now(&mut kube, wish, &question, pick) {
            Err(error) if is_away(&error) => {
                warn_of_age(wish, noted, &error.in_full());
                self.note(wish, |noted| noted.fail());
                Ok(known)
            }
            Ok(Err(error)) => {
                self.note(wish, |noted| *noted = Noted::without(question));
                Err(error)
            }
            other => other?,
        }
    }

    /// Whether anything is remembered of a network, be it the answer to another question.
    pub fn remembers(&self, network: &str) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.network(network).is_some())
    }

    /// The inner error is what the API server's answer means.
    fn ask_now<T: Serialize>(
        &self,
        kube: &mut Kube,
        wish: &Wish<'_>,
        question: &str,
        pick: impl FnOnce(&Node) -> Result<T>,
    ) -> Result<Result<Known<T>>> {
        let picked = self
            .find(kube, Extent::Told)?
            .and_then(|node| Ok(Known { value: pick(&node)?, node: node.name, remembered: None }));
        if let Ok(known) = &picked {
            let cluster = kube.cluster()?;
            self.note(wish, |noted| *noted = Noted::now(question.to_owned(), cluster, known));
        }
        Ok(picked)
    }

    /// What tells a question from another one whose answer may differ.
    fn question(&self, wish: &Wish<'_>) -> String {
        let name = match &self.name {
            Name::Said { name, .. } => name,
            Name::Host(name) => name,
        };
        let (login, machine) = (self.source.identity(), self.machine.identity());
        [wish.what, " of ", name, " by ", &login, " on ", &machine].concat()
    }

    fn note(&self, wish: &Wish<'_>, change: impl FnOnce(&mut Noted)) {
        if let Some(memory) = &self.memory {
            memory.note_network(wish.network, change);
        }
    }

    fn get(&self, kube: &mut Kube, name: &str, extent: Extent) -> Result<Option<Node>> {
        let what = Resource::node(name);
        let object = match extent {
            Extent::Whole => kube.get::<Value>(&what)?,
            Extent::Told => kube.get::<Told>(&what)?.map(Told::into_object),
        };
        Ok(object.map(|object| Node { name: name.to_owned(), object }))
    }
}

/// What a network was told last, whatever its age and its source: for a call that may go on
/// without asking. `what` is that of the [`Wish`].
pub fn recall<T: DeserializeOwned>(state: &Path, network: &str, what: &str) -> Option<Known<T>> {
    let noted = Memory::below(state).network(network)?;
    noted.question.starts_with(&[what, " of "].concat()).then_some(())?;
    noted.known()
}

impl Node {
    /// The text at a JSON pointer (RFC 6901); nothing where it is empty.
    pub fn text(&self, pointer: &str) -> Option<&str> {
        self.object.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
    }

    /// An annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.object.pointer("/metadata/annotations")?.get(name)?.as_str()
    }
}

/// Fails for what no node can be called.
fn judge(name: &str, place: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::config(place, format_args!("{name:?} is no name of a node"))
        .advise("write it as kubectl get nodes shows it"))
}

/// Whether a node can have this name: others may mean something else in a path.
fn is_name(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.chars().all(|c| is_alphanumeric(c) || matches!(c, '-' | '.'))
}

fn warn_of_age(wish: &Wish<'_>, noted: &Noted, why: &str) {
    let (what, when) = (wish.what, noted.when());
    warn!("{what} as it was {when}, for the API server does not answer now: {why}");
}

/// The error about what a node object says at this place.
pub fn rejected(node: &str, place: &str, message: impl std::fmt::Display) -> Error {
    Error::config(format_args!("{place} of node {node}"), message)
}
