use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use log::{debug, warn};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};

use super::lines::{parse, write};
use super::list::SET_ASIDE;
use super::{Event, Record, now};
use crate::error::{Error, ErrorCode, Result};
use crate::host::{lock, make_private_folder};

/// Records beyond this many bytes are rewritten when the next ADD opens them.
const COMPACT_BEYOND: usize = 64 * 1024;

/// A record file, locked.
///
/// The lock is on the file itself, and delegates inherit the descriptor: while a child of a killed
/// chain lives, nobody else works on the attachment.
#[derive(Debug)]
pub(crate) struct RecordFile {
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
    /// The file before this one could not be read and was set aside.
    pub after_unreadable: bool,
}

impl RecordFile {
    /// How long a verb waits for another one on the same attachment.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// Opens and locks the record, making it when there is none.
    ///
    /// A record that cannot be read is set aside.
    pub fn open(path: &Path) -> Result<Opened> {
        Self::open_with(path, true, Self::PATIENCE)?.ok_or_else(|| busy(path))
    }

    /// Opens and locks an existing record without waiting; `None` where there is none.
    ///
    /// Error 11 while another process holds it.
    pub fn open_existing(path: &Path) -> Result<Option<Opened>> {
        Self::open_with(path, false, Duration::ZERO)
    }

    /// Opens and locks an existing record; `None` where there is none.
    pub fn open_for_undo(path: &Path) -> Result<Option<Opened>> {
        Self::open_with(path, false, Self::PATIENCE)
    }

    /// Reads a record without changing anything, and tells whether a call works on it.
    pub fn look(path: &Path) -> Result<Option<(Record, bool)>, String> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| error.to_string())?,
        };
        let busy = file.try_lock_shared().is_err();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok(Some((parse(&bytes)?, busy)))
    }

    /// Opens and locks an existing record where nothing can be written; `None` where there is
    /// none, or none that can be read.
    pub fn open_read_only(path: &Path) -> Result<Option<Opened>> {
        let Ok(mut file) = File::open(path).and_then(|file| inherited(&file)) else {
            return Ok(None);
        };
        let give_up = Instant::now() + Self::PATIENCE;
        if !lock(&file, give_up).unwrap_or(true) {
            return Err(busy(path));
        }
        let mut bytes = Vec::new();
        let Ok(record) =
            file.read_to_end(&mut bytes).map_err(|e| e.to_string()).and_then(|_| parse(&bytes))
        else {
            return Ok(None);
        };
        let empty = record.attempts.is_empty();
        let file = Self { path: path.to_owned(), file, torn: false, empty };
        Ok(Some(Opened { file, record, after_unreadable: false }))
    }

    fn open_with(path: &Path, create: bool, patience: Duration) -> Result<Option<Opened>> {
        let failed = |error: io::Error| {
            let advice = match error.kind() {
                ErrorKind::InvalidFilename => "a container id or network name may have 255 bytes",
                _ => "the state folder must be writable by root and not full",
            };
            Error::new(
                ErrorCode::RECORD,
                format!("cannot open the attachment record {}", path.display()),
            )
            .caused_by(error)
            .advise(advice)
        };
        let give_up = Instant::now() + patience;
        let mut after_unreadable = false;
        loop {
            let Some(mut file) = open_file(path, create).map_err(failed)? else {
                return Ok(None);
            };
            if !lock(&file, give_up).map_err(failed)? {
                return Err(busy(path));
            }
            if !is_at(&file, path).map_err(failed)? {
                continue;
            }
            let mut bytes = Vec::new();
            let read = file.read_to_end(&mut bytes).map_err(|error| error.to_string());
            let mut this = Self {
                path: path.to_owned(),
                file,
                torn: bytes.last().is_some_and(|last| *last != b'\n'),
                empty: true,
            };
            match read.and_then(|_| parse(&bytes)) {
                Ok(record) => {
                    // A first line that was cut short announced nothing.
                    this.empty = record.attempts.is_empty();
                    if bytes.len() > COMPACT_BEYOND {
                        match this.compact(&record) {
                            Ok(compacted) => this = compacted,
                            // It still reads; a full disk is the next append's affair.
                            Err(error) => debug!("{} stays long: {error}", path.display()),
                        }
                    }
                    return Ok(Some(Opened { file: this, record, after_unreadable }));
                }
                Err(reason) => {
                    this.set_aside(&reason).map_err(failed)?;
                    after_unreadable = true;
                }
            }
        }
    }

    /// Appends an event in one write.
    pub fn append(&mut self, event: &Event) -> Result<()> {
        let mut line = String::new();
        if self.torn {
            line.push('\n');
        }
        line.push_str(&write(event));
        // Until the write has ended well, its end may be missing.
        self.torn = true;
        self.empty = false;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.is_linked());
        written.map_err(|error| {
            let error_kind = error.kind();
            Error::new(
                ErrorCode::RECORD,
                format!("cannot write the attachment record {}", self.path.display()),
            )
            .caused_by(error)
            .advise(match error_kind {
                ErrorKind::NotFound => "leave the state folder alone while calls run",
                _ => "make room in the state folder",
            })
        })?;
        self.torn = false;
        Ok(())
    }

    /// A line in a file that somebody has removed is no record.
    fn is_linked(&self) -> io::Result<()> {
        if self.file.metadata()?.nlink() > 0 {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::NotFound, "somebody has removed it"))
    }

    /// Removes the record: the attachment holds nothing any more.
    pub fn remove(self) -> io::Result<()> {
        if self.is_linked().is_err() {
            // What stands at its path now is another call's.
            return Ok(());
        }
        fs::remove_file(&self.path)?;
        // Other interfaces of the container keep the folder.
        if let Some(folder) = self.path.parent()
            && fs::remove_dir(folder).is_err()
        {
            // What a kill left of a compaction.
            let _ = fs::remove_file(with_suffix(&self.path, ":new"));
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }

    /// Removes the record if no event was ever written to it.
    pub fn remove_if_empty(self) {
        if self.empty {
            let _ = self.remove();
        }
    }

    /// Makes this record the last in the order in which GC takes them: others are not to wait for
    /// one that fails each time.
    pub fn put_last(&self) {
        if let Err(error) = self.file.set_modified(SystemTime::now()) {
            debug!("{} stays where it is in the order: {error}", self.path.display());
        }
    }

    fn compact(&self, record: &Record) -> io::Result<Self> {
        let new = with_suffix(&self.path, ":new");
        let _ = fs::remove_file(&new);
        let file =
            OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&new)?;
        let file = inherited(&file)?;
        let mut compacted = Self { path: self.path.clone(), file, torn: false, empty: false };
        compacted.file.lock()?;
        for event in record.compacted() {
            compacted.append(&event).map_err(io::Error::other)?;
        }
        fs::rename(&new, &self.path)?;
        debug!("compacted the attachment record {}", self.path.display());
        Ok(compacted)
    }

    fn set_aside(self, reason: &str) -> io::Result<()> {
        let aside = with_suffix(&self.path, &format!("{SET_ASIDE}{}", now()));
        fs::rename(&self.path, &aside)?;
        warn!(
            "the attachment record {} cannot be read ({reason}): kept as {}; what it held is for GC to find",
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

fn open_file(path: &Path, create: bool) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(create).mode(0o600);
    // A link is no record: its target's place would never be the record's.
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    for _ in 0..100 {
        match options.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && create => {
                // Another process may remove the folder while it is made, or right after.
                let vanished = [ErrorKind::NotFound, ErrorKind::AlreadyExists];
                match make_private_folder(path.parent().unwrap_or(Path::new("/"))) {
                    Err(error) if !vanished.contains(&error.kind()) => return Err(error),
                    _ => {}
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(file) => return inherited(&file).map(Some),
        }
    }
    Err(io::Error::new(ErrorKind::NotFound, "its folder vanishes as often as it is made"))
}

/// The same file on a descriptor that delegates inherit, with a number that a script's own
/// redirections do not reach.
fn inherited(file: &File) -> io::Result<File> {
    let high = match rustix::io::fcntl_dupfd_cloexec(file, 100) {
        // Under a limit of that many descriptors the lowest number must do.
        Err(Errno::INVAL) => rustix::io::fcntl_dupfd_cloexec(file, 3)?,
        other => other?,
    };
    rustix::io::fcntl_setfd(&high, FdFlags::empty())?;
    Ok(high.into())
}

/// Whether the path still names this file: a lock on a removed record excludes nobody.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let here = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn busy(path: &Path) -> Error {
    Error::new(
        ErrorCode::TRY_AGAIN,
        format!("another call holds the attachment record {}", path.display()),
    )
    .advise("the runtime calls again; if it stays, look for a delegate that hangs (fuser shows it)")
}

#[cfg(test)]
mod tests {
    use super::super::list::is_record_name;
    use super::super::{Attempt, Failed, Run, State};
    use super::*;
    use tempfile::TempDir;

    fn path(temp: &TempDir) -> PathBuf {
        temp.path().join("net/container/eth0")
    }

    fn attempt() -> Event {
        Event::Attempt(Attempt::default())
    }

    #[test]
    fn what_is_appended_is_read_back() {
        let temp = TempDir::new().unwrap();
        let mut opened = RecordFile::open(&path(&temp)).unwrap();
        let run = Run { delegate: "d".to_owned(), ..Run::default() };
        opened.file.append(&attempt()).unwrap();
        opened.file.append(&Event::Running(run.clone())).unwrap();
        drop(opened);
        let opened = RecordFile::open(&path(&temp)).unwrap();
        assert_eq!(opened.record.runs(), [&run]);
        assert_eq!(fs::metadata(path(&temp)).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(temp.path().join("net")).unwrap().mode() & 0o777, 0o700);
        opened.file.remove().unwrap();
        assert!(!temp.path().join("net/container").exists());
        assert!(RecordFile::open_existing(&path(&temp)).unwrap().is_none());
    }

    #[test]
    fn a_line_cut_short_at_any_byte_is_passed_over() {
        let line = write(&Event::Failed(Failed::default()));
        for cut in 0..line.len() {
            let temp = TempDir::new().unwrap();
            let mut opened = RecordFile::open(&path(&temp)).unwrap();
            opened.file.append(&attempt()).unwrap();
            opened.file.file.write_all(&line.as_bytes()[..cut]).unwrap();
            drop(opened);
            let mut opened = RecordFile::open(&path(&temp)).unwrap();
            assert_eq!(opened.record.state(), State::Unfinished);
            opened.file.append(&Event::Failed(Failed::default())).unwrap();
            drop(opened);
            let opened = RecordFile::open(&path(&temp)).unwrap();
            assert!(!opened.after_unreadable, "cut at {cut}");
            assert_eq!(opened.record.state(), State::Failed);
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_is_set_aside() {
        let temp = TempDir::new().unwrap();
        fs::create_dir_all(temp.path().join("net/container")).unwrap();
        for bytes in [&b"not json\n"[..], b"\xff\xfe\n", b"{\"event\":\"held\"}\n", b"{}\n\n"] {
            fs::write(path(&temp), bytes).unwrap();
            let opened = RecordFile::open(&path(&temp)).unwrap();
            assert!(opened.after_unreadable);
            assert_eq!(opened.record, Record::default());
        }
        let names = fs::read_dir(temp.path().join("net/container")).unwrap();
        let aside = names.filter(|n| {
            let name = n.as_ref().unwrap().file_name();
            !is_record_name(name.to_str().unwrap())
        });
        assert!(aside.count() >= 1);
    }

    #[test]
    fn a_locked_record_is_not_waited_for_by_gc() {
        let temp = TempDir::new().unwrap();
        let held = RecordFile::open(&path(&temp)).unwrap();
        let error = RecordFile::open_existing(&path(&temp)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
        drop(held);
        assert!(RecordFile::open_existing(&path(&temp)).unwrap().is_some());
    }

    #[test]
    fn removal_does_not_split_the_lock() {
        let temp = TempDir::new().unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let opened = RecordFile::open(&path(&temp)).unwrap();
                        let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert_eq!(others, 0);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        opened.file.remove().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_long_record_is_compacted_under_its_lock() {
        let temp = TempDir::new().unwrap();
        let mut opened = RecordFile::open(&path(&temp)).unwrap();
        let ipam = serde_json::Map::from_iter([("x".to_owned(), "y".repeat(1000).into())]);
        let run = Run { delegate: "d".to_owned(), ipam, ..Run::default() };
        for _ in 0..100 {
            opened.file.append(&attempt()).unwrap();
            opened.file.append(&Event::Running(run.clone())).unwrap();
            opened.file.append(&Event::Failed(Failed::default())).unwrap();
        }
        drop(opened);
        let opened = RecordFile::open(&path(&temp)).unwrap();
        assert!(RecordFile::open_existing(&path(&temp)).is_err());
        assert!(fs::metadata(path(&temp)).unwrap().len() < 4096);
        drop(opened);
        let opened = RecordFile::open(&path(&temp)).unwrap();
        assert_eq!(opened.record.runs(), [&run]);
        assert_eq!(opened.record.state(), State::Failed);
    }
}
