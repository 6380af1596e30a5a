use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use log::warn;
use serde::{Deserialize, Serialize};

use super::state::{make_private_folder, write_new};
use super::{Settings, StateDir};
use crate::error::{Error, ErrorCode, Result};

/// Which node this is: part of what owns a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    id: String,
}

/// The file `node` of the state folder.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    uuid: String,
    machine_id: String,
}

impl Node {
    /// A random UUID, or the name that the host-wide settings give.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn establish(state: &StateDir, settings: &Settings) -> Result<Self> {
        if let Some(name) = &settings.node {
            return Ok(Self { id: name.clone() });
        }
        let machine_id = read_machine_id(Path::new("/etc/machine-id"));
        let path = state.root().join("node");
        let failed = |error: io::Error| {
            let advice = match error.kind() {
                ErrorKind::InvalidData => "remove the file: the next ADD makes a new identity",
                _ => "the state folder must be writable by root",
            };
            Error::io(format!("cannot establish the node's identity in {}", path.display()), error)
                .advise(advice)
        };
        let identity = Identity::read_or_make(state, &path, &machine_id).map_err(failed)?;
        // Without a machine-id nothing can be compared.
        if machine_id.is_empty() || identity.machine_id == machine_id {
            return Ok(Self { id: identity.uuid });
        }
        // The records here are another machine's: nothing may act on them.
        let foreign = |error| failed(error).with_code(ErrorCode::RECORD);
        let identity = replace_clone(state, &path, &machine_id).map_err(foreign)?;
        Ok(Self { id: identity.uuid })
    }
}

impl Identity {
    fn read_or_make(state: &StateDir, path: &Path, machine_id: &str) -> io::Result<Self> {
        match Self::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
        make_private_folder(state.root())?;
        let identity = Self::new(machine_id)?;
        let new = identity.write_beside(path)?;
        // A link fails where another first ADD was quicker; both then read the same.
        let linked = fs::hard_link(&new, path);
        fs::remove_file(&new)?;
        match linked {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Self::read(path),
        }
    }

    fn new(machine_id: &str) -> io::Result<Self> {
        Ok(Self { uuid: random_uuid()?, machine_id: machine_id.to_owned() })
    }

    fn read(path: &Path) -> io::Result<Self> {
        let identity: Self = serde_json::from_slice(&fs::read(path)?)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let plain = |c: char| c.is_ascii_hexdigit() || c == '-';
        if identity.uuid.is_empty() || !identity.uuid.chars().all(plain) {
            return Err(io::Error::new(ErrorKind::InvalidData, "its uuid is none"));
        }
        Ok(identity)
    }

    /// Writes a file of a name of its own in the same folder.
    fn write_beside(&self, path: &Path) -> io::Result<std::path::PathBuf> {
        let new = path.with_file_name(format!("node.{}", random_uuid()?));
        write_new(&new, serde_json::to_string(self)?.as_bytes())?;
        // Written once in a node's life: an empty file after a power loss would stop every ADD.
        fs::File::open(&new)?.sync_all()?;
        Ok(new)
    }
}

/// Gives a cloned machine an identity of its own.
///
/// The attachments step aside before the new identity stands, so that a kill in between repeats
/// the step instead of adopting the original's records.
fn replace_clone(state: &StateDir, path: &Path, machine_id: &str) -> io::Result<Identity> {
    let guard = fs::File::open(state.root())?;
    guard.lock()?;
    let old = Identity::read(path)?;
    if old.machine_id == machine_id {
        return Ok(old);
    }
    let aside = state.root().join(format!("attachments.{}", old.uuid));
    warn!(
        "the state folder {} came from another machine (node {}): this node gets a new identity; the records of \
         the other are kept in {} and never acted on",
        state.root().display(),
        old.uuid,
        aside.display(),
    );
    for folder in [
        (state.attachments(), aside),
        (state.unsure(), state.root().join(format!("unsure.{}", old.uuid))),
    ] {
        match fs::rename(&folder.0, &folder.1) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let identity = Identity::new(machine_id)?;
    fs::rename(identity.write_beside(path)?, path)?;
    Ok(identity)
}

/// The machine-id; empty where there is none, or none yet.
fn read_machine_id(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text = text.trim();
    if text == "uninitialized" { String::new() } else { text.to_owned() }
}

fn random_uuid() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn state(temp: &TempDir) -> (StateDir, Settings) {
        let settings = Settings { state_dir: temp.path().join("state"), ..Settings::default() };
        (StateDir::of_host(&settings), settings)
    }

    #[test]
    fn two_first_calls_at_once_agree() {
        let temp = TempDir::new().unwrap();
        let (state, settings) = state(&temp);
        let ids: Vec<_> = std::thread::scope(|scope| {
            let make = || state.node(&settings).unwrap().id().to_owned();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(fs::read_dir(state.root()).unwrap().count(), 1);
    }

    #[test]
    fn a_clone_gets_an_identity_of_its_own_and_leaves_the_records() {
        let temp = TempDir::new().unwrap();
        let (state, _) = state(&temp);
        let path = state.root().join("node");
        let original = Identity::read_or_make(&state, &path, "machine-a").unwrap();
        make_private_folder(&state.attachments().join("net")).unwrap();
        let clone = replace_clone(&state, &path, "machine-b").unwrap();
        assert_ne!(original.uuid, clone.uuid);
        assert!(!state.attachments().exists());
        assert!(state.root().join(format!("attachments.{}/net", original.uuid)).exists());
        assert_eq!(replace_clone(&state, &path, "machine-b").unwrap().uuid, clone.uuid);
    }

    #[test]
    fn the_settings_name_wins() {
        let temp = TempDir::new().unwrap();
        let (state, mut settings) = state(&temp);
        settings.node = Some("rack1-7".to_owned());
        assert_eq!(state.node(&settings).unwrap().id(), "rack1-7");
        assert!(!state.root().exists());
    }
}
