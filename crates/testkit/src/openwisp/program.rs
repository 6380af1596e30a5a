//! The programs and the first database.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The settings and paths of the server, as Python modules.
pub(super) const MODULES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/install/openwisp");

/// A Python environment with openwisp-ipam, and a database to begin with.
pub(super) struct Installation(PathBuf);

impl Installation {
    /// The folder that `IPAM_DELEGATED_OPENWISP` names, else the one that `tests/run.sh` has made.
    #[track_caller]
    pub(super) fn find() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || Some(Path::new(&set("HOME")?).join(".cache"));
        let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
        let named = set("IPAM_DELEGATED_OPENWISP");
        locate(named.as_deref(), &cache).unwrap_or_else(|missing| panic!("{missing}"))
    }

    pub(super) fn python(&self) -> PathBuf {
        self.0.join("bin/python")
    }

    pub(super) fn database(&self) -> PathBuf {
        self.0.join("database.sqlite3")
    }
}

/// Where it lies; else what to do.
fn locate(named: Option<&OsStr>, cache: &Path) -> Result<Installation, String> {
    let folder =
        named.map_or_else(|| cache.join("ipam-delegated/openwisp-ipam-1.3.1"), PathBuf::from);
    let installation = Installation(folder);
    // The installation ends with the copy of its list of packages.
    let files = [installation.python(), installation.database()];
    let marks = named.is_none().then(|| installation.0.join("requirements.txt"));
    let missing = files.into_iter().chain(marks).find(|file| !file.is_file());
    match (missing, named) {
        (None, _) => Ok(installation),
        (Some(file), Some(_)) => {
            Err(format!("IPAM_DELEGATED_OPENWISP: {}: no such file", file.display()))
        }
        (Some(_), None) => {
            Err("openwisp-ipam is missing: tests/run.sh --only-install installs it".to_owned())
        }
    }
}
