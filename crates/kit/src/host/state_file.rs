use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::own::read_rest;
use super::{beside, lock_folder, open_own, replace_own};

/// A file in which processes of this node remember something, one JSON document a line. The last
/// whole line counts, so that a killed process leaves the one before.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// The length, in bytes, from which a file of one line replaces the file.
const LONGEST: u64 = 64 * 1024;

/// How many bytes at the end are read at first: more than most lines have.
const TAIL: u64 = 4 * 1024;

impl StateFile {
    /// The file at this path, which need not exist.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last whole line, as a hint: the default if it is missing or cannot be read.
    pub fn read<T: DeserializeOwned + Default>(&self) -> T {
        self.content().unwrap_or_default()
    }

    /// The last whole line; the default only if the file certainly has no line.
    fn content<T: DeserializeOwned + Default>(&self) -> io::Result<T> {
        let mut file = match open_own(&self.path, OFlags::RDONLY, 0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(T::default()),
            opened => opened?,
        };
        let tail = file.metadata()?.len().saturating_sub(TAIL);
        if tail > 0 {
            file.seek(SeekFrom::Start(tail))?;
            let text = read_rest(&file)?;
            // It may begin with a part of a line.
            let first_end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
            if let Some(content) = last_line(&text[first_end..]) {
                return Ok(content);
            }
            file.rewind()?;
        }
        Ok(last_line(&read_rest(&file)?).unwrap_or_default())
    }

    /// Changes the content, one process after the other, and returns it. A missing folder is made.
    ///
    /// # Errors
    /// The file cannot be read, so that a change would lose its content; it cannot be written; or
    /// another process has it locked for more than a second.
    pub fn change<T: DeserializeOwned + Default + Serialize>(
        &self,
        change: impl FnOnce(&mut T),
    ) -> io::Result<T> {
        let _folder = lock_folder(self.path.parent().unwrap_or(&self.path))?;
        let mut content = self.content()?;
        change(&mut content);
        self.append(&content)?;
        Ok(content)
    }

    /// Replaces the content. A missing folder is made.
    ///
    /// # Errors
    /// The file cannot be written, or another process has it locked for more than a second.
    pub fn write(&self, content: &impl Serialize) -> io::Result<()> {
        let _folder = lock_folder(self.path.parent().unwrap_or(&self.path))?;
        self.append(content)
    }

    /// Adds a line. On ext4, rewriting the file each time would cost a write to the disk.
    fn append(&self, content: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(content).map_err(io::Error::other)?;
        line.push(b'\n');
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let mut file = open_own(&self.path, flags, 0o600)?;
        if file.metadata()?.len() < LONGEST {
            // A line that a loss of power has torn ends here.
            return file.write_all(&[b"\n", &line[..]].concat());
        }
        replace_own(&self.path, &beside(&self.path, "#new"), 0o600, &line)
    }
}

/// The last line that can be parsed.
fn last_line<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    text.rsplit(|byte| *byte == b'\n').find_map(|line| serde_json::from_slice(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use tempfile::TempDir;

    #[test]
    fn the_last_whole_line_counts() {
        let folder = TempDir::new().unwrap();
        let note = StateFile::at(folder.path().join("a/note.json"));
        assert_eq!(note.read::<u32>(), 0);
        note.change(|number: &mut u32| *number = 7).unwrap();
        let mut file = OpenOptions::new().append(true).open(note.path()).unwrap();
        file.write_all(b"\n12 3").unwrap();
        assert_eq!(note.read::<u32>(), 7);
        assert_eq!(note.change(|number: &mut u32| *number += 1).unwrap(), 8);
        assert_eq!(note.read::<u32>(), 8);
    }

    #[test]
    fn the_last_line_is_found_wherever_it_begins() {
        let folder = TempDir::new().unwrap();
        let note = StateFile::at(folder.path().join("note.json"));
        let tail = usize::try_from(TAIL).unwrap();
        fs::write(note.path(), format!("{}7\n{}", "\n".repeat(tail), "8".repeat(tail))).unwrap();
        assert_eq!(note.read::<u32>(), 7);
        fs::write(note.path(), format!("\n1234\n{}", "\n".repeat(tail - 2))).unwrap();
        assert_eq!(note.read::<u32>(), 1234);
        for length in tail - 4..tail + 4 {
            note.change(|text: &mut String| *text = "x".repeat(length)).unwrap();
            assert_eq!(note.read::<String>().len(), length);
        }
    }

    #[test]
    fn nothing_is_changed_while_another_process_changes_it() {
        let folder = TempDir::new().unwrap();
        let note = StateFile::at(folder.path().join("note.json"));
        note.change(|number: &mut u32| *number = 7).unwrap();
        let changing = lock_folder(folder.path()).unwrap();
        let error = note.change(|number: &mut u32| *number += 1).unwrap_err();
        assert!(error.to_string().contains("locked by another process"), "{error}");
        assert_eq!(note.read::<u32>(), 7);
        drop(changing);
        // A second change waits for the end of the first.
        let other = note.clone();
        note.change(|number: &mut u32| {
            *number += 1;
            assert!(other.change(|number: &mut u32| *number = 0).is_err());
        })
        .unwrap();
        assert_eq!(note.read::<u32>(), 8);
    }

    #[test]
    fn a_note_that_cannot_be_read_is_not_taken_for_an_empty_one() {
        let folder = TempDir::new().unwrap();
        let note = StateFile::at(folder.path().join("note.json"));
        assert_eq!(note.content::<u32>().unwrap(), 0);
        std::os::unix::fs::symlink("elsewhere.json", note.path()).unwrap();
        assert!(note.content::<u32>().is_err());
        assert!(note.change(|number: &mut u32| *number += 1).is_err());
    }

    #[test]
    fn a_long_file_is_made_short() {
        let folder = TempDir::new().unwrap();
        let note = StateFile::at(folder.path().join("note.json"));
        note.change(|text: &mut String| *text = "x".repeat(200)).unwrap();
        let one = fs::metadata(note.path()).unwrap().len();
        for round in 0..2 * LONGEST / one {
            note.change(|text: &mut String| *text = format!("{round:0200}")).unwrap();
            assert_eq!(note.read::<String>(), format!("{round:0200}"));
            assert!(fs::metadata(note.path()).unwrap().len() < LONGEST + 2 * one);
        }
    }
}
