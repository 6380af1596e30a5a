use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Error, ErrorCode, Result};

/// A folder in which nobody may take away what is another's.
const STICKY: u32 = 0o1000;

/// Reads a file that only root, or this process' own user, can have written; `None` where it is missing.
///
/// # Errors
/// Error 7 where the file, or the folder that it or a link to it lies in, belongs to somebody else or may
/// be written by others: a sticky folder may. Error 5 where it cannot be read.
pub fn read_trusted(path: &Path) -> Result<Option<Vec<u8>>> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    let read = || -> io::Result<Result<Vec<u8>>> {
        let path = std::path::absolute(path)?;
        // A pipe must not be waited for.
        let open =
            File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path);
        let mut file = open?;
        let target = fs::canonicalize(&path)?;
        for (place, found) in [(&path, fs::symlink_metadata(&path)?), (&target, file.metadata()?)] {
            // A link has no rights of its own.
            let others = !found.is_symlink() && found.mode() & 0o022 != 0;
            if let Err(error) = refuse(place, &found, others) {
                return Ok(Err(error));
            }
            let folder = place.parent().unwrap_or(place);
            let found = fs::metadata(folder)?;
            let others = found.mode() & 0o022 != 0 && found.mode() & STICKY == 0;
            if let Err(error) = refuse(folder, &found, others) {
                return Ok(Err(error));
            }
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Ok(bytes))
    };
    match read() {
        Ok(read) => read.map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Refuses what belongs to somebody else, or what `others` may write.
fn refuse(place: &Path, found: &Metadata, others: bool) -> Result<()> {
    let place = place.display().to_string();
    let owner = found.uid();
    let (why, advice) = if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        (format!("belongs to user {owner}, who is neither root nor who runs this"), "chown root ")
    } else if others {
        ("may be written by others than its owner".to_owned(), "chmod go-w ")
    } else {
        return Ok(());
    };
    let message = [&place, " ", &why, ": it is not trusted"].concat();
    Err(Error::new(ErrorCode::INVALID_CONFIG, message).advise([advice, &place].concat()))
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
        assert_eq!(read_trusted(&place.at("")).unwrap_err().code(), ErrorCode::IO);
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
