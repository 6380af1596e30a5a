use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// More than any configuration, certificate or token has, in bytes.
const LONGEST: u64 = 1 << 20;

/// Reads a file of others that is only read: a configuration, a certificate, a token, a result of
/// the runtime. Links are followed, and nothing is waited for.
///
/// # Errors
/// It cannot be read, is not a regular file, or is larger than 1 MiB.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    read_all(options.open(path)?)
}

/// Reads an open file under the limits of [`read_regular`].
pub(super) fn read_all(file: File) -> io::Result<Vec<u8>> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::with_capacity(found.len().min(LONGEST) as usize + 1);
    file.take(LONGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LONGEST {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_a_likely_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(10 << 20).unwrap();
        for (file, message) in [
            (large, "larger than 1 MiB"),
            (folder.path().to_owned(), "not a regular file"),
            (pipe, "not a regular file"),
            ("/dev/zero".into(), "not a regular file"),
        ] {
            assert_eq!(read_regular(&file).unwrap_err().to_string(), message);
        }
        let absent = read_regular(&folder.path().join("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
