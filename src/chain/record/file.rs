use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use log::{debug, warn};
use rustix::fs::OFlags;

use super::lines::{ParseError, parse, write, write_running};
use super::opening::{
    APPEND, OpenError, inherited, is_absent, is_something_else, make_file, open_file, unreadable,
};
use super::place::RecordPlace;
use super::{Event, Record, Run, now};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{is_at, lock, make_private_folder, open_own};
use ipam_kit::presence::Presence;

/// Records beyond this many bytes are rewritten when the next ADD opens them.
const COMPACT_BEYOND: usize = 64 * 1024;

/// A record file, locked.
///
/// The lock is on the file itself, and delegates inherit the descriptor: while a child of a killed
/// chain lives, no other call works on the attachment.
#[derive(Debug)]
pub(crate) struct RecordFile {
    place: RecordPlace,
    path: PathBuf,
    file: File,
    /// The last line has no end: the next append begins one of its own.
    torn: bool,
    empty: bool,
}

/// A record with the file it came from.
#[derive(Debug)]
pub(crate) struct Opened {
    pub file: RecordFile,
    pub record: Record,
}

impl RecordFile {
    /// How long a verb waits for another one on the same attachment.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

    /// Opens and locks the record, or makes it.
    ///
    /// A record that is not valid is set aside.
    ///
    /// # Errors
    /// 11 while another process holds it; 113 if it cannot be opened or read, or a newer program wrote it.
    pub(crate) fn open(place: &RecordPlace) -> Result<Opened> {
        Self::try_open(place).map_err(|error| error.at(place.path()))
    }

    /// [`RecordFile::open`] for a verb that releases: if the file cannot be written, this only reads it.
    ///
    /// # Errors
    /// 11 while another process holds it; 113 if it cannot be read this time, or a newer program wrote it.
    pub(crate) fn open_to_release(place: &RecordPlace) -> Result<Presence<Opened>> {
        Self::or_read_only(place, Self::try_open(place).map(Presence::Held))
    }

    /// Opens and locks an existing record, and waits for its lock. The disk may be read-only.
    ///
    /// # Errors
    /// As for [`RecordFile::open_to_release`].
    pub(crate) fn open_to_look(place: &RecordPlace) -> Result<Presence<Opened>> {
        Self::or_read_only(place, Self::try_existing(place, Self::PATIENCE))
    }

    /// Opens and locks an existing record. One that cannot be read stays as it is.
    ///
    /// # Errors
    /// 11 while another process holds it; 113 if it cannot be opened or read, or a newer program wrote
    /// it. A record that is not valid is [`Presence::Unreadable`].
    pub(crate) fn open_existing(
        place: &RecordPlace,
        patience: Duration,
    ) -> Result<Presence<Opened>> {
        Self::try_existing(place, patience).map_err(|error| error.at(place.path()))
    }

    fn try_open(place: &RecordPlace) -> Result<Opened, OpenError> {
        let give_up = Instant::now() + Self::PATIENCE;
        loop {
            let path = place.path();
            let file = match place.is_own(path) {
                true => make_file(path),
                false => open_file(path, true),
            };
            let file = match file {
                Err(error) if may_be_elsewhere(&error, place, path, give_up) => continue,
                file => file.map_err(OpenError::Opening)?,
            };
            let read = Self::read_locked(file, place, path, give_up)?;
            let Some((this, bytes)) = read else { continue };
            match parse(&bytes) {
                Ok(record) => return Ok(this.opened(record, bytes.len())),
                Err(ParseError::NewerFormat(format)) => return Err(OpenError::Newer(format)),
                Err(ParseError::Invalid(reason)) => {
                    this.set_aside(&reason).map_err(OpenError::Opening)?;
                }
            }
        }
    }

    fn try_existing(
        place: &RecordPlace,
        patience: Duration,
    ) -> Result<Presence<Opened>, OpenError> {
        let give_up = Instant::now() + patience;
        loop {
            let path = place.path();
            let file = match open_file(path, true) {
                Ok(file) => file,
                Err(error) if may_be_elsewhere(&error, place, path, give_up) => continue,
                Err(error) if is_absent(&error) && place.is_own(path) => {
                    return Ok(Presence::Absent);
                }
                Err(error) if is_something_else(&error) => {
                    return Ok(Presence::Unreadable(unreadable(path, error)));
                }
                Err(error) => return Err(OpenError::Opening(error)),
            };
            let read = Self::read_locked(file, place, path, give_up)?;
            let Some((this, bytes)) = read else { continue };
            return match parse(&bytes) {
                Ok(record) => Ok(Presence::Held(this.opened(record, bytes.len()))),
                Err(ParseError::NewerFormat(format)) => Err(OpenError::Newer(format)),
                Err(ParseError::Invalid(reason)) => {
                    Ok(Presence::Unreadable(unreadable(path, reason)))
                }
            };
        }
    }

    /// Reads a record that could not be opened for writing.
    fn or_read_only(
        place: &RecordPlace,
        opened: Result<Presence<Opened>, OpenError>,
    ) -> Result<Presence<Opened>> {
        let path = place.path();
        let error = match opened {
            Err(OpenError::Opening(error)) => error,
            opened => return opened.map_err(|error| error.at(path)),
        };
        warn!("{}", OpenError::Opening(error).at(path).in_full());
        let mut file = match open_file(path, false) {
            Ok(file) => file,
            Err(error) if is_absent(&error) && place.is_own(path) => return Ok(Presence::Absent),
            Err(error) if is_something_else(&error) => {
                return Ok(Presence::Unreadable(unreadable(path, error)));
            }
            Err(error) => return Err(OpenError::Reading(error).at(path)),
        };
        // Release also on a disk that cannot lock files.
        if !lock(&file, Instant::now() + Self::PATIENCE).unwrap_or(true) {
            return Err(OpenError::Busy.at(path));
        }
        let mut bytes = Vec::new();
        match file.read_to_end(&mut bytes) {
            Err(error) if is_something_else(&error) => {
                return Ok(Presence::Unreadable(unreadable(path, error)));
            }
            Err(error) => return Err(OpenError::Reading(error).at(path)),
            Ok(_) => {}
        }
        match parse(&bytes) {
            Err(ParseError::NewerFormat(format)) => Err(OpenError::Newer(format).at(path)),
            Err(ParseError::Invalid(reason)) => Ok(Presence::Unreadable(unreadable(path, reason))),
            Ok(record) => {
                let empty = record.is_empty();
                let (place, path) = (place.clone(), path.to_owned());
                let file = Self { place, path, file, torn: false, empty };
                Ok(Presence::Held(Opened { file, record }))
            }
        }
    }

    /// Reads a record without its lock, and reports whether a call works on it. A record of a newer program is
    /// [`Presence::Unreadable`], too; its error has the advice to upgrade.
    pub(crate) fn look(place: &RecordPlace) -> Presence<(Record, bool)> {
        let give_up = Instant::now() + Self::PATIENCE;
        let (path, file) = loop {
            let path = place.path();
            match open_own(path, OFlags::RDONLY, 0) {
                Err(error) if may_be_elsewhere(&error, place, path, give_up) => {}
                file => break (path, file),
            }
        };
        let mut file = match file {
            Ok(file) => file,
            Err(error) if is_absent(&error) && place.is_own(path) => return Presence::Absent,
            Err(error) => return Presence::Unreadable(unreadable(path, error)),
        };
        let busy = file.try_lock_shared().is_err();
        let mut bytes = Vec::new();
        if let Err(error) = file.read_to_end(&mut bytes) {
            return Presence::Unreadable(unreadable(path, error));
        }
        match parse(&bytes) {
            Ok(record) => Presence::Held((record, busy)),
            Err(ParseError::NewerFormat(format)) => {
                Presence::Unreadable(OpenError::Newer(format).at(path))
            }
            Err(ParseError::Invalid(reason)) => Presence::Unreadable(unreadable(path, reason)),
        }
    }

    /// Locks and reads the file; `None` if another one has replaced it meanwhile.
    fn read_locked(
        mut file: File,
        place: &RecordPlace,
        path: &Path,
        give_up: Instant,
    ) -> Result<Option<(Self, Vec<u8>)>, OpenError> {
        if !lock(&file, give_up).map_err(OpenError::Opening)? {
            return Err(OpenError::Busy);
        }
        // An earlier program may have made one in the container's folder meanwhile.
        if !is_at(&file, place.path()).map_err(OpenError::Opening)? {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        // A disk that fails now may work for the next call: only what was read is judged.
        file.read_to_end(&mut bytes).map_err(OpenError::Reading)?;
        let torn = bytes.last().is_some_and(|last| *last != b'\n');
        let (place, path) = (place.clone(), path.to_owned());
        Ok(Some((Self { place, path, file, torn, empty: true }, bytes)))
    }

    fn opened(mut self, record: Record, length: usize) -> Opened {
        // A first line that was cut short announced nothing.
        self.empty = record.is_empty();
        if length > COMPACT_BEYOND {
            match self.compact(&record) {
                Ok(compacted) => self = compacted,
                // It can still be read, and the next append reports a full disk.
                Err(error) => {
                    debug!("cannot compact the attachment record {}: {error}", self.path.display())
                }
            }
        }
        Opened { file: self, record }
    }

    /// Where the record is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an event in one write.
    pub(crate) fn append(&mut self, event: &Event) -> Result<()> {
        self.append_line(write(event))
    }

    /// Appends that a delegate is about to run.
    pub(crate) fn append_running(&mut self, run: &Run) -> Result<()> {
        self.append_line(write_running(run))
    }

    fn append_line(&mut self, line: serde_json::Result<String>) -> Result<()> {
        let written = line.map_err(io::Error::other).and_then(|line| self.write_line(line));
        written.map_err(|error| {
            let error_kind = error.kind();
            Error::new(
                ErrorCode::RECORD,
                format!("cannot write the attachment record {}", self.path.display()),
            )
            .caused_by(error)
            .advise(match error_kind {
                ErrorKind::NotFound => "do not remove files of the state folder while calls run",
                _ => "free space in the state folder",
            })
        })
    }

    fn write_line(&mut self, mut line: String) -> io::Result<()> {
        if self.torn {
            line.insert(0, '\n');
        }
        // Until the write has ended well, its end may be missing.
        self.torn = true;
        self.empty = false;
        self.file.write_all(line.as_bytes())?;
        self.is_linked()?;
        self.torn = false;
        Ok(())
    }

    /// Fails if the file was removed: a line in it would not be a record.
    fn is_linked(&self) -> io::Result<()> {
        if self.file.metadata()?.nlink() > 0 {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::NotFound, "the file was removed"))
    }

    /// Removes the record of an attachment that holds nothing.
    pub(crate) fn remove(self) -> io::Result<()> {
        if self.is_linked().is_err() {
            // The file at its path now is another call's.
            return Ok(());
        }
        self.place.remove(&self.path)
    }

    /// Removes the record if no event was ever written to it.
    pub(crate) fn remove_if_empty(self) {
        if self.empty {
            let _ = self.remove();
        }
    }

    /// Makes this record the last in GC's order, so that one that always fails holds up no other.
    pub(crate) fn put_last(&self) {
        if let Err(error) = self.file.set_modified(SystemTime::now()) {
            debug!("cannot put the attachment record {} last: {error}", self.path.display());
        }
    }

    fn compact(&self, record: &Record) -> io::Result<Self> {
        let new = RecordPlace::draft(&self.path);
        let _ = fs::remove_file(&new);
        let file = open_own(&new, APPEND | OFlags::CREATE | OFlags::EXCL, 0o600)?;
        let file = inherited(&file)?;
        let (place, path) = (self.place.clone(), self.path.clone());
        let mut compacted = Self { place, path, file, torn: false, empty: false };
        compacted.file.lock()?;
        for event in record.compacted() {
            compacted.append(&event).map_err(io::Error::other)?;
        }
        fs::rename(&new, &self.path)?;
        debug!("compacted the attachment record {}", self.path.display());
        Ok(compacted)
    }

    fn set_aside(self, reason: &str) -> io::Result<()> {
        let aside = self.place.aside(now());
        move_into_folder(&self.path, &aside, self.place.folder())?;
        warn!(
            "the attachment record {} cannot be read ({reason}): moved to {}; what it held is unknown",
            self.path.display(),
            aside.display()
        );
        Ok(())
    }
}

impl Drop for RecordFile {
    /// Unlocks for every process that inherited the descriptor: a daemon left by a delegate must
    /// not hold the attachment.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Whether to look for the record again: that of an earlier program was removed meanwhile, or its
/// place could not be looked at.
fn may_be_elsewhere(error: &io::Error, place: &RecordPlace, path: &Path, give_up: Instant) -> bool {
    is_absent(error) && !place.is_own(path) && Instant::now() < give_up
}

/// Moves a file into a folder, which other processes may remove while it is empty.
fn move_into_folder(from: &Path, to: &Path, folder: &Path) -> io::Result<()> {
    for _ in 0..100 {
        make_private_folder(folder)?;
        match fs::rename(from, to) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            moved => return moved,
        }
    }
    Err(io::Error::new(ErrorKind::NotFound, "the container's folder keeps being removed"))
}

#[cfg(test)]
mod tests;
