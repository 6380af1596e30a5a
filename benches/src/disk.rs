//! A disk of its own: ext4 in a file, which root can mount.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted ext4, until it is dropped.
pub struct Ext4 {
    folder: TempDir,
}

/// The size of the disk, in bytes; the file has holes.
const SIZE: u64 = 1 << 30;

impl Ext4 {
    /// Mounts an empty one, with or without a journal; `None` without the rights or the tools.
    pub fn mount(has_journal: bool) -> Option<Self> {
        let this = Self { folder: TempDir::new().unwrap() };
        let image = this.folder.path().join("image");
        File::create(&image).unwrap().set_len(SIZE).unwrap();
        fs::create_dir(this.mounted()).unwrap();
        let journal = if has_journal { "has_journal" } else { "^has_journal" };
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-O", journal]).arg(&image).status();
        let mount =
            || Command::new("mount").args(["-o", "loop"]).arg(&image).arg(this.mounted()).status();
        let done = made.is_ok_and(|it| it.success()) && mount().is_ok_and(|it| it.success());
        if !done {
            println!("no ext4: mkfs.ext4 and mount -o loop need root");
            return None;
        }
        // Ctrl-C leaves it mounted.
        println!("an ext4 is mounted at {}", this.mounted().display());
        fs::create_dir(this.path()).unwrap();
        Some(this)
    }

    /// A folder of it. ext4 spreads those at the top over the disk.
    pub fn path(&self) -> PathBuf {
        self.mounted().join("node")
    }

    /// Makes and removes so many files, as batch jobs do. Without a journal, ext4 then skips each of
    /// their inodes for one to six minutes, whenever it looks for a free one.
    pub fn churn(&self, files: usize) {
        let folder = self.path().join("jobs");
        fs::create_dir_all(&folder).unwrap();
        let paths: Vec<PathBuf> = (0..files).map(|n| folder.join(n.to_string())).collect();
        for path in &paths {
            fs::write(path, "x").unwrap();
        }
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    }

    fn mounted(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let done = Command::new("umount").arg::<&Path>(&self.mounted()).status();
        if !done.is_ok_and(|status| status.success()) {
            println!("umount {} failed: do it by hand", self.mounted().display());
        }
    }
}
