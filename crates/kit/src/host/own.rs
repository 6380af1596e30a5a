use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, retry_on_intr};

/// Opens a file that our programs write: a log, a record, a lease, a state file, a cache, a lock. A
/// link as the last name is refused, and a FIFO does not block. A new file gets the mode.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open_own(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| open(path, flags, Mode::from_raw_mode(mode)));
    let file = File::from(opened.map_err(|error| match error {
        Errno::LOOP => io::Error::other("is a symbolic link: remove it"),
        // A FIFO without a reader, or a socket.
        Errno::NXIO => not_regular(),
        _ => error.into(),
    })?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Whether a path still names an open file of ours. A lock on a file that was removed or replaced
/// is useless.
///
/// # Errors
/// The file system fails.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let here = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads a file that our programs write.
///
/// # Errors
/// As [`open_own`]; it cannot be read.
pub fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    read_rest(&open_own(path, OFlags::RDONLY, 0)?)
}

/// Reads a file from where it is to its end.
pub(super) fn read_rest(file: &File) -> io::Result<Vec<u8>> {
    let mut content = Vec::with_capacity(1024);
    // Without `take`, two more system calls ask for the size and the position.
    file.take(u64::MAX).read_to_end(&mut content)?;
    Ok(content)
}

/// Replaces a file of ours in one step. The content is first written to `draft` in the same file
/// system, which no other process may use at the same time.
///
/// # Errors
/// It cannot be written; the old file stays.
pub fn replace_own(path: &Path, draft: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let written = open_own(draft, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, mode)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(draft, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(draft);
    })
}

/// A path with `mark` at the end of its name. A mark that begins with `#` or `:` makes a name that
/// no network, container or interface has.
pub fn beside(path: &Path, mark: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(mark);
    name.into()
}

/// Makes a folder of ours and its parents, each with this mode when new, whatever the umask.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(mode);
    let mut made = builder.create(path);
    if let (Err(error), Some(parent)) = (&made, path.parent())
        && error.kind() == ErrorKind::NotFound
    {
        make_folder(parent, mode)?;
        made = builder.create(path);
    }
    match made {
        // An umask removes bits of group and others.
        Ok(()) if mode & 0o077 == 0 => Ok(()),
        Ok(()) => open_up(path, mode),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a folder of ours that is its owner's alone, and its parents.
///
/// # Errors
/// It cannot be made.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    make_folder(path, 0o700)
}

/// Opens a folder, to lock it or to change its mode.
pub(super) fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| open(path, flags, Mode::empty()))?.into())
}

/// Gives a new folder the mode bits that the umask removed.
fn open_up(path: &Path, mode: u32) -> io::Result<()> {
    let folder = open_folder(path)?;
    let has = folder.metadata()?.permissions().mode();
    if has & mode == mode {
        return Ok(());
    }
    folder.set_permissions(Permissions::from_mode(has & 0o7777 | mode))
}

fn not_regular() -> io::Error {
    io::Error::other("not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn what_is_no_regular_file_is_neither_followed_nor_waited_for() {
        let temp = TempDir::new().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::write(at("victim"), "x").unwrap();
        std::os::unix::fs::symlink("victim", at("link")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status();
        assert!(made.unwrap().success());
        fs::create_dir(at("folder")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        for name in ["link", "pipe", "folder", "socket"] {
            assert!(read_own(&at(name)).is_err(), "{name}");
            for flags in [OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, OFlags::RDWR] {
                assert!(open_own(&at(name), flags, 0o600).is_err(), "{name} {flags:?}");
            }
        }
        assert_eq!(read_own(&at("victim")).unwrap(), b"x");
    }

    #[test]
    fn a_file_is_replaced_in_one_step_and_a_draft_that_fails_is_removed() {
        let temp = TempDir::new().unwrap();
        let path = temp.path().join("x.1");
        let draft = beside(&path, "#new");
        assert_eq!(draft, temp.path().join("x.1#new"));
        fs::write(temp.path().join("victim"), "x").unwrap();
        std::os::unix::fs::symlink("victim", &draft).unwrap();
        assert!(replace_own(&path, &draft, 0o600, b"1").is_err());
        replace_own(&path, &draft, 0o600, b"2").unwrap();
        assert_eq!(read_own(&path).unwrap(), b"2");
        assert_eq!(fs::read(temp.path().join("victim")).unwrap(), b"x");
        assert!(!draft.exists());
    }

    #[test]
    fn an_existing_folder_keeps_its_mode_and_a_file_is_refused() {
        let temp = TempDir::new().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        fs::set_permissions(temp.path(), Permissions::from_mode(0o750)).unwrap();
        let deep = temp.path().join("a/b");
        make_folder(&deep, 0o755).unwrap();
        assert_eq!(
            [mode(temp.path()), mode(&temp.path().join("a")), mode(&deep)],
            [0o750, 0o755, 0o755]
        );
        make_folder(&deep, 0o700).unwrap();
        assert_eq!(mode(&deep), 0o755);
        fs::write(temp.path().join("file"), "").unwrap();
        assert!(make_folder(&temp.path().join("file"), 0o700).is_err());
        assert!(make_folder(&temp.path().join("file/x"), 0o700).is_err());
    }
}
