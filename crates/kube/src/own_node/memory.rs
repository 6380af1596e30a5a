use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::debug;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::NodeAnswer;
use ipam_kit::host::StateFile;

/// The memory of the cluster: files in the state folder, any of which may be deleted at any time.
#[derive(Debug)]
pub(super) struct NodeMemory {
    folder: PathBuf,
}

/// The last answer that a network got.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CachedAnswer {
    /// The query that it answers.
    pub question: String,
    /// The cluster that answered.
    pub cluster: String,
    node: String,
    value: Value,
    /// When the API server answered, in milliseconds since 1970.
    read: u64,
    /// When the API server was found unreachable since then.
    failed: Option<u64>,
}

/// The node that this machine was found to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FoundNode {
    /// The identity of the credentials' source.
    pub cluster: String,
    /// The identity of the machine, which a clone does not share.
    pub machine: String,
    pub node: String,
}

impl NodeMemory {
    pub(super) fn below(state: &Path) -> Self {
        Self { folder: state.join("kubernetes") }
    }

    /// The last answer of a network.
    pub(super) fn network(&self, network: &str) -> Option<CachedAnswer> {
        let cached: CachedAnswer = self.network_file(network).read();
        (!cached.question.is_empty()).then_some(cached)
    }

    pub(super) fn change_network(&self, network: &str, change: impl FnOnce(&mut CachedAnswer)) {
        change_or_log(&self.network_file(network), change);
    }

    pub(super) fn found(&self) -> FoundNode {
        self.node_file().read()
    }

    pub(super) fn set_found(&self, found: FoundNode) {
        change_or_log(&self.node_file(), |old| *old = found);
    }

    fn network_file(&self, network: &str) -> StateFile {
        StateFile::at(self.folder.join("networks").join(network))
    }

    fn node_file(&self) -> StateFile {
        StateFile::at(self.folder.join("node"))
    }
}

impl CachedAnswer {
    pub(super) fn now<T: Serialize>(
        question: String,
        cluster: String,
        answer: &NodeAnswer<T>,
    ) -> Self {
        Self {
            question,
            cluster,
            node: answer.node.clone(),
            value: serde_json::to_value(&answer.value).unwrap_or_default(),
            read: now(),
            failed: None,
        }
    }

    /// An answer that cannot be used: nothing is known, and no older answer counts.
    pub(super) fn unusable(question: String) -> Self {
        Self { question, ..Self::default() }
    }

    /// The answer, if its value has this type.
    pub(super) fn answer<T: DeserializeOwned>(&self) -> Option<NodeAnswer<T>> {
        let value = T::deserialize(&self.value).ok()?;
        Some(NodeAnswer { node: self.node.clone(), value, remembered: Some(self.when()) })
    }

    /// The age, in words.
    pub(super) fn when(&self) -> String {
        match self.since() {
            Some(since) if since.as_secs() > 0 => format!("{}s ago", since.as_secs()),
            Some(since) => format!("{since:?} ago"),
            None => "at an unknown time (the clock was set back)".to_owned(),
        }
    }

    /// The age; very long if the clock was set back since.
    pub(super) fn age(&self) -> Duration {
        self.since().unwrap_or(Duration::from_secs(u32::MAX.into()))
    }

    /// The age; `None` if the clock was set back since.
    fn since(&self) -> Option<Duration> {
        since(self.read)
    }

    pub(super) fn fail(&mut self) {
        self.failed = Some(now());
    }

    /// How long ago the API server was found unreachable.
    pub(super) fn failed_since(&self) -> Option<Duration> {
        self.failed.and_then(since)
    }
}

fn change_or_log<T: Default + Serialize + DeserializeOwned>(
    file: &StateFile,
    change: impl FnOnce(&mut T),
) {
    if let Err(error) = file.change(change) {
        debug!("{} cannot be written: {error}", file.path().display());
    }
}

fn since(time: u64) -> Option<Duration> {
    now().checked_sub(time).map(Duration::from_millis)
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_told_apart_and_a_clock_set_back_makes_old() {
        let state = tempfile::tempdir().unwrap();
        let memory = NodeMemory::below(state.path());
        assert!(memory.network("a").is_none());
        let value = vec!["10.0.0.0/24".to_owned()];
        let known = NodeAnswer { node: "n".to_owned(), value, remembered: None };
        memory.change_network("a", |old| {
            *old = CachedAnswer::now("q".to_owned(), "s".to_owned(), &known)
        });
        let cached = memory.network("a").unwrap();
        let answer = cached.answer::<Vec<String>>().unwrap();
        assert!(
            answer.remembered.as_ref().is_some_and(|when| when.ends_with("s ago")),
            "{answer:?}"
        );
        assert_eq!((answer.node, answer.value), (known.node.clone(), known.value.clone()));
        assert_eq!(cached.answer::<bool>(), None);
        assert!(cached.age() < Duration::from_secs(60) && cached.failed_since().is_none());
        assert!(memory.network("b").is_none());
        memory.change_network("a", CachedAnswer::fail);
        assert!(memory.network("a").unwrap().failed_since().is_some());
        let later = CachedAnswer { read: now() + 60_000, ..cached };
        assert!(later.age() > Duration::from_secs(1_000_000));
    }
}
