use std::path::{Path, PathBuf};

use ipam_kit::keys::Key;
use ipam_kit::{Error, Result};
use serde::Deserialize;

/// The keys of [`LocalConfig`].
pub(crate) const KEYS: &[Key] = &[Key::Value("dataDir")];

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LocalConfig {
    data_dir: Option<PathBuf>,
}

impl LocalConfig {
    /// The folder in which host-local keeps its leases.
    const DATA_DIR: &'static str = "/var/lib/cni/networks";

    /// Returns the folder that has a lease folder for each network. A relative path is resolved in
    /// the caller's working folder, as by host-local.
    ///
    /// # Errors
    /// The working folder is missing.
    pub(crate) fn data_dir(&self) -> Result<PathBuf> {
        let written = self.data_dir.as_deref().filter(|path| !path.as_os_str().is_empty());
        let path = written.unwrap_or(Path::new(Self::DATA_DIR));
        std::path::absolute(path).map_err(|error| {
            Error::io(
                format!("ipam.dataDir: cannot resolve the relative path {}", path.display()),
                error,
            )
            .advise(format!("set an absolute path such as {}", Self::DATA_DIR))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::keys::names;

    #[test]
    fn every_key_is_declared() {
        ipam_testkit::fields::assert_fields::<LocalConfig>(&names(KEYS));
    }
}
