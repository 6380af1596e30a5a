use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::file::read_all;
use super::own::open_own;
use crate::error::{Error, ErrorCode, Result};

/// The mode bit of a folder in which only owners may remove their files.
const STICKY: u32 = 0o1000;

/// The limit of the kernel.
const MOST_LINKS: usize = 40;

/// Reads a file that decides what runs as root; `None` if it is missing. Only root, this process'
/// own user, or the owner of `/` can have written it: each folder and each link of its path belongs
/// to one of them, and others may not write there.
///
/// # Errors
/// Error 7: a folder, a link or the file belongs to another user, or others may write it (they may
/// write a sticky folder). Error 5: the file cannot be read.
pub fn read_trusted(path: &Path) -> Result<Option<Vec<u8>>> {
    match open_and_read(path) {
        Ok(content) => Ok(Some(content)),
        Err(ReadFailure::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(ReadFailure::Io(error)) => {
            Err(Error::io(format!("cannot read {}", path.display()), error))
        }
        Err(ReadFailure::Untrusted(error)) => Err(error),
    }
}

/// Why a file was not read.
enum ReadFailure {
    Io(io::Error),
    Untrusted(Error),
}

impl From<io::Error> for ReadFailure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn open_and_read(path: &Path) -> Result<Vec<u8>, ReadFailure> {
    // A missing file costs one system call.
    access(path, Access::EXISTS).map_err(io::Error::from)?;
    Ok(read_all(open_trusted(path)?)?)
}

/// Opens a file by a path that others cannot change: each part stays as it was when checked.
fn open_trusted(path: &Path) -> Result<File, ReadFailure> {
    let root = PathBuf::from(Component::RootDir.as_os_str());
    let found = fs::symlink_metadata(&root)?;
    // Inside a user namespace, root's files belong to the owner of `/`.
    let owners = [0, rustix::process::geteuid().as_raw(), found.uid()];
    require_trusted(&root, &found, owners)?;
    // `resolved` has no links, so that a name is looked up in the very folder checked before.
    let mut resolved = root;
    let mut rest = Vec::new();
    add_names(&std::path::absolute(path)?, &mut rest);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        resolved.push(name);
        let found = fs::symlink_metadata(&resolved)?;
        require_trusted(&resolved, &found, owners)?;
        if found.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(ReadFailure::Io(Errno::LOOP.into()));
            }
            let target = fs::read_link(&resolved)?;
            resolved.pop();
            if target.is_absolute() {
                resolved = Component::RootDir.as_os_str().into();
            }
            add_names(&target, &mut rest);
        }
    }
    let file = open_own(&resolved, rustix::fs::OFlags::RDONLY, 0)?;
    require_trusted(&resolved, &file.metadata()?, owners)?;
    Ok(file)
}

/// Adds the names of a path to those still to be resolved, in reverse order.
fn add_names(path: &Path, rest: &mut Vec<OsString>) {
    for part in path.components().rev() {
        if matches!(part, Component::Normal(_) | Component::ParentDir) {
            rest.push(part.as_os_str().to_owned());
        }
    }
}

/// Refuses a folder, a link or a file that another user may change.
fn require_trusted(path: &Path, found: &Metadata, owners: [u32; 3]) -> Result<(), ReadFailure> {
    // A link has no mode of its own.
    let is_closed = found.mode() & 0o022 == 0
        || found.is_symlink()
        || (found.is_dir() && found.mode() & STICKY != 0);
    let (why, advice) = if !owners.contains(&found.uid()) {
        let advice = if found.is_symlink() { "chown -h root" } else { "chown root" };
        ("belongs to another user than root", advice)
    } else if !is_closed {
        ("is writable by users other than its owner", "chmod go-w")
    } else {
        return Ok(());
    };
    let path = path.display();
    let message = format!("{path} {why}: it is not trusted");
    let error = Error::new(ErrorCode::INVALID_CONFIG, message);
    Err(ReadFailure::Untrusted(error.advise(format!("{advice} {path}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let temp = tempfile::TempDir::new().unwrap();
            fs::write(temp.path().join("file"), "x").unwrap();
            Self(temp)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn mode(&self, name: &str, mode: u32) {
            fs::set_permissions(self.at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    #[track_caller]
    fn refused(path: &Path, advice: &str) {
        let error = read_trusted(path).unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
        assert!(error.details().starts_with(advice), "{}", error.in_full());
    }

    #[test]
    fn what_only_its_owner_writes_is_read_and_what_is_missing_is_nothing() {
        let place = Place::new();
        place.mode("file", 0o644);
        assert_eq!(read_trusted(&place.at("file")).unwrap().unwrap(), b"x");
        assert!(read_trusted(&place.at("none")).unwrap().is_none());
        assert!(read_trusted(&place.at("no/folder")).unwrap().is_none());
        let made = std::process::Command::new("mkfifo").arg(place.at("pipe")).status();
        assert!(made.unwrap().success());
        for name in ["", "pipe"] {
            assert_eq!(read_trusted(&place.at(name)).unwrap_err().code(), ErrorCode::IO);
        }
    }

    #[test]
    fn what_others_may_write_is_refused() {
        let place = Place::new();
        for mode in [0o666, 0o664, 0o646] {
            place.mode("file", mode);
            refused(&place.at("file"), "chmod go-w ");
        }
        place.mode("file", 0o600);
        place.mode("", 0o777);
        refused(&place.at("file"), "chmod go-w ");
        place.mode("", 0o1777);
        assert!(read_trusted(&place.at("file")).is_ok());
    }

    #[test]
    fn links_are_followed_as_the_kernel_does_up_to_a_limit() {
        let place = Place::new();
        fs::create_dir(place.at("a")).unwrap();
        symlink("../file", place.at("a/up")).unwrap();
        symlink("./a//up", place.at("1")).unwrap();
        for number in 2..=42 {
            symlink((number - 1).to_string(), place.at(&number.to_string())).unwrap();
        }
        symlink("around", place.at("around")).unwrap();
        for name in ["a/../file", "a/up", "1", "39"] {
            assert_eq!(read_trusted(&place.at(name)).unwrap().unwrap(), b"x", "{name}");
        }
        for name in ["41", "42", "around", "file/x"] {
            assert_eq!(read_trusted(&place.at(name)).unwrap_err().code(), ErrorCode::IO, "{name}");
        }
    }

    #[test]
    fn every_folder_and_every_link_on_the_way_is_looked_at() {
        let place = Place::new();
        for folder in ["mine/sub", "etc"] {
            fs::create_dir_all(place.at(folder)).unwrap();
        }
        fs::write(place.at("mine/sub/file"), "x").unwrap();
        symlink(place.at("mine/link"), place.at("etc/file")).unwrap();
        symlink(place.at("file"), place.at("mine/link")).unwrap();
        let ways = ["etc/file", "mine/sub/file", "mine/sub/../../file"];
        for way in ways {
            assert!(read_trusted(&place.at(way)).is_ok(), "{way}");
        }
        place.mode("mine", 0o775);
        for way in ways {
            refused(&place.at(way), "chmod go-w ");
        }
        // As /nix/store is.
        place.mode("mine", 0o1775);
        for way in ways {
            assert!(read_trusted(&place.at(way)).is_ok(), "{way}");
        }
    }

    #[test]
    fn a_link_is_trusted_as_far_as_both_its_ends() {
        let place = Place::new();
        let open = Place::new();
        symlink(place.at("file"), open.at("link")).unwrap();
        assert!(read_trusted(&open.at("link")).is_ok());
        open.mode("", 0o777);
        refused(&open.at("link"), "chmod go-w ");
        open.mode("", 0o700);
        place.mode("", 0o777);
        refused(&open.at("link"), "chmod go-w ");
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        // Only root can give a file away; what is root's is another's to nobody.
        if !rustix::process::geteuid().is_root() {
            assert!(read_trusted(Path::new("/etc/passwd")).unwrap().is_some());
            return;
        }
        let place = Place::new();
        chown(place.at("file"), Some(65534), None).unwrap();
        refused(&place.at("file"), "chown root ");
        chown(place.at("file"), Some(0), None).unwrap();
        chown(place.at(""), Some(65534), None).unwrap();
        refused(&place.at("file"), "chown root ");
    }
}
