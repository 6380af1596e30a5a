use std::io;
use std::path::Path;

pub(crate) use ipam_kit::host::read_regular as read;

/// Reads a regular file of at most 1 MiB as UTF-8 text. It never waits, as it would for a pipe.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn read_text(file: &Path) -> io::Result<String> {
    String::from_utf8(read(file)?).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let latin = folder.path().join("latin");
        std::fs::write(&latin, b"caf\xe9").unwrap();
        assert_eq!(read_text(&latin).unwrap_err().to_string(), "it is not UTF-8 text");
    }
}
