//! Programs: what their names say, and where they are found.

use std::path::{Path, PathBuf};

/// The first program of a name in these folders.
pub(super) fn search(folders: &[PathBuf], name: &Path) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|file| {
        file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
    })
}

/// Whether a program of this name is an allocator that answers questions.
pub(super) fn is_allocator(name: &str) -> bool {
    name.starts_with("ipam-da-")
}

/// Whether a program of this name is a selector.
pub(super) fn is_selector(name: &str) -> bool {
    name.starts_with("ipam-ds-")
}
