//! Programs: their names, their paths, and the errors of starting them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use ipam_kit::cni::Environment;
use ipam_kit::error::Error;

/// Where a delegate's program is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "bool", into = "bool")]
pub(crate) enum ProgramSource {
    /// In `CNI_PATH`, by the delegate's name.
    #[default]
    CniPath,
    /// At the path that a file of the host names (`chain/next.rs`), and nowhere else.
    HostFile,
}

impl ProgramSource {
    pub(crate) fn is_cni_path(&self) -> bool {
        *self == Self::CniPath
    }
}

/// The folders of `PATH`. An empty or relative one would lie wherever the caller happens to be.
pub(crate) fn path_folders(environment: &Environment) -> Vec<PathBuf> {
    let path = environment.text("PATH").unwrap_or_default();
    std::env::split_paths(path).filter(|folder| folder.is_absolute()).collect()
}

/// The first program of a name in these folders.
pub(crate) fn search(folders: &[PathBuf], name: &Path) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file() && may_be_run(file))
}

/// A file of this name that would be the program, but may not be run.
pub(crate) fn search_not_executable(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file() && !may_be_run(file))
}

fn may_be_run(file: &Path) -> bool {
    access(file, Access::EXEC_OK).is_ok()
}

/// The error of a program that could not be started, with what to do about it.
pub(crate) fn not_started(program: &Path, error: io::Error) -> Error {
    let shown = program.display();
    let advice = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => {
            "the limit of processes is reached: end some, or raise it (ulimit -u, pids.max)"
                .to_owned()
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            "the limit of open files is reached: raise it (ulimit -n, fs.file-max)".to_owned()
        }
        Some(Errno::NOMEM) => "out of memory: free some, or raise the caller's limit".to_owned(),
        Some(Errno::ACCESS) if may_be_run(program) => {
            format!("its interpreter is not executable: check the first line of {shown}")
        }
        Some(Errno::ACCESS) => {
            format!("chmod +x {shown}, or mount its file system without noexec")
        }
        Some(Errno::NOENT) if program.exists() => match interpreter(program) {
            Some(interpreter) => format!(
                "its interpreter {interpreter:?} does not exist: install it, or correct the first line"
            ),
            None => "its loader does not exist here: install a build for this system".to_owned(),
        },
        Some(Errno::NOENT) => "install it there".to_owned(),
        Some(Errno::NOEXEC) => {
            "reinstall it for this machine's architecture; a script must begin with #!".to_owned()
        }
        _ => "check the program's permissions, mount and architecture".to_owned(),
    };
    Error::io(format!("cannot start {shown}"), error).advise(advice)
}

/// The interpreter that a script names after `#!`.
fn interpreter(program: &Path) -> Option<String> {
    let mut begin = Vec::new();
    File::open(program).ok()?.take(256).read_to_end(&mut begin).ok()?;
    let line = begin.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    line.split_ascii_whitespace().next().map(str::to_owned)
}

/// Whether a program of this name is an allocator that answers questions.
pub(crate) fn is_allocator(name: &str) -> bool {
    name.starts_with("ipam-da-")
}

/// Whether a program of this name is a selector.
pub(crate) fn is_selector(name: &str) -> bool {
    name.starts_with("ipam-ds-")
}

/// The executable of this process, to recognise it under other names.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnExecutable {
    /// Its former path, if an upgrade has replaced it.
    replaced: Option<PathBuf>,
    /// Device, inode and length.
    identity: Option<(u64, u64, u64)>,
}

impl OwnExecutable {
    const EXE: &'static str = "/proc/self/exe";

    /// Finds the running program.
    pub(crate) fn find() -> Self {
        let path = fs::read_link(Self::EXE).unwrap_or_default();
        // The kernel marks a file that is not there any more.
        let replaced = path.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
        let identity = fs::metadata(Self::EXE).ok().map(|m| (m.dev(), m.ino(), m.len()));
        Self { replaced: replaced.map(PathBuf::from), identity }
    }

    /// Whether a file is this program: the same file, a copy of it, or what an upgrade has put in
    /// its place.
    pub(crate) fn is(&self, file: &Path) -> bool {
        let (Some((dev, ino, len)), Ok(other)) = (self.identity, fs::metadata(file)) else {
            return false;
        };
        (dev, ino) == (other.dev(), other.ino())
            || (len == other.len() && same_bytes(file, Path::new(Self::EXE)))
            || self
                .replaced
                .as_ref()
                .is_some_and(|own| fs::canonicalize(file).is_ok_and(|f| f == *own))
    }
}

fn same_bytes(one: &Path, other: &Path) -> bool {
    matches!((fs::read(one), fs::read(other)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_recognised_by_path_link_and_copy() {
        let temp = tempfile::TempDir::new().unwrap();
        let own = OwnExecutable::find();
        let exe = std::env::current_exe().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::os::unix::fs::symlink(&exe, at("link")).unwrap();
        fs::copy(&exe, at("copy")).unwrap();
        fs::write(at("other"), vec![0; fs::metadata(&exe).unwrap().len() as usize]).unwrap();
        assert!(own.is(&exe) && own.is(&at("link")) && own.is(&at("copy")));
        assert!(!own.is(&at("other")) && !own.is(&at("missing")));
    }
}
