//! The program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The server: the one that `IPAM_DELEGATED_CONSUL` names, else the one in `PATH`, else the one
/// that `tests/run.sh` has unpacked.
#[track_caller]
pub fn consul() -> PathBuf {
    let named = std::env::var_os("IPAM_DELEGATED_CONSUL").filter(|name| !name.is_empty());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|name| !name.is_empty());
    let cache = cache.map(PathBuf::from).or_else(home).unwrap_or_default();
    locate(named.as_deref(), &path, &cache).unwrap_or_else(|missing| panic!("{missing}"))
}

/// Where the program lies; else what to do.
fn locate(named: Option<&OsStr>, path: &OsStr, cache: &Path) -> Result<PathBuf, String> {
    if let Some(name) = named {
        let missing = || format!("IPAM_DELEGATED_CONSUL names {}: no such file", name.display());
        return Some(PathBuf::from(name)).filter(|file| file.is_file()).ok_or_else(missing);
    }
    let mut installed = std::env::split_paths(path).map(|folder| folder.join("consul"));
    let folder = cache.join("ipam-delegated/consul-1.8.7");
    let unpacked = || folder.join("unpacked").exists().then(|| folder.join("usr/bin/consul"));
    installed
        .find(|file| file.is_file())
        .or_else(unpacked)
        .ok_or_else(|| "consul is missing: tests/run.sh --only-install unpacks it".to_owned())
}
