//! The keys of `ipam` that a selector's answer may set. It is data: its writer may be trusted less
//! than the author of the network.

use std::path::Path;

use serde_json::{Map, Value};

use crate::cni::shown;
use crate::error::{Error, Result};
use crate::host::Settings;
use crate::keys::{folded, is_same_to_go};

/// Keys of `ipam` that decide about the chain itself: the network configuration alone sets them.
pub const CHAIN_KEYS: [&str; 11] = [
    "type",
    "delegates",
    "timeout",
    "stateDir",
    "node",
    "verbose",
    "log",
    "logDir",
    "logFile",
    "log_file",
    "logfile",
];

/// Keys of `ipam` that a selector may set for our delegates. They choose addresses. They never name
/// a server, a credential, or a file outside of the folders that the host allows.
pub const SELECTOR_KEYS: [&str; 11] = [
    "ranges",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "exclude",
    "pools",
    "routes",
    "rangeRules",
    "dataDir",
    "resolvConf",
];

/// Whether a key is the chain's own or configures logs. Case is ignored, as plugins in Go do.
pub fn is_chain_key(key: &str) -> bool {
    folded(key).take(3).eq("log".chars())
        || CHAIN_KEYS.iter().any(|known| is_same_to_go(key, known))
}

/// Refuses settings that a selector may not make for any delegate. Errors put `path` before the
/// key. A verb that only releases does not read `resolvConf`.
///
/// # Errors
/// Error 7: a key is the chain's own, a folder or a file lies outside of those that the host
/// allows, or a key is there twice in different case.
pub fn refuse_forbidden(
    set: &Map<String, Value>,
    settings: &Settings,
    releases: bool,
    path: &str,
) -> Result<()> {
    for (key, value) in set {
        // A key of others may hold control characters.
        let path = format!("{path}{}", key.escape_debug());
        if is_chain_key(key) {
            let message = "only the network configuration may set it";
            return Err(Error::config(path, message).advise("remove it from the selector's source"));
        }
        let file = Path::new(value.as_str().unwrap_or_default());
        if is_same_to_go(key, "dataDir") && !value.is_null() && !settings.allows_data_dir(file) {
            let message = format!("{} is outside the allowed folders", shown(value));
            return Err(Error::config(path, message)
                .advise(format!(
                "name a folder inside one of dataDirs in {}; extend dataDirs only if a selector may choose that folder",
                Settings::PATH
            )));
        }
        // A missing file gives the same error: it must not show which files exist.
        let names_file = is_same_to_go(key, "resolvConf") && !releases && !is_empty(value);
        if names_file && !settings.allows_resolv_conf(file) {
            let message =
                format!("{} is not a regular file inside the allowed folders", shown(value));
            return Err(Error::config(path, message)
                .advise(format!(
                "name an existing file below /etc, /run/systemd/resolve, /run/NetworkManager or one of resolvDirs in {}",
                Settings::PATH
            )));
        }
        if let Some(other) = other_spellings(set, key).next().filter(|_| !value.is_null()) {
            return Err(twice(&path, other));
        }
    }
    Ok(())
}

/// The other keys that differ from this one only in case, and are not null.
pub fn other_spellings<'a>(
    object: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a str> {
    let others = object.iter().filter(|(_, value)| !value.is_null());
    let others = others.map(|(other, _)| other.as_str());
    others.filter(move |other| *other != key && is_same_to_go(other, key))
}

/// The error of a key that is there twice, in different case.
pub fn twice(path: &str, other: &str) -> Error {
    let message =
        format!("{} is set, too: plugins in Go read both as one key", other.escape_debug());
    Error::config(path, message).advise("keep one of the two")
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == ""
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(set: Value, releases: bool) -> Result<()> {
        let settings =
            Settings { resolv_dirs: vec!["/proc".into(), "/etc".into()], ..Settings::default() };
        refuse_forbidden(set.as_object().unwrap(), &settings, releases, "p.")
    }

    #[test]
    fn the_chains_keys_are_refused_in_any_letters() {
        for key in ["type", "Type", "NODE", "LOG_FILE", "logLevel", "delegate\u{17f}", "stateDIR"] {
            for value in [json!("x"), json!(null)] {
                let error = refused(json!({ key: value }), true).unwrap_err();
                assert!(error.to_string().starts_with(&format!("p.{key}: only")), "{error}");
            }
        }
        assert!(refused(json!({"ranges": [], "mylog": 1, "types": 1}), false).is_ok());
    }

    #[test]
    fn folders_and_files_are_those_that_the_host_allows() {
        for set in [
            json!({"dataDir": "/etc"}),
            json!({"DATADIR": "/etc"}),
            json!({"datadir": 5}),
            json!({"resolvConf": "/root/nothing"}),
            json!({"resolvConf": "/etc/nothing"}),
            json!({"RESOLVCONF": "/etc"}),
            json!({"resolvConf": "/etc/../proc/../root"}),
            // A link that leads elsewhere.
            json!({"resolvConf": "/proc/self/exe"}),
            json!({"resolvConf": ["/etc/passwd"]}),
        ] {
            assert!(refused(set.clone(), false).is_err(), "{set}");
        }
        for set in [
            json!({"dataDir": "/var/lib/cni/x"}),
            json!({"datadir": "/var/lib/cni/x"}),
            json!({"dataDir": null, "resolvConf": ""}),
            json!({"resolvConf": "/etc/passwd"}),
        ] {
            assert!(refused(set.clone(), false).is_ok(), "{set}");
        }
        let one = refused(json!({"resolvConf": "/root"}), false).unwrap_err().in_full();
        let other = refused(json!({"resolvConf": "/roox"}), false).unwrap_err().in_full();
        assert_eq!(one.replace("/root", "/roox"), other);
        assert!(refused(json!({"resolvConf": "/root"}), true).is_ok());
    }

    #[test]
    fn a_key_stands_once_whatever_its_letters() {
        let error = refused(json!({"ranges": [], "Ranges": []}), false).unwrap_err();
        assert!(error.to_string().contains("anges is set, too"), "{error}");
        assert!(refused(json!({"ranges": [], "Ranges": null}), false).is_ok());
    }
}
