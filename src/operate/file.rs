use std::fs;
use std::path::Path;

use crate::error::{Error, ErrorCode, Result};

/// Reads a file that a person named, or that a folder listed. What is no regular file, after links
/// were followed, is refused unopened: a FIFO would be waited for without end.
///
/// # Errors
/// Error 5: it cannot be read, or is no regular file.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", path.display());
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            let message = format!("{} is no regular file", path.display());
            Err(Error::new(ErrorCode::IO, message))
        }
        Ok(_) => fs::read(path).map_err(|error| Error::io(cannot(), error)),
        Err(error) => Err(Error::io(cannot(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let temp = tempfile::TempDir::new().unwrap();
        let (file, link) = (temp.path().join("file"), temp.path().join("link"));
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_file(&link).unwrap(), b"x");
        for path in [temp.path(), &temp.path().join("none"), Path::new("/dev/zero")] {
            assert_eq!(read_file(path).unwrap_err().code(), ErrorCode::IO);
        }
    }
}
