use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::debug;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Known;
use ipam_kit::host::StateFile;

/// What this machine remembers of the cluster: files in the state folder, all of which may go.
#[derive(Debug)]
pub(super) struct Memory {
    folder: PathBuf,
}

/// What a network was told last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    /// What was asked.
    pub question: String,
    /// The cluster that it was asked of.
    pub cluster: String,
    node: String,
    value: Value,
    /// When it was told, in milliseconds since 1970.
    read: u64,
    /// When the API server was found to be away since.
    failed: Option<u64>,
}

/// Which node this machine was found to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    /// The cluster, as its login tells it from others.
    pub cluster: String,
    /// The machine, so that a clone does not take itself for its original.
    pub machine: String,
    pub node: String,
}

impl Memory {
    pub(super) fn below(state: &Path) -> Self {
        Self { folder: state.join("kubernetes") }
    }

    /// What a network was told.
    pub(super) fn network(&self, network: &str) -> Option<Noted> {
        let noted: Noted = self.of_network(network).read();
        (!noted.question.is_empty()).then_some(noted)
    }

    pub(super) fn note_network(&self, network: &str, change: impl FnOnce(&mut Noted)) {
        logged(&self.of_network(network), change);
    }

    pub(super) fn found(&self) -> Found {
        self.of_node().read()
    }

    pub(super) fn note_found(&self, found: Found) {
        logged(&self.of_node(), |noted| *noted = found);
    }

    fn of_network(&self, network: &str) -> StateFile {
        StateFile::at(self.folder.join("networks").join(network))
    }

    fn of_node(&self) -> StateFile {
        StateFile::at(self.folder.join("node"))
    }
}

impl Noted {
    pub(super) fn now<T: Serialize>(question: String, cluster: String, known: &Known<T>) -> Self {
        Self {
            question,
            cluster,
            node: known.node.clone(),
            value: serde_json::to_value(&known.value).unwrap_or_default(),
            read: now(),
            failed: None,
        }
    }

    /// That the answer to a question is of no use: nothing is known, and nothing older counts.
    pub(super) fn without(question: String) -> Self {
        Self { question, ..Self::default() }
    }

    /// The answer, if it is one of this kind.
    pub(super) fn known<T: DeserializeOwned>(&self) -> Option<Known<T>> {
        let value = T::deserialize(&self.value).ok()?;
        Some(Known { node: self.node.clone(), value, remembered: Some(self.when()) })
    }

    /// How long ago it was told, in words.
    pub(super) fn when(&self) -> String {
        match self.since() {
            Some(since) => format!("{since:?} ago"),
            None => "before the clock was set back".to_owned(),
        }
    }

    /// How long ago it was told; very long, where the clock has been set back since.
    pub(super) fn age(&self) -> Duration {
        self.since().unwrap_or(Duration::from_secs(u32::MAX.into()))
    }

    /// The same; nothing where the clock has been set back since.
    fn since(&self) -> Option<Duration> {
        since(self.read)
    }

    pub(super) fn fail(&mut self) {
        self.failed = Some(now());
    }

    /// How long ago the API server was found to be away.
    pub(super) fn failed_since(&self) -> Option<Duration> {
        self.failed.and_then(since)
    }
}

fn logged<T: Default + Serialize + DeserializeOwned>(
    note: &StateFile,
    change: impl FnOnce(&mut T),
) {
    if let Err(error) = note.change(change) {
        debug!("{} cannot be written: {error}", note.path().display());
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
        let memory = Memory::below(state.path());
        assert!(memory.network("a").is_none());
        let value = vec!["10.0.0.0/24".to_owned()];
        let known = Known { node: "n".to_owned(), value, remembered: None };
        memory
            .note_network("a", |noted| *noted = Noted::now("q".to_owned(), "s".to_owned(), &known));
        let noted = memory.network("a").unwrap();
        let told = noted.known::<Vec<String>>().unwrap();
        assert!(told.remembered.as_ref().is_some_and(|when| when.ends_with("s ago")), "{told:?}");
        assert_eq!((told.node, told.value), (known.node.clone(), known.value.clone()));
        assert_eq!(noted.known::<bool>(), None);
        assert!(noted.age() < Duration::from_secs(60) && noted.failed_since().is_none());
        assert!(memory.network("b").is_none());
        memory.note_network("a", Noted::fail);
        assert!(memory.network("a").unwrap().failed_since().is_some());
        let later = Noted { read: now() + 60_000, ..noted };
        assert!(later.age() > Duration::from_secs(1_000_000));
    }
}
