//! The programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::servers::process::{plain, program};

/// The client in `PATH`.
pub fn kubectl() -> PathBuf {
    program("kubectl")
}

/// The server: the one that `IPAM_DELEGATED_KUBE_APISERVER` names, else the one in
/// `KUBEBUILDER_ASSETS`, else the one in `PATH`, else the one that `tests/run.sh` has built.
#[track_caller]
pub fn kube_apiserver() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || Some(Path::new(&set("HOME")?).join(".cache"));
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
    let named = set("IPAM_DELEGATED_KUBE_APISERVER");
    let assets = set("KUBEBUILDER_ASSETS");
    let path = set("PATH").unwrap_or_default();
    locate(named.as_deref(), assets.as_deref(), &path, &cache)
        .unwrap_or_else(|missing| panic!("{missing}"))
}

/// The second part of the server's version: 20 of 1.20.2.
#[track_caller]
pub(crate) fn minor_version() -> u32 {
    static MINOR: OnceLock<u32> = OnceLock::new();
    *MINOR.get_or_init(|| {
        let output = plain(kube_apiserver()).arg("--version").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let minor =
            told.trim().strip_prefix("Kubernetes v1.").and_then(|rest| rest.split('.').next());
        minor.and_then(|minor| minor.parse().ok()).unwrap_or_else(|| panic!("{output:?}"))
    })
}

/// Where the program lies; else what to do.
fn locate(
    named: Option<&OsStr>,
    assets: Option<&OsStr>,
    path: &OsStr,
    cache: &Path,
) -> Result<PathBuf, String> {
    if let Some(name) = named {
        let missing =
            || format!("IPAM_DELEGATED_KUBE_APISERVER names {}: no such file", name.display());
        return Some(PathBuf::from(name)).filter(|file| file.is_file()).ok_or_else(missing);
    }
    let folders = assets.map(PathBuf::from).into_iter().chain(std::env::split_paths(path));
    let built = cache.join("ipam-delegated/kube-apiserver-1.20.2");
    let mut files = folders.chain([built]).map(|folder| folder.join("kube-apiserver"));
    files.find(|file| file.is_file()).ok_or_else(|| {
        "kube-apiserver is missing: tests/run.sh --only-install builds it".to_owned()
    })
}
