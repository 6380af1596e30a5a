use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::read_regular;
use crate::error::{Error, ErrorCode, Result};

/// A folder in which nobody may take away what is another's.
const STICKY: u32 = 0o1000;

/// Reads a file that only root, or this process' own user, can have written; `None` where it is missing.
///
/// # Errors
/// Error 7 where the file, or the folder that it or a link to it lies in, belongs to somebody else or may
/// be written by others: a sticky folder may. Error 5 where it cannot be read.
pub fn read_trusted(path: &Path) -> Result<Option<Vec<u8>>> {
    let read = || {
        let mut place = std::path::absolute(path)?;
        // From here on nobody else can put another file into its place.
        for _ in 0..2 {
            let found = fs::symlink_metadata(&place)?;
            // A link has no rights of its own.
            let mut refused = refusal(&place, &found, found.is_symlink());
            if let Some(folder) = place.parent() {
                let found = fs::metadata(folder)?;
                refused = refused.or_else(|| refusal(folder, &found, found.mode() & STICKY != 0));
            }
            if let Some(error) = refused {
                return Ok(Err(error));
            }
            place = fs::canonicalize(place)?;
        }
        read_regular(&place).map(Ok)
    };
    match read() {
        Ok(read) => read.map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(["cannot read ", &path.to_string_lossy()].concat(), error)),
    }
}

/// Why a file or a folder is not trusted; `closed` where its mode lets nobody change what is there.
fn refusal(place: &Path, found: &Metadata, closed: bool) -> Option<Error> {
    let (why, advice) = if ![0, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        (" belongs to neither root nor the user who runs this", "chown root ")
    } else if !closed && found.mode() & 0o022 != 0 {
        (" may be written by others than its owner", "chmod go-w ")
    } else {
        return None;
    };
    let place = place.to_string_lossy();
    let message = [&place, why, ": it is not trusted"].concat();
    Some(Error::new(ErrorCode::INVALID_CONFIG, message).advise([advice, &place].concat()))
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
