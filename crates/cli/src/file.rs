use std::path::Path;

use ipam_kit::error::{Error, Result};
use ipam_kit::host::read_regular;

/// Reads a file that a person named, or that a folder listed.
///
/// # Errors
/// Error 5: it cannot be read, is not a regular file, or is larger than 1 MiB.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    read_regular(path)
        .map_err(|error| Error::io(format_args!("cannot read {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use ipam_kit::error::ErrorCode;

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
