use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::parse_duration;
use crate::error::{Error, ErrorCode, Result};

/// Host-wide settings: the file `/etc/cni/ipam-delegated.json`, all of it optional.
///
/// They hold for every network of the host and belong to root, so they decide what a network
/// configuration may not: where state lies and which folders a selector may point a delegate at.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where records and node identity lie (`stateDir`).
    pub state_dir: PathBuf,
    /// Whether to log at debug level (`verbose`).
    pub verbose: bool,
    /// Where verbose logs go (`logDir`).
    pub log_dir: PathBuf,
    /// The node's name, instead of the generated identity (`node`).
    pub node: Option<String>,
    /// Folders in which a selector's answer may set `dataDir` (`dataDirs`).
    pub data_dirs: Vec<PathBuf>,
    /// How young a lease must be for GC to leave it alone (`gcGrace`).
    pub gc_grace: Duration,
    /// Whether a requested address is taken from another owner, where neither the pool nor `ipam` says
    /// (`takeover`).
    pub takeover: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/cni/ipam-delegated"),
            verbose: cfg!(feature = "verbose"),
            log_dir: PathBuf::from("/var/log/cni"),
            node: None,
            data_dirs: vec![PathBuf::from("/var/lib/cni")],
            gc_grace: Duration::from_secs(300),
            takeover: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    state_dir: Option<PathBuf>,
    verbose: Option<bool>,
    log_dir: Option<PathBuf>,
    node: Option<String>,
    data_dirs: Option<Vec<PathBuf>>,
    gc_grace: Option<String>,
    takeover: Option<bool>,
}

impl Settings {
    /// The settings file.
    pub const PATH: &'static str = "/etc/cni/ipam-delegated.json";

    /// Reads the settings file; the defaults when there is none.
    pub fn load() -> Result<Self> {
        let path = Path::new(Self::PATH);
        match std::fs::read(path) {
            Ok(bytes) => Self::parse(&bytes).map_err(|error| error.within(Self::PATH)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::io(format!("cannot read {}", path.display()), error)),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let file: File = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            Error::new(ErrorCode::INVALID_CONFIG, format!("{}: {}", error.path(), error.inner()))
        })?;
        deserializer.end().map_err(|error| {
            Error::new(ErrorCode::INVALID_CONFIG, "not one JSON object").caused_by(error)
        })?;
        let default = Self::default();
        let settings = Self {
            state_dir: file.state_dir.unwrap_or(default.state_dir),
            verbose: file.verbose.unwrap_or(default.verbose),
            log_dir: file.log_dir.unwrap_or(default.log_dir),
            node: file.node,
            data_dirs: file.data_dirs.unwrap_or(default.data_dirs),
            gc_grace: match file.gc_grace {
                None => default.gc_grace,
                // Zero is of use here: it judges every lease.
                Some(text) if text == "0s" => Duration::ZERO,
                Some(text) => parse_duration(&text).ok_or_else(|| {
                    Error::config("gcGrace", format!("{text:?} is no duration such as 5m"))
                })?,
            },
            takeover: file.takeover.unwrap_or(default.takeover),
        };
        let folders = [("stateDir", &settings.state_dir), ("logDir", &settings.log_dir)];
        let data_dirs = settings.data_dirs.iter().map(|folder| ("dataDirs", folder));
        for (key, folder) in folders.into_iter().chain(data_dirs) {
            if !is_plain_absolute(folder) {
                return Err(Error::config(
                    key,
                    format!("{} is no absolute path without ..", folder.display()),
                ));
            }
        }
        if let Some(node) = &settings.node
            && (node.is_empty() || node.len() > 253 || !node.chars().all(|c| c.is_ascii_graphic()))
        {
            return Err(Error::config(
                "node",
                "expected 1 to 253 printable characters without blanks",
            ));
        }
        Ok(settings)
    }

    /// Whether a selector's answer may set `dataDir` to this folder: absolute, without `..`, in
    /// one of [`Settings::data_dirs`].
    pub fn allows_data_dir(&self, folder: &Path) -> bool {
        is_plain_absolute(folder)
            && self.data_dirs.iter().any(|allowed| folder.starts_with(allowed))
    }
}

fn is_plain_absolute(path: &Path) -> bool {
    path.is_absolute()
        && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_means_the_defaults() {
        let settings = Settings::parse(b"{}").unwrap();
        assert_eq!(settings.state_dir, Path::new("/var/lib/cni/ipam-delegated"));
        assert_eq!(settings.gc_grace, Duration::from_secs(300));
    }

    #[test]
    fn bad_settings_name_their_key() {
        for (json, start) in [
            (r#"{"stateDir":"state"}"#, "stateDir: "),
            (r#"{"stateDir":1}"#, "stateDir: "),
            (r#"{"gcGrace":"soon"}"#, "gcGrace: "),
            (r#"{"dataDirs":["/var/../etc"]}"#, "dataDirs: "),
            (r#"{"node":""}"#, "node: "),
            (r#"{"statedir":"/x"}"#, "statedir: "),
            (r#"{} {}"#, "not one JSON object"),
        ] {
            let error = Settings::parse(json.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(start), "{json}: {error}");
        }
    }

    #[test]
    fn data_dirs_hold_what_lies_inside() {
        let settings = Settings::default();
        assert!(settings.allows_data_dir(Path::new("/var/lib/cni/networks")));
        for path in ["/var/lib/cni/../../../etc", "/var/lib/cnix", "networks", "/run/x"] {
            assert!(!settings.allows_data_dir(Path::new(path)), "{path}");
        }
    }
}
