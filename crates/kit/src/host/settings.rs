use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{parse_duration_or_zero, read_trusted};
use crate::cni::{Verb, parse_object, shown};
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
    /// Folders in which a selector's answer may name a `resolvConf`; `resolvDirs` adds to those
    /// that every host has.
    pub resolv_dirs: Vec<PathBuf>,
    /// Folders in which a network may name a kubeconfig (`kubeconfigDirs`); `None`: any file.
    pub kubeconfig_dirs: Option<Vec<PathBuf>>,
    /// How young a lease must be for GC to leave it alone (`gcGrace`).
    pub gc_grace: Duration,
    /// Whether a requested address is taken from another owner, where `ipam.takeover` does not say
    /// (`takeover`).
    pub takeover: bool,
    /// Why the file could not be read: these are the defaults in its place, for a verb that
    /// releases.
    pub fault: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/cni/ipam-delegated"),
            verbose: cfg!(feature = "verbose"),
            log_dir: PathBuf::from("/var/log/cni"),
            node: None,
            data_dirs: vec![PathBuf::from("/var/lib/cni")],
            resolv_dirs: RESOLV_DIRS.map(PathBuf::from).to_vec(),
            kubeconfig_dirs: None,
            gc_grace: Duration::from_secs(300),
            takeover: false,
            fault: None,
        }
    }
}

/// Where name resolution is configured.
const RESOLV_DIRS: [&str; 3] = ["/etc", "/run/systemd/resolve", "/run/NetworkManager"];

impl Settings {
    /// The settings file.
    pub(crate) const PATH: &'static str = "/etc/cni/ipam-delegated.json";

    /// Reads the settings file; the defaults if it is missing.
    pub fn load() -> Result<Self> {
        match read_trusted(Path::new(Self::PATH))? {
            Some(bytes) => Self::parse(&bytes).map_err(|error| error.within(Self::PATH)),
            None if fs::symlink_metadata(Self::PATH).is_ok_and(|found| found.is_symlink()) => {
                let error = io::Error::new(ErrorKind::NotFound, "dangling symbolic link");
                Err(Error::io(format!("cannot read {}", Self::PATH), error))
            }
            None => Ok(Self::default()),
        }
    }

    /// [`Settings::load`] for a verb: DEL and CHECK go on with the defaults where the file is broken, for
    /// a record in the default state folder says what is held.
    pub(crate) fn load_for(verb: Option<Verb>) -> Result<Self> {
        match Self::load() {
            Err(error) if matches!(verb, Some(Verb::Del | Verb::Check)) => {
                Ok(Self { fault: Some(error.in_full()), ..Self::default() })
            }
            loaded => loaded,
        }
    }

    /// Fails if the file could not be read, with `what` follows from that.
    ///
    /// # Errors
    /// Error 7 names the file, its fault, and `what`.
    pub fn refuse_fault(&self, what: &str) -> Result<()> {
        let Some(fault) = &self.fault else { return Ok(()) };
        let message = format!("{fault}; so {what}");
        Err(Error::new(ErrorCode::INVALID_CONFIG, message)
            .advise(format!("correct {}; the runtime retries a DEL", Self::PATH)))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let object = parse_object(bytes, "the file")
            .map_err(|error| error.with_code(ErrorCode::INVALID_CONFIG))?;
        let file: SettingsFile = serde_path_to_error::deserialize(Value::Object(object))
            .map_err(|error| Error::config(error.path(), error.inner()))?;
        let mut settings = Self::default();
        settings.resolv_dirs.extend(file.resolv_dirs.unwrap_or_default());
        Ok(Self {
            state_dir: file.state_dir.unwrap_or(settings.state_dir),
            verbose: file.verbose.unwrap_or(settings.verbose),
            log_dir: file.log_dir.unwrap_or(settings.log_dir),
            node: file.node,
            data_dirs: file.data_dirs.unwrap_or(settings.data_dirs),
            kubeconfig_dirs: file.kubeconfig_dirs,
            gc_grace: file.gc_grace.unwrap_or(settings.gc_grace),
            takeover: file.takeover.unwrap_or(settings.takeover),
            ..settings
        })
    }

    /// Whether a selector's answer may set `dataDir` to this folder: absolute, without `..`, in
    /// one of [`Settings::data_dirs`], and not where our own state lies.
    pub(crate) fn allows_data_dir(&self, folder: &Path) -> bool {
        is_plain_absolute(folder)
            && self.data_dirs.iter().any(|allowed| folder.starts_with(allowed))
            && !folder.starts_with(&self.state_dir)
    }

    /// Whether a selector's answer may set `resolvConf` to this file: a regular one that lies in
    /// one of [`Settings::resolv_dirs`] when all links are resolved.
    pub(crate) fn allows_resolv_conf(&self, file: &Path) -> bool {
        is_file_inside(file, &self.resolv_dirs)
    }

    /// Refuses a kubeconfig that does not lie in one of [`Settings::kubeconfig_dirs`] when all
    /// links are resolved; `key` names it.
    ///
    /// # Errors
    /// Error 7. A missing file gives the same error: it must not show which files exist.
    pub fn refuse_kubeconfig(&self, key: &str, file: &Path) -> Result<()> {
        let Some(folders) = &self.kubeconfig_dirs else { return Ok(()) };
        if is_file_inside(file, folders) {
            return Ok(());
        }
        let message = format!(
            "{file:?} is not a regular file inside one of kubeconfigDirs in {}",
            Self::PATH
        );
        Err(Error::config(key, message).advise(
            "name a kubeconfig in one of these folders; extend kubeconfigDirs only if the authors of networks may use it",
        ))
    }
}

/// The file as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct SettingsFile {
    #[serde(deserialize_with = "folder")]
    state_dir: Option<PathBuf>,
    #[serde(deserialize_with = "flag")]
    verbose: Option<bool>,
    #[serde(deserialize_with = "folder")]
    log_dir: Option<PathBuf>,
    #[serde(deserialize_with = "node_name")]
    node: Option<String>,
    #[serde(deserialize_with = "folders")]
    data_dirs: Option<Vec<PathBuf>>,
    #[serde(deserialize_with = "folders")]
    resolv_dirs: Option<Vec<PathBuf>>,
    #[serde(deserialize_with = "folders")]
    kubeconfig_dirs: Option<Vec<PathBuf>>,
    #[serde(deserialize_with = "grace")]
    gc_grace: Option<Duration>,
    #[serde(deserialize_with = "flag")]
    takeover: Option<bool>,
}

fn folder<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    member(deserializer, parse_folder)
}

fn folders<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<PathBuf>>, D::Error> {
    member(deserializer, |value| {
        let folders = value.as_array().ok_or_else(|| mismatch("an array of folders", value))?;
        folders.iter().map(parse_folder).collect()
    })
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    member(deserializer, |value| value.as_bool().ok_or_else(|| mismatch("true or false", value)))
}

fn node_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    member(deserializer, |value| {
        let name = value.as_str().ok_or_else(|| mismatch("a string", value))?;
        let is_printable = name.chars().all(|c| c.is_ascii_graphic());
        if name.is_empty() || name.len() > 253 || !is_printable {
            return Err(mismatch("1 to 253 printable characters without spaces", value));
        }
        Ok(name.to_owned())
    })
}

fn grace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    // With no grace GC releases leases of any age.
    member(deserializer, |value| {
        let time = value.as_str().and_then(parse_duration_or_zero);
        time.ok_or_else(|| mismatch("a duration such as 5m", value))
    })
}

/// Reads a member, for which null means absent.
fn member<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl FnOnce(&Value) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    if value.is_null() {
        return Ok(None);
    }
    parse(&value).map(Some).map_err(serde::de::Error::custom)
}

fn parse_folder(value: &Value) -> Result<PathBuf, String> {
    let path = value.as_str().map(PathBuf::from).filter(|path| is_plain_absolute(path));
    path.ok_or_else(|| mismatch("an absolute path without ..", value))
}

fn mismatch(expected: &str, found: &Value) -> String {
    format!("expected {expected}, found {}", shown(found))
}

/// Whether a regular file lies in one of these folders when all links are resolved.
fn is_file_inside(file: &Path, folders: &[PathBuf]) -> bool {
    let real = if is_plain_absolute(file) { file.canonicalize().ok() } else { None };
    let Some(real) = real.filter(|real| real.is_file()) else { return false };
    // Such a folder may be a link itself, as /var/run is.
    let mut folders = folders.iter();
    folders.any(|it| it.canonicalize().is_ok_and(|folder| real.starts_with(folder)))
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
            (
                r#"{"stateDir":"state"}"#,
                "stateDir: expected an absolute path without .., found \"state\"",
            ),
            (r#"{"stateDir":1}"#, "stateDir: expected an absolute path without .., found a number"),
            (r#"{"gcGrace":"soon"}"#, "gcGrace: expected a duration such as 5m, found \"soon\""),
            (r#"{"gcGrace":0}"#, "gcGrace: expected a duration such as 5m, found a number"),
            (
                r#"{"dataDirs":["/var/../etc"]}"#,
                "dataDirs: expected an absolute path without .., found \"/var/../etc\"",
            ),
            (
                r#"{"node":""}"#,
                "node: expected 1 to 253 printable characters without spaces, found \"\"",
            ),
            (r#"{"statedir":"/x"}"#, "statedir: unknown"),
            (r#"{"statedir":null}"#, "statedir: unknown"),
            (r#"{"node":1}"#, "node: expected a string, found a number"),
            (r#"{"verbose":"yes"}"#, "verbose: expected true or false, found \"yes\""),
            (
                r#"{"kubeconfigDirs":["x"]}"#,
                "kubeconfigDirs: expected an absolute path without .., found \"x\"",
            ),
            (r#"{"dataDirs":"/x"}"#, "dataDirs: expected an array of folders, found \"/x\""),
            (r#"{} {}"#, "the file is not one JSON object"),
        ] {
            let error = Settings::parse(json.as_bytes()).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
            assert!(error.to_string().starts_with(start), "{json}: {error}");
        }
    }

    #[test]
    fn a_kubeconfig_lies_in_a_folder_that_the_host_names() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for folder in ["open", "open/more", "closed"] {
            fs::create_dir(path(folder)).unwrap();
            fs::write(path(folder).join("config"), "x").unwrap();
        }
        let link = std::os::unix::fs::symlink;
        link(path("open"), path("link")).unwrap();
        link(path("closed/config"), path("open/out")).unwrap();
        link(path("open/config"), path("closed/in")).unwrap();
        let allows = |dirs: &str, file: &str| {
            let settings = Settings::parse(format!(r#"{{"kubeconfigDirs":{dirs}}}"#).as_bytes());
            settings.unwrap().refuse_kubeconfig("ipam.kube.kubeconfig", &path(file)).is_ok()
        };
        let [open, link] = ["open", "link"].map(|name| format!("[{:?}]", path(name)));
        for (file, inside) in [
            ("open/config", true),
            ("open/more/config", true),
            ("link/config", true),
            ("closed/in", true),
            ("open/out", false),
            ("open/absent", false),
            ("open/more", false),
            ("open/../closed/config", false),
            ("closed/config", false),
        ] {
            assert_eq!([allows(&open, file), allows(&link, file)], [inside; 2], "{file}");
            assert!(allows("null", file) && !allows("[]", file), "{file}");
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
