use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::{parse_duration, read_trusted};
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
    /// Folders in which a selector's answer may name a `resolvConf`; `resolvDirs` adds to those that every
    /// host has.
    pub resolv_dirs: Vec<PathBuf>,
    /// How young a lease must be for GC to leave it alone (`gcGrace`).
    pub gc_grace: Duration,
    /// Whether a requested address is taken from another owner, where `ipam.takeover` does not say
    /// (`takeover`).
    pub takeover: bool,
    /// Why the file could not be read: these are the defaults in its place, for a verb that releases.
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
            gc_grace: Duration::from_secs(300),
            takeover: false,
            fault: None,
        }
    }
}

/// Every key of the file.
const KEYS: [&str; 8] =
    ["stateDir", "verbose", "logDir", "node", "dataDirs", "resolvDirs", "gcGrace", "takeover"];

/// Where name resolution is configured.
const RESOLV_DIRS: [&str; 3] = ["/etc", "/run/systemd/resolve", "/run/NetworkManager"];

impl Settings {
    /// The settings file.
    pub(crate) const PATH: &'static str = "/etc/cni/ipam-delegated.json";

    /// Reads the settings file; the defaults when there is none.
    pub fn load() -> Result<Self> {
        match read_trusted(Path::new(Self::PATH))? {
            Some(bytes) => Self::parse(&bytes).map_err(|error| error.within(Self::PATH)),
            None if fs::symlink_metadata(Self::PATH).is_ok_and(|found| found.is_symlink()) => {
                let error = io::Error::new(ErrorKind::NotFound, "the link leads to a missing file");
                Err(Error::io(["cannot read ", Self::PATH].concat(), error))
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

    /// Fails where the file could not be read: then `what` is not known.
    ///
    /// # Errors
    /// Error 7 names the file, its fault, and `what`.
    pub fn refuse_fault(&self, what: &str) -> Result<()> {
        let Some(fault) = &self.fault else { return Ok(()) };
        let message = [fault, "; without it ", what].concat();
        Err(Error::new(ErrorCode::INVALID_CONFIG, message)
            .advise(["mend ", Self::PATH, "; the runtime repeats a DEL"].concat()))
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
                folder.ok_or_else(|| {
                    let message = ["expected an absolute path without .., found ", &shown(value)];
                    Error::config(&key, message.concat())
                })
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
                "dataDirs" | "resolvDirs" => {
                    let folders = value.as_array().ok_or_else(|| wrong("an array of folders"))?;
                    let mut folders = folders.iter().map(folder).collect::<Result<_>>()?;
                    match key.as_str() {
                        "dataDirs" => settings.data_dirs = folders,
                        _ => settings.resolv_dirs.append(&mut folders),
                    }
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
    pub(crate) fn allows_data_dir(&self, folder: &Path) -> bool {
        is_plain_absolute(folder)
            && self.data_dirs.iter().any(|allowed| folder.starts_with(allowed))
            && !folder.starts_with(&self.state_dir)
    }

    /// Whether a selector's answer may set `resolvConf` to this file: a regular one that lies in one of
    /// [`Settings::resolv_dirs`] when all links are resolved.
    pub(crate) fn allows_resolv_conf(&self, file: &Path) -> bool {
        let real = if is_plain_absolute(file) { file.canonicalize().ok() } else { None };
        let Some(real) = real.filter(|real| real.is_file()) else { return false };
        // Such a folder may be a link itself, as /var/run is.
        let mut folders = self.resolv_dirs.iter();
        folders.any(|it| it.canonicalize().is_ok_and(|folder| real.starts_with(folder)))
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
