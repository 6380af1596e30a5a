use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use log::{debug, warn};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{
    Settings, StateDir, beside, boot_id, is_at, lock, lock_folder, make_private_folder, open_own,
    read_own, read_regular,
};
use crate::error::{Error, ErrorCode, Result};

/// The identity of this node: part of a lease's owner.
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
    /// The boot in which it was made without a machine-id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    boot_id: String,
}

/// The file of the machine-id.
const MACHINE_ID: &str = "/etc/machine-id";

/// The mark of the file that an identity is first written to.
const DRAFT: &str = "#new";

/// How long another process may have the identity locked.
const PATIENCE: Duration = Duration::from_secs(10);

impl Node {
    /// A random UUID, or the name that the host-wide settings give.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn establish(state: &StateDir, settings: &Settings) -> Result<Self> {
        if let Some(name) = &settings.node {
            return Ok(Self { id: name.clone() });
        }
        let machine_id = read_machine_id(Path::new(MACHINE_ID))?;
        let path = state.root().join("node");
        // A release by another machine's records would release its leases.
        if settings.fault.is_some()
            && Identity::read(&path).is_ok_and(|it| it.is_of_another(&machine_id))
        {
            let doubt =
                format!("the records in {} may belong to another machine", state.root().display());
            settings.refuse_fault(&doubt).map_err(|error| error.with_code(ErrorCode::RECORD))?;
        }
        settings.refuse_fault("this node's name is unknown")?;
        let identity = match Identity::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Identity::make(state, &path, &machine_id)
            }
            other => other,
        };
        let identity = identity.map_err(|error| no_identity(&path, error))?;
        // Without a machine-id there is nothing to compare.
        if machine_id.is_empty() || identity.machine_id == machine_id {
            return Ok(Self { id: identity.uuid });
        }
        let identity = renew(state, &path, &machine_id).map_err(|error| match error {
            CloneError::Records(error) => Error::new(
                ErrorCode::RECORD,
                format!("cannot set aside the records of another machine in {}", state.root().display()),
            )
            .caused_by(error)
            .advise("run it as root, with a writable state folder: using these records would release that machine's leases"),
            CloneError::Identity(error) => no_identity(&path, error),
        })?;
        Ok(Self { id: identity.uuid })
    }
}

fn no_identity(path: &Path, error: io::Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::InvalidData => "remove the file: the next ADD creates a new identity",
        _ => "run it as root, with a writable state folder",
    };
    Error::io(format!("cannot establish the node's identity in {}", path.display()), error)
        .advise(advice)
}

impl Identity {
    /// Makes the first one, or reads the one that another first call has made meanwhile. The lock
    /// is on the draft, which only its owner may open; the next call replaces a draft that a kill
    /// left.
    fn make(state: &StateDir, path: &Path, machine_id: &str) -> io::Result<Self> {
        make_private_folder(state.root())?;
        // Earlier releases replace the identity under this lock. Other users may hold it, too, if
        // they may read the folder: the call then continues without it.
        let _earlier = lock_folder(state.root());
        let draft = beside(path, DRAFT);
        let give_up = Instant::now() + PATIENCE;
        loop {
            match Self::read(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => return other,
            }
            let file = open_own(&draft, OFlags::WRONLY | OFlags::CREATE, 0o600)?;
            lock_or_fail(&file, give_up)?;
            if !is_at(&file, &draft)? {
                // It has become the identity meanwhile.
                continue;
            }
            match Self::read(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => {
                    let _ = fs::remove_file(&draft);
                    return other;
                }
            }
            let identity = Self::new(machine_id)?;
            identity.write_to(&file, &draft, path)?;
            return Ok(identity);
        }
    }

    fn new(machine_id: &str) -> io::Result<Self> {
        let boot_id = if machine_id.is_empty() { boot_id() } else { String::new() };
        Ok(Self { uuid: random_uuid()?, machine_id: machine_id.to_owned(), boot_id })
    }

    fn read(path: &Path) -> io::Result<Self> {
        let identity: Self = serde_json::from_slice(&read_own(path)?)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let is_plain = identity.uuid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        if identity.uuid.is_empty() || !is_plain {
            return Err(io::Error::new(ErrorKind::InvalidData, "invalid uuid"));
        }
        Ok(identity)
    }

    /// Whether it was made on another machine.
    fn is_of_another(&self, machine_id: &str) -> bool {
        !machine_id.is_empty() && self.machine_id != machine_id && !self.is_of_this_boot()
    }

    /// Whether it was made without a machine-id, and the machine has not been started since.
    fn is_of_this_boot(&self) -> bool {
        self.machine_id.is_empty() && !self.boot_id.is_empty() && self.boot_id == boot_id()
    }

    /// Replaces another one, under its lock.
    fn replace(&self, path: &Path) -> io::Result<()> {
        let draft = beside(path, DRAFT);
        self.write_to(&open_own(&draft, OFlags::WRONLY | OFlags::CREATE, 0o600)?, &draft, path)
    }

    /// Writes it to an open draft and renames that: whole, and safe from a loss of power.
    fn write_to(&self, mut file: &File, draft: &Path, path: &Path) -> io::Result<()> {
        let content = serde_json::to_string(self).map_err(io::Error::other)?;
        // A full disk lets files be made, but not written.
        let placed = file
            .set_len(0)
            .and_then(|()| file.write_all(content.as_bytes()))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(draft, path));
        placed.inspect_err(|_| {
            let _ = fs::remove_file(draft);
        })
    }
}

fn lock_or_fail(file: &File, give_up: Instant) -> io::Result<()> {
    if lock(file, give_up)? {
        return Ok(());
    }
    let held = "the node's identity has been locked by another process for 10s";
    Err(io::Error::new(ErrorKind::TimedOut, held))
}

/// The existing identity, locked for a change until the file is dropped.
///
/// The lock is on the identity itself, which only its owner may open.
fn lock_identity(path: &Path) -> io::Result<(File, Identity)> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let file = open_own(path, OFlags::RDONLY, 0)?;
        lock_or_fail(&file, give_up)?;
        // Another call has replaced it while this one waited.
        if is_at(&file, path)? {
            return Ok((file, Identity::read(path)?));
        }
    }
}

/// Why a cloned machine got no identity of its own.
#[derive(Debug)]
enum CloneError {
    /// The records of the original are still in the way.
    Records(io::Error),
    /// The records were renamed.
    Identity(io::Error),
}

/// Binds an identity to a machine-id that has appeared since, or gives a cloned machine its own.
///
/// The attachments are renamed before the new identity is written, so that a kill in between
/// repeats the step and never adopts the original's records.
fn renew(state: &StateDir, path: &Path, machine_id: &str) -> Result<Identity, CloneError> {
    use CloneError::{Identity as Unmade, Records};
    // The lock of earlier releases: see `Identity::make`.
    let _earlier = lock_folder(state.root());
    let (_locked, mut old) = lock_identity(path).map_err(Records)?;
    if old.machine_id == machine_id {
        return Ok(old);
    }
    if old.is_of_this_boot() {
        old.machine_id = machine_id.to_owned();
        old.boot_id = String::new();
        if let Err(error) = old.replace(path) {
            // Until the next boot it is this machine's all the same.
            debug!("cannot bind {} to the machine-id: {error}", path.display());
        }
        return Ok(old);
    }
    let aside = state.root().join(format!("attachments.{}", old.uuid));
    warn!(
        "the state folder {} came from another machine (node {}): this node gets a new identity; the other \
         machine's records are kept in {} and ignored",
        state.root().display(),
        old.uuid,
        aside.display(),
    );
    step_aside(&state.attachments(), &aside).map_err(Records)?;
    let unsure_aside = state.root().join(format!("unsure.{}", old.uuid));
    step_aside(&state.unsure(), &unsure_aside).map_err(Records)?;
    let identity = Identity::new(machine_id).map_err(Unmade)?;
    identity.replace(path).map_err(Unmade)?;
    Ok(identity)
}

/// Renames a folder, if there is one. If a step that did not finish (a full disk, a kill) has used
/// the name, a number follows it.
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

/// The machine-id; empty if the file is missing or not initialized.
fn read_machine_id(path: &Path) -> Result<String> {
    let read = match read_regular(path) {
        // A machine-id is a regular file of such a size.
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error().is_none() => {
            return Ok(String::new());
        }
        // Ignoring it could release the leases of the machine that this one was cloned from.
        other => {
            other.map_err(|error| Error::io(format!("cannot read {}", path.display()), error))?
        }
    };
    let text = String::from_utf8_lossy(&read);
    let text = text.trim();
    Ok(if text == "uninitialized" { String::new() } else { text.to_owned() })
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
        let original = Identity::make(&state, &path, "machine-a").unwrap();
        make_private_folder(&state.attachments().join("net")).unwrap();
        let clone = renew(&state, &path, "machine-b").unwrap();
        assert_ne!(original.uuid, clone.uuid);
        assert!(!state.attachments().exists());
        assert!(state.root().join(format!("attachments.{}/net", original.uuid)).exists());
        assert_eq!(renew(&state, &path, "machine-b").unwrap().uuid, clone.uuid);
    }

    #[test]
    fn an_identity_without_a_machine_id_adopts_that_of_the_same_boot_only() {
        let temp = TempDir::new().unwrap();
        let (state, _) = state(&temp);
        let path = state.root().join("node");
        let first = Identity::make(&state, &path, "").unwrap();
        make_private_folder(&state.attachments().join("net")).unwrap();
        assert_eq!(renew(&state, &path, "machine-a").unwrap().uuid, first.uuid);
        let bound = Identity::read(&path).unwrap();
        assert_eq!(
            (bound.uuid, &*bound.machine_id, &*bound.boot_id),
            (first.uuid.clone(), "machine-a", "")
        );
        assert!(state.attachments().join("net").exists());
        for boot in ["", r#","bootId":"of-an-earlier-boot""#] {
            let text = format!(r#"{{"uuid":"{}","machineId":""{boot}}}"#, first.uuid);
            fs::write(&path, text).unwrap();
            assert_ne!(renew(&state, &path, "machine-a").unwrap().uuid, first.uuid, "{boot}");
        }
        assert!(!state.attachments().exists());
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
