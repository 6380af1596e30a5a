use std::path::{Path, PathBuf};

use ipam_delegated::{Error, Result};
use serde::Deserialize;

/// What this delegate reads of `ipam`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Config {
    data_dir: Option<PathBuf>,
}

impl Config {
    /// Where host-local keeps its leases, and so do we.
    const DATA_DIR: &'static str = "/var/lib/cni/networks";

    /// The folder that holds a folder of leases for each network.
    ///
    /// # Errors
    /// It is no absolute path: what it means would depend on the caller's working folder.
    pub fn data_dir(&self) -> Result<&Path> {
        let written = self.data_dir.as_deref().filter(|path| !path.as_os_str().is_empty());
        let path = written.unwrap_or(Path::new(Self::DATA_DIR));
        if path.is_absolute() {
            return Ok(path);
        }
        Err(Error::config("ipam.dataDir", format!("{} is no absolute path", path.display()))
            .advise(format!("expected a path such as {}", Self::DATA_DIR)))
    }
}
