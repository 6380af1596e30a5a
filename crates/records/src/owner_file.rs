//! The file of an owner: the lock of its calls on this node, and the knowledge of the latest.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ipam_kit::allocate::owner_index::now;
use ipam_kit::host::{beside, is_at, lock, make_private_folder, open_own, read_own};
use ipam_kit::{Error, ErrorCode, Result};
use log::{debug, warn};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::mark::NotedOwner;

/// The turn of an owner's call, until it is dropped. No other call of the node changes the owner's
/// records meanwhile.
#[derive(Debug)]
pub(crate) struct OwnerFile {
    path: PathBuf,
    /// `None` if the state folder cannot be written.
    file: Option<File>,
    note: Option<OwnerRecords>,
}

/// The knowledge of an owner's records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OwnerRecords {
    /// Whether the owner certainly has these records, each the only one of its address, and no
    /// others.
    pub(crate) sure: bool,
    pub(crate) records: Vec<NotedRecord>,
    /// The requests that made, wrote or ended records since the note was sure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) attempts: Vec<Attempt>,
    /// The subnets in which a DEL that looks into all of them has found nothing.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) looked: BTreeSet<String>,
}

/// A confirmed record of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotedRecord {
    pub(crate) id: String,
    pub(crate) subnet: String,
    pub(crate) address: IpAddr,
    /// When it was taken, in milliseconds since 1970 by this node's clock; 0 if that is unknown, so
    /// that the record counts as older than all others.
    pub(crate) taken: u64,
    /// The sticky name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sticky: Option<String>,
    /// Whether its release has begun, so that it may be gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ending: bool,
}

/// A request whose outcome a kill may have left open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) subnet: String,
    pub(crate) address: Option<IpAddr>,
    /// In milliseconds since 1970 by this node's clock.
    pub(crate) at: u64,
    /// The record that it changes; `None` if it makes one.
    #[serde(flatten)]
    pub(crate) target: Option<Target>,
    /// The hash of the sticky name whose record it deletes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

/// The record that a request changes, by its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// A record of the owner, which it writes again.
    Rewrites(String),
    /// A record of the owner, which it deletes, or leaves to its sticky name.
    Ends(String),
    /// A record of another owner, which it deletes for a takeover.
    Replaces(String),
    /// A record that has the address of a sticky name, which it deletes to make the owner's. It is
    /// noted until the owner has the address.
    Returns(String),
}

/// The length, in bytes, from which a file of one line replaces the file. Each claim of the node reads
/// all files.
const LONGEST: u64 = 4 * 1024;

/// The time after which a request of a killed call is certainly over, in milliseconds.
const SETTLED: u64 = 600_000;

impl Attempt {
    /// A request that is sent now, and makes a record.
    pub(crate) fn new(subnet: &str, address: Option<IpAddr>) -> Self {
        Self { subnet: subnet.to_owned(), address, at: now(), target: None, name: None }
    }

    /// A request that is sent now, and changes a record.
    pub(crate) fn on(target: Target, subnet: &str, address: Option<IpAddr>) -> Self {
        Self { target: Some(target), ..Self::new(subnet, address) }
    }

    /// The same request, for a claim with this sticky name.
    pub(crate) fn of_name(self, hash: Option<&str>) -> Self {
        Self { name: hash.map(str::to_owned), ..self }
    }

    /// Whether the server has certainly carried out the request, or never will.
    pub(crate) fn is_settled(&self) -> bool {
        now().abs_diff(self.at) > SETTLED
    }

    /// The record of another owner that it deletes.
    pub(crate) fn replaced(&self) -> Option<&str> {
        match &self.target {
            Some(Target::Replaces(id)) => Some(id),
            _ => None,
        }
    }

    /// Whether it deletes what a claim replaces, so that it makes and writes no record of the owner.
    pub(crate) fn makes_room(&self) -> bool {
        matches!(self.target, Some(Target::Replaces(_) | Target::Returns(_)))
    }

    fn ends(&self, id: &str) -> bool {
        matches!(&self.target, Some(Target::Ends(it)) if it == id)
    }
}

impl OwnerRecords {
    /// Whether an open request may write a record again.
    pub(crate) fn may_rewrite(&self, id: &str) -> bool {
        self.open().any(|it| matches!(&it.target, Some(Target::Rewrites(it)) if it == id))
    }

    /// Whether an open request may still end the owner's hold of a record.
    pub(crate) fn may_end(&self, id: &str) -> bool {
        self.open().any(|attempt| attempt.ends(id))
    }

    /// Whether an open request may still end the owner's hold of any record.
    pub(crate) fn may_end_any(&self) -> bool {
        self.open().any(|attempt| matches!(attempt.target, Some(Target::Ends(_))))
    }

    /// The records of other owners that were replaced, by their ids: a write that was under way may
    /// make one of them again.
    pub(crate) fn replaced(&self) -> BTreeSet<String> {
        self.attempts.iter().filter_map(Attempt::replaced).map(str::to_owned).collect()
    }

    /// The requests that may still be carried out.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| !attempt.is_settled())
    }

    /// Whether it only has attempts, and those are settled.
    pub(crate) fn is_over(&self) -> bool {
        let has_attempts = !self.attempts.is_empty();
        self.records.is_empty() && has_attempts && self.attempts.iter().all(Attempt::is_settled)
    }
}

impl OwnerFile {
    /// Waits for the turn of an owner. Without a writable state folder, a call that only releases
    /// goes on without it.
    ///
    /// # Errors
    /// Code 11: another call of the owner has its turn until `give_up`. The folder cannot be written,
    /// and the call has to take addresses.
    pub(crate) fn take(
        folder: &Path,
        owner: &NotedOwner,
        give_up: Instant,
        claims: bool,
    ) -> Result<Self> {
        let (folder, path) = place(folder, owner);
        match open_locked(&folder, &path, give_up) {
            Ok(Some(file)) => {
                let note = read_note(&file);
                Ok(Self { path, file: Some(file), note })
            }
            Ok(None) => {
                let message = format!(
                    "another call of {owner} has not ended in time: {} is locked",
                    path.display()
                );
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise(
                    "call again after it; if it never ends, end the process that `fuser` shows for this file",
                ))
            }
            Err(error) if claims => {
                Err(Error::io(format!("cannot lock {}", path.display()), error)
                    .advise("check space, rights and mount of the state folder, and call again"))
            }
            Err(error) => {
                warn!("cannot lock {}: {error}: goes on without it", path.display());
                Ok(Self { path, file: None, note: None })
            }
        }
    }

    /// Whether no other call of the node changes the owner's records.
    pub(crate) fn is_locked(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn note(&self) -> Option<&OwnerRecords> {
        self.note.as_ref()
    }

    /// Writes the note. A failure is a warning: then the next call reads the server.
    pub(crate) fn write(&mut self, note: OwnerRecords) {
        if let Some(file) = &mut self.file {
            match add_note(file, &self.path, &note) {
                Ok(None) => {}
                Ok(Some(replaced)) => *file = replaced,
                Err(error) => {
                    warn!("cannot write {}: {error}", self.path.display());
                    // The note before may be wrong now. One byte is an unreadable note.
                    let _ = file.set_len(1);
                }
            }
        }
        self.note = Some(note);
    }

    /// Notes the subnets in which a DEL has found nothing before it failed.
    pub(crate) fn remember_looked(&mut self, looked: BTreeSet<String>) {
        self.write(OwnerRecords { sure: false, looked, ..self.note.clone().unwrap_or_default() });
    }

    /// Notes a request that makes, writes or replaces a record, before it is sent.
    pub(crate) fn begin_attempt(&mut self, attempt: Attempt) {
        let mut note = self.note.clone().unwrap_or_default();
        note.sure = false;
        note.looked.clear();
        note.attempts.push(attempt);
        self.write(note);
    }

    /// Notes that the outcome of a request is known.
    pub(crate) fn end_attempt(&mut self, attempt: &Attempt) {
        self.keep_attempts(|other| other != attempt);
    }

    /// Notes a request that ends the owner's hold of a record, before it is sent: the record may be
    /// gone from now on.
    pub(crate) fn begin_release(&mut self, id: &str, subnet: &str) {
        let mut note = self.note.clone().unwrap_or_default();
        note.records.iter_mut().for_each(|record| record.ending |= record.id == id);
        note.attempts.retain(|attempt| !attempt.ends(id));
        note.attempts.push(Attempt::on(Target::Ends(id.to_owned()), subnet, None));
        self.write(note);
    }

    /// Notes that the outcome of a record's release is known.
    pub(crate) fn end_release(&mut self, id: &str) {
        self.keep_attempts(|attempt| !attempt.ends(id));
    }

    /// Forgets the replaced records, because they stay deleted, or the next list shows them.
    pub(crate) fn forget_replaced(&mut self) {
        self.keep_attempts(|attempt| attempt.replaced().is_none());
    }

    fn keep_attempts(&mut self, stays: impl Fn(&Attempt) -> bool) {
        let Some(mut note) = self.note.clone() else { return };
        note.attempts.retain(stays);
        if self.note.as_ref() != Some(&note) {
            self.write(note);
        }
    }

    /// Notes the records that a release leaves, and whether there are others. An attempt that may
    /// still be carried out leaves the note unsure, so that the next call looks again.
    pub(crate) fn leave(&mut self, records: Vec<NotedRecord>, has_others: bool) {
        let before = self.note.clone().unwrap_or_default();
        let attempts: Vec<Attempt> =
            before.attempts.into_iter().filter(|attempt| !attempt.is_settled()).collect();
        let is_nothing = records.is_empty() && attempts.is_empty();
        if is_nothing && (before.sure || !has_others) {
            return self.forget();
        }
        let sure = before.sure && attempts.is_empty();
        self.write(OwnerRecords { sure, records, attempts, ..OwnerRecords::default() });
    }

    /// Notes that a record of the owner is gone.
    pub(crate) fn forget_record(&mut self, id: &str) {
        self.end_release(id);
        let Some(mut note) = self.note.clone() else { return };
        note.records.retain(|noted| noted.id != id);
        self.leave(note.records, false);
    }

    /// Forgets an owner without records.
    pub(crate) fn forget(&mut self) {
        self.note = None;
        if let Some(file) = &mut self.file
            && let Err(error) = file.set_len(0)
        {
            debug!("cannot empty {}: {error}", self.path.display());
        }
    }
}

impl Drop for OwnerFile {
    fn drop(&mut self) {
        // The lock is held until after this.
        if self.file.is_some() && self.note.is_none() {
            let _ = fs::remove_file(draft(&self.path));
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The folder of an owner's file, and its path.
pub(crate) fn place(folder: &Path, owner: &NotedOwner) -> (PathBuf, PathBuf) {
    // A DEL names the node of its record, which may have had another identity then.
    let folder = folder.join(&owner.network).join(&owner.node);
    let path = folder.join(format!("{}:{}", owner.container, owner.ifname));
    (folder, path)
}

/// The file that a note is written to before it replaces the file.
fn draft(path: &Path) -> PathBuf {
    beside(path, "#new")
}

/// The note in an owner's file, without its turn; `None` if the file is missing or empty.
///
/// # Errors
/// The file cannot be read, or does not have a note.
pub(crate) fn peek(path: &Path) -> io::Result<Option<OwnerRecords>> {
    match read_own(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => match last_note(&text) {
            Some(note) => Ok(Some(note)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "it has no whole line")),
        },
    }
}

/// The note in the last whole line. A killed process may leave a part of a line.
fn last_note(text: &[u8]) -> Option<OwnerRecords> {
    text.rsplit(|byte| *byte == b'\n').find_map(|line| serde_json::from_slice(line).ok())
}

fn open_locked(folder: &Path, path: &Path, give_up: Instant) -> io::Result<Option<File>> {
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
        let open = || open_own(path, flags, 0o600);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private_folder(folder)?;
                open()?
            }
            other => other?,
        };
        if !lock(&file, give_up)? {
            return Ok(None);
        }
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// The note in a file; `None` if it is empty, and an unsure one if it is torn or cannot be read: the
/// part that was read may lack the latest line.
fn read_note(mut file: impl Read) -> Option<OwnerRecords> {
    let mut text = Vec::new();
    match file.read_to_end(&mut text) {
        Ok(0) => None,
        Ok(_) => Some(last_note(&text).unwrap_or_default()),
        Err(_) => Some(OwnerRecords::default()),
    }
}

/// Adds a note as a line. A long file is replaced by one of this note, which is returned. It is locked
/// before it gets its name, so that the turn does not end.
fn add_note(file: &mut File, path: &Path, note: &OwnerRecords) -> io::Result<Option<File>> {
    let note = serde_json::to_vec(note).map_err(io::Error::other)?;
    let line = [b"\n", &note[..], b"\n"].concat();
    if file.metadata()?.len() < LONGEST {
        return file.write_all(&line).map(|()| None);
    }
    let draft = draft(path);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND;
    let placed = open_own(&draft, flags, 0o600).and_then(|mut file| {
        file.try_lock()?;
        file.write_all(&line)?;
        fs::rename(&draft, path)?;
        Ok(Some(file))
    });
    placed.inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn owner(container: &str) -> NotedOwner {
        let [network, node, container, ifname] = ["lan", "n", container, "eth0"].map(str::to_owned);
        NotedOwner { network, node, container, ifname }
    }

    fn take(folder: &Path, container: &str) -> Result<OwnerFile> {
        OwnerFile::take(folder, &owner(container), Instant::now() + Duration::from_millis(20), true)
    }

    fn files(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("lan").join("n")
    }

    #[test]
    fn an_owner_has_one_turn_and_others_have_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path(), "c1").unwrap();
        assert_eq!(take(folder.path(), "c1").unwrap_err().code().number(), 11);
        take(folder.path(), "c2").unwrap();
        drop(first);
        take(folder.path(), "c1").unwrap();
        // Owners without records leave no files.
        assert_eq!(fs::read_dir(files(&folder)).unwrap().count(), 0);
    }

    #[test]
    fn the_last_whole_line_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = files(&folder).join("c1:eth0");
        let note = OwnerRecords { sure: true, ..OwnerRecords::default() };
        take(folder.path(), "c1").unwrap().write(note.clone());
        assert_eq!(take(folder.path(), "c1").unwrap().note(), Some(&note));
        let mut torn = fs::read(&path).unwrap();
        torn.extend(b"\n{\"sure\":fal");
        fs::write(&path, torn).unwrap();
        assert_eq!(peek(&path).unwrap().as_ref(), Some(&note));
        assert_eq!(take(folder.path(), "c1").unwrap().note(), Some(&note));
        fs::write(&path, "{\"sure\":tr").unwrap();
        assert_eq!(take(folder.path(), "c1").unwrap().note(), Some(&OwnerRecords::default()));
    }

    #[test]
    fn a_note_before_a_read_error_does_not_count() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::Other.into())
            }
        }
        let older = b"{\"sure\":true}\n";
        assert!(read_note(&older[..]).unwrap().sure);
        assert_eq!(read_note(older.chain(Broken)), Some(OwnerRecords::default()));
    }

    /// A note that makes its file a long one.
    fn long() -> OwnerRecords {
        let subnet = "x".repeat(usize::try_from(LONGEST).unwrap());
        let attempt = Attempt { at: 0, ..Attempt::new(&subnet, None) };
        OwnerRecords { attempts: vec![attempt], ..OwnerRecords::default() }
    }

    #[test]
    fn a_turn_goes_on_while_a_long_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = files(&folder).join("c1:eth0");
        let mut turn = take(folder.path(), "c1").unwrap();
        assert_eq!(peek(&path).unwrap(), None);
        // A killed call has left a draft.
        fs::write(draft(&path), "{\"sure\":true,\"records\":[").unwrap();
        for note in [long(), OwnerRecords::default()] {
            turn.write(note.clone());
            assert_eq!(take(folder.path(), "c1").unwrap_err().code().number(), 11);
            assert_eq!(peek(&path).unwrap(), Some(note));
        }
        assert!(fs::metadata(&path).unwrap().len() < LONGEST);
        fs::write(draft(&path), "").unwrap();
        turn.forget();
        drop(turn);
        assert_eq!(fs::read_dir(files(&folder)).unwrap().count(), 0);
    }

    #[test]
    fn a_note_that_cannot_be_written_leaves_none_that_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = files(&folder).join("c1:eth0");
        let mut turn = take(folder.path(), "c1").unwrap();
        turn.write(OwnerRecords { sure: true, ..long() });
        // A folder is in the place of the draft.
        fs::create_dir(draft(&path)).unwrap();
        turn.write(OwnerRecords::default());
        drop(turn);
        peek(&path).unwrap_err();
        assert_eq!(take(folder.path(), "c1").unwrap().note(), Some(&OwnerRecords::default()));
    }

    #[test]
    fn a_release_needs_no_state_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lan"), "").unwrap();
        assert_eq!(take(folder.path(), "c1").unwrap_err().code().number(), 5);
        let free = OwnerFile::take(folder.path(), &owner("c1"), Instant::now(), false).unwrap();
        assert!(free.note().is_none());
    }
}
