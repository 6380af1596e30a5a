use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use log::warn;
use serde::{Deserialize, Serialize};

use super::state::{make_private_folder, write_new};
use super::{Settings, StateDir, lock};
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
        let identity = replace_clone(state, &path, &machine_id).map_err(|error| match error {
            CloneError::Records(error) => Error::new(
                ErrorCode::RECORD,
                format!("cannot set aside the records of another machine in {}", state.root().display()),
            )
            .caused_by(error)
            .advise("to act on them would release that machine's leases; the state folder must be writable by root"),
            CloneError::Identity(error) => failed(error),
        })?;
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
        let _guard = lock_folder(state)?;
        match Self::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // Another first ADD was quicker.
            other => return other,
        }
        let identity = Self::new(machine_id)?;
        identity.put(path)?;
        Ok(identity)
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

    /// Puts it in place, under the lock: what a kill leaves is the one file that the next call
    /// replaces.
    fn put(&self, path: &Path) -> io::Result<()> {
        let new = path.with_file_name("node.new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        write_new(&new, serde_json::to_string(self).map_err(io::Error::other)?.as_bytes())?;
        fs::rename(&new, path)
    }
}

/// Locks the state folder for a change of the node's identity.
fn lock_folder(state: &StateDir) -> io::Result<fs::File> {
    let guard = fs::File::open(state.root())?;
    if lock(&guard, Instant::now() + Duration::from_secs(10))? {
        return Ok(guard);
    }
    Err(io::Error::new(ErrorKind::TimedOut, "another process has held the folder's lock for 10 s"))
}

/// What kept a cloned machine from an identity of its own.
#[derive(Debug)]
enum CloneError {
    /// The records of the original still stand where this machine's would.
    Records(io::Error),
    /// They have stepped aside.
    Identity(io::Error),
}

/// Gives a cloned machine an identity of its own.
///
/// The attachments step aside before the new identity stands, so that a kill in between repeats
/// the step instead of adopting the original's records.
fn replace_clone(state: &StateDir, path: &Path, machine_id: &str) -> Result<Identity, CloneError> {
    use CloneError::{Identity as Unmade, Records};
    let _guard = lock_folder(state).map_err(Records)?;
    let old = Identity::read(path).map_err(Records)?;
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
    step_aside(&state.attachments(), &aside).map_err(Records)?;
    let unsure_aside = state.root().join(format!("unsure.{}", old.uuid));
    step_aside(&state.unsure(), &unsure_aside).map_err(Records)?;
    let identity = Identity::new(machine_id).map_err(Unmade)?;
    identity.put(path).map_err(Unmade)?;
    Ok(identity)
}

/// Renames a folder where there is one; to a numbered name where a step that was not finished (a
/// full disk, a kill) has taken the plain one.
fn step_aside(folder: &Path, aside: &Path) -> io::Result<()> {
    let mut name = aside.to_owned();
    for number in 1..1000 {
        match fs::rename(folder, &name) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                let mut numbered = aside.as_os_str().to_owned();
                numbered.push(format!(".{number}"));
                name = numbered.into();
            }
            // A read-only disk says so even where there is nothing to rename.
            Err(error) if fs::exists(folder).unwrap_or(true) => return Err(error),
            _ => return Ok(()),
        }
    }
    Err(ErrorKind::DirectoryNotEmpty.into())
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
