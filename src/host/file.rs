use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// More than any configuration, certificate or token has, in bytes.
const LONGEST: u64 = 4 << 20;

/// Reads a file that somebody names. What is no regular file, after links were followed, is refused
/// unopened: a FIFO would be waited for without end.
///
/// # Errors
/// It cannot be read, is no regular file, or is larger than 4 MiB.
pub fn read_regular(file: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(file)?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let expected = found.len().min(LONGEST) as usize + 1;
    let mut content = Vec::with_capacity(expected);
    File::open(file)?.take(LONGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LONGEST {
        return Err(io::Error::other("it is larger than 4 MiB"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_a_likely_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(10 << 20).unwrap();
        for (file, message) in [
            (large, "it is larger than 4 MiB"),
            (folder.path().to_owned(), "it is no regular file"),
            ("/dev/zero".into(), "it is no regular file"),
        ] {
            assert_eq!(read_regular(&file).unwrap_err().to_string(), message);
        }
        let absent = read_regular(&folder.path().join("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
