use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::parse_duration;
use crate::cni::{parse_object, shown};
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

/// Every key of the file.
const KEYS: [&str; 7] =
    ["stateDir", "verbose", "logDir", "node", "dataDirs", "gcGrace", "takeover"];

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

    // By hand: what serde derives for it is several times as large.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut settings = Self::default();
        let file = parse_object(bytes, "it");
        for (key, value) in file.map_err(|error| error.with_code(ErrorCode::INVALID_CONFIG))? {
            let wrong = |expected: &str| {
                let message = ["expected ", expected, ", found ", &shown(&value)].concat();
                Error::config(&key, message)
            };
            let text = || value.as_str().ok_or_else(|| wrong("a text"));
            let flag = || value.as_bool().ok_or_else(|| wrong("true or false"));
            let folder = |value: &Value| {
                let folder = value.as_str().map(PathBuf::from).filter(|it| is_plain_absolute(it));
                folder.ok_or_else(|| wrong("an absolute path without .."))
            };
            match key.as_str() {
                known if value.is_null() && KEYS.contains(&known) => {}
                "stateDir" => settings.state_dir = folder(&value)?,
                "verbose" => settings.verbose = flag()?,
                "logDir" => settings.log_dir = folder(&value)?,
                "node" => {
                    let node = text()?;
                    let printable = node.chars().all(|c| c.is_ascii_graphic());
                    if node.is_empty() || node.len() > 253 || !printable {
                        return Err(wrong("1 to 253 printable characters without blanks"));
                    }
                    settings.node = Some(node.to_owned());
                }
                "dataDirs" => {
                    let folders = value.as_array().ok_or_else(|| wrong("an array of folders"))?;
                    settings.data_dirs = folders.iter().map(folder).collect::<Result<_>>()?;
                }
                "gcGrace" => {
                    // Zero is of use here: it judges every lease.
                    let zero = (value == "0s").then_some(Duration::ZERO);
                    let grace = zero.or_else(|| parse_duration(value.as_str()?));
                    settings.gc_grace = grace.ok_or_else(|| wrong("a duration such as 5m"))?;
                }
                "takeover" => settings.takeover = flag()?,
                _ => {
                    let message = ["unknown, expected one of ", &KEYS.join(", ")].concat();
                    return Err(Error::config(key, message));
                }
            }
        }
        Ok(settings)
    }

    /// Whether a selector's answer may set `dataDir` to this folder: absolute, without `..`, in
    /// one of [`Settings::data_dirs`], and not where our own state lies.
    pub fn allows_data_dir(&self, folder: &Path) -> bool {
        is_plain_absolute(folder)
            && self.data_dirs.iter().any(|allowed| folder.starts_with(allowed))
            && !folder.starts_with(&self.state_dir)
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
        let settings = Settings::parse(br#"{"stateDir": null}"#).unwrap();
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
            (r#"{"node":1}"#, "node: "),
            (r#"{"verbose":"yes"}"#, "verbose: "),
            (r#"{"dataDirs":"/x"}"#, "dataDirs: "),
            (r#"{} {}"#, "it is not one JSON object"),
        ] {
            let error = Settings::parse(json.as_bytes()).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
            assert!(error.to_string().starts_with(start), "{json}: {error}");
        }
    }

    #[test]
    fn data_dirs_hold_what_lies_inside() {
        let settings = Settings::default();
        assert!(settings.allows_data_dir(Path::new("/var/lib/cni/networks")));
        for path in [
            "/var/lib/cni/../../../etc",
            "/var/lib/cni/ipam-delegated/x",
            "/var/lib/cnix",
            "networks",
            "/run/x",
        ] {
            assert!(!settings.allows_data_dir(Path::new(path)), "{path}");
        }
    }
}
