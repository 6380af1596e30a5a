//! What a selector's answer may set of `ipam`. It is data: who writes it may be trusted less than the
//! author of the network.

use std::path::Path;

use serde_json::{Map, Value};

use crate::cni::shown;
use crate::error::{Error, Result};
use crate::host::Settings;
use crate::keys::folded;

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

/// Keys of `ipam` that a selector may set for delegates of ours. They say which addresses, and name no
/// server, no credential, and of files only those inside folders that the host allows.
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

/// Whether a key is the chain's own or says where logs go, in any letters: plugins in Go read keys in
/// upper and lower case alike.
pub fn is_chain_key(key: &str) -> bool {
    let key = folded(key);
    key.starts_with("log") || CHAIN_KEYS.iter().any(|known| folded(known) == key)
}

/// Refuses settings that no answer of a selector may make, whatever delegate they are for. `path` stands
/// before the key in the error. A verb that only releases reads no `resolvConf`.
///
/// # Errors
/// Error 7: a key is the chain's own, a folder or a file lies outside of those that the host allows, or a
/// key is there twice in different letters.
pub fn judge(
    set: &Map<String, Value>,
    settings: &Settings,
    releases: bool,
    path: &str,
) -> Result<()> {
    for (key, value) in set {
        // A key of others may hold control characters.
        let place = || format!("{path}{}", key.escape_debug());
        if is_chain_key(key) {
            let message = "only the network configuration may set it";
            return Err(
                Error::config(place(), message).advise("take it out of what the selector reads")
            );
        }
        let text = || Path::new(value.as_str().unwrap_or_default());
        if is_key(key, "dataDir") && !value.is_null() && !settings.allows_data_dir(text()) {
            let message = format!("{} is outside the allowed folders", shown(value));
            return Err(Error::config(place(), message)
                .advise(format!(
                "name a folder inside one of dataDirs in {}; add it there only if a selector may decide on it",
                Settings::PATH
            )));
        }
        // The same words for a file that is not there: the error does not tell which files exist.
        let names_file = is_key(key, "resolvConf") && !releases && !is_empty(value);
        if names_file && !settings.allows_resolv_conf(text()) {
            let message =
                format!("{} is not a regular file inside the allowed folders", shown(value));
            return Err(Error::config(place(), message)
                .advise(format!(
                "name a file that exists below /etc, /run/systemd/resolve, /run/NetworkManager or one of resolvDirs in {}",
                Settings::PATH
            )));
        }
        if let Some(other) = other_spelling(set, key).filter(|_| !value.is_null()) {
            return Err(twice(&place(), other));
        }
    }
    Ok(())
}

/// Another key that differs from this one in upper and lower case alone, and is not null.
pub fn other_spelling<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    let others = object.iter().filter(|(_, value)| !value.is_null());
    let mut others = others.map(|(other, _)| other.as_str()).filter(|other| *other != key);
    others.find(|other| is_key(other, key))
}

/// A key is there twice, in different letters.
pub fn twice(place: &str, other: &str) -> Error {
    let message =
        format!("{} is there, too, and a plugin in Go reads both as one key", other.escape_debug());
    Error::config(place, message).advise("write the key once")
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == ""
}

fn is_key(key: &str, known: &str) -> bool {
    folded(key) == folded(known)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(set: Value, releases: bool) -> Result<()> {
        let settings =
            Settings { resolv_dirs: vec!["/proc".into(), "/etc".into()], ..Settings::default() };
        judge(set.as_object().unwrap(), &settings, releases, "p.")
    }

    #[test]
    fn the_chains_keys_are_refused_in_any_letters() {
        for key in ["type", "Type", "NODE", "LOG_FILE", "logLevel", "delegate\u{17f}", "stateDIR"] {
            for value in [json!("x"), json!(null)] {
                let error = judged(json!({ key: value }), true).unwrap_err();
                assert!(error.to_string().starts_with(&format!("p.{key}: only")), "{error}");
            }
        }
        assert!(judged(json!({"ranges": [], "mylog": 1, "types": 1}), false).is_ok());
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
            assert!(judged(set.clone(), false).is_err(), "{set}");
        }
        for set in [
            json!({"dataDir": "/var/lib/cni/x"}),
            json!({"datadir": "/var/lib/cni/x"}),
            json!({"dataDir": null, "resolvConf": ""}),
            json!({"resolvConf": "/etc/passwd"}),
        ] {
            assert!(judged(set.clone(), false).is_ok(), "{set}");
        }
        let one = judged(json!({"resolvConf": "/root"}), false).unwrap_err().in_full();
        let other = judged(json!({"resolvConf": "/roox"}), false).unwrap_err().in_full();
        assert_eq!(one.replace("/root", "/roox"), other);
        assert!(judged(json!({"resolvConf": "/root"}), true).is_ok());
    }

    #[test]
    fn a_key_stands_once_whatever_its_letters() {
        let error = judged(json!({"ranges": [], "Ranges": []}), false).unwrap_err();
        assert!(error.to_string().contains("anges is there, too"), "{error}");
        assert!(judged(json!({"ranges": [], "Ranges": null}), false).is_ok());
    }
}
