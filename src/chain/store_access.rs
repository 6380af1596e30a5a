//! How a section `ipam` leads to a store: the servers, and the files that their client reads. A record
//! identifies the store; the present configuration may give another way to it.

use std::path::Path;

use serde_json::{Map, Value};

use super::entry::is_entry_key;
use ipam_kit::delegate::selector_keys::{CHAIN_KEYS, SELECTOR_KEYS};

/// Ends of keys, in small letters, whose values are servers, at any depth. A string with `://` is a server
/// under any key.
const SERVER_KEYS: [&str; 8] =
    ["endpoint", "endpoints", "kubeconfig", "providerfile", "server", "servers", "url", "urls"];

/// Ends of keys, in small letters, whose values are files of a client, at any depth.
const FILE_KEYS: [&str; 8] = [
    "cafile",
    "cafilefile",
    "certfile",
    "keyfile",
    "kubeconfig",
    "passwordfile",
    "token_file",
    "tokenfile",
];

/// A server that a section names.
#[derive(Debug, PartialEq)]
pub(crate) struct NamedServer {
    /// The store it belongs to; empty if any delegate may read it.
    store: String,
    scheme: Option<String>,
    /// Host and port, with a path if there is one.
    address: String,
}

impl NamedServer {
    /// Every server that a section names, except those of other delegates.
    pub(crate) fn all(ipam: &Map<String, Value>) -> Vec<Self> {
        let mut found = Vec::new();
        for (key, value) in ipam.iter().filter(|(key, _)| *key != "delegates") {
            collect_servers(store_of_key(key, value), key, value, &mut found);
        }
        found
    }

    fn parse(store: &str, text: &str) -> Self {
        let (scheme, rest) = match text.trim().split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text.trim()),
        };
        let rest = rest.trim_end_matches('/');
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        Self { store: store.to_owned(), scheme, address: host.to_ascii_lowercase() + path }
    }

    /// Whether what is meant for this server may go to another one. A secret for TLS stays in TLS.
    fn covers(&self, other: &Self) -> bool {
        let loses_tls =
            self.scheme.as_deref() == Some("https") && other.scheme.as_deref() == Some("http");
        self.store == other.store && self.address == other.address && !loses_tls
    }

    /// Whether it is of this store, or of any.
    fn may_serve(&self, store: &str) -> bool {
        self.store == store || self.store.is_empty()
    }

    /// Host and port, without a name or a password in front.
    fn shown(&self) -> &str {
        let host = self.address.split(['?', '#']).next().unwrap_or_default();
        host.rsplit_once('@').map_or(host, |(_, host)| host)
    }
}

/// The servers of the record and those of the present configuration, which differ.
pub(crate) struct ChangedServers {
    pub recorded: String,
    pub present: String,
}

impl ChangedServers {
    /// Both lists for people; `None` if they are the same.
    pub(crate) fn between(
        recorded: &Map<String, Value>,
        present: &Map<String, Value>,
    ) -> Option<Self> {
        let [recorded, present] = [recorded, present].map(|ipam| {
            let servers = NamedServer::all(ipam);
            servers.iter().map(NamedServer::shown).collect::<Vec<_>>().join(", ")
        });
        (recorded != present).then_some(Self { recorded, present })
    }
}

/// Removes from the present section the settings whose secrets may be meant for other servers than the
/// recorded ones: each recorded server has to be among the present ones. If a section names servers of its
/// own, only these count for it.
pub(crate) fn remove_settings_for_other_servers(
    recorded: &Map<String, Value>,
    present: &mut Map<String, Value>,
) {
    let recorded_servers = NamedServer::all(recorded);
    let present_servers = NamedServer::all(present);
    let mut foreign = Vec::new();
    for server in &recorded_servers {
        if !present_servers.iter().any(|present| present.covers(server)) {
            foreign.push(server);
        }
    }
    present.retain(|key, value| {
        let store = store_of_key(key, value);
        let has_own_servers =
            !store.is_empty() && recorded_servers.iter().any(|server| server.store == store);
        if has_own_servers {
            !foreign.iter().any(|server| server.may_serve(store))
        } else {
            foreign.is_empty()
        }
    });
}

/// Whether a section names a server of each store that the record has servers of. A section without
/// the store that a selector had named leads nowhere.
pub(crate) fn names_each_store(
    recorded: &Map<String, Value>,
    present: &Map<String, Value>,
) -> bool {
    let present = NamedServer::all(present);
    let is_named = |recorded: &NamedServer| {
        let store = &recorded.store;
        store.is_empty() || present.iter().any(|server| server.may_serve(store))
    };
    NamedServer::all(recorded).iter().all(is_named)
}

/// Whether a section names the same store as the network configuration: selectors have chosen only
/// addresses.
pub(crate) fn chose_only_addresses(
    ipam: &Map<String, Value>,
    configured: &Map<String, Value>,
    overrides: &Map<String, Value>,
) -> bool {
    let mut keys = ipam.keys().chain(configured.keys());
    keys.all(|key| {
        ipam.get(key) == configured.get(key)
            || SELECTOR_KEYS.contains(&key.as_str())
            || overrides.contains_key(key)
    })
}

/// Replaces recorded files that cannot be read by those that the same section names now: all files of the
/// section, because a certificate goes with its key. A file that names servers identifies the store, and
/// stays.
pub(crate) fn refresh_files(recorded: &mut Map<String, Value>, present: &Map<String, Value>) {
    if recorded.iter().any(|(key, value)| is_lost_file(key, value, present.get(key))) {
        recorded.retain(|key, _| !is_replaceable(key));
        for (key, file) in present.iter().filter(|(key, _)| is_replaceable(key)) {
            recorded.insert(key.clone(), file.clone());
        }
    }
    for (key, value) in recorded.iter_mut().filter(|(key, _)| *key != "delegates") {
        if let (Value::Object(section), Some(Value::Object(today))) = (value, present.get(key)) {
            refresh_files(section, today);
        }
    }
}

/// Whether a recorded file cannot be read, while the configuration names another one.
fn is_lost_file(key: &str, recorded: &Value, present: Option<&Value>) -> bool {
    let Some(file) = recorded.as_str().filter(|file| is_replaceable(key) && !file.is_empty())
    else {
        return false;
    };
    present.is_some_and(|present| present != recorded) && Path::new(file).metadata().is_err()
}

/// Whether a key's value is a file that names no server.
fn is_replaceable(key: &str) -> bool {
    is_file_key(key) && !is_server_key(key)
}

/// The paths, as in `ipam.store.servers`, whose servers or files differ.
pub(crate) fn changed_paths(
    recorded: &Map<String, Value>,
    present: &Map<String, Value>,
) -> Vec<String> {
    let mut paths = Vec::new();
    collect_changed_paths("ipam", recorded, present, &mut paths);
    paths
}

fn collect_changed_paths(
    parent: &str,
    recorded: &Map<String, Value>,
    present: &Map<String, Value>,
    paths: &mut Vec<String>,
) {
    let added = present.keys().filter(|key| !recorded.contains_key(*key));
    for key in recorded.keys().chain(added).filter(|key| *key != "delegates") {
        let path = format!("{parent}.{key}");
        match (recorded.get(key), present.get(key)) {
            (before, now) if before == now => {}
            (Some(Value::Object(before)), Some(Value::Object(now))) => {
                collect_changed_paths(&path, before, now, paths);
            }
            (before, now) => {
                let mut servers = Vec::new();
                for value in [before, now].into_iter().flatten() {
                    collect_servers("", key, value, &mut servers);
                }
                if is_file_key(key) || !servers.is_empty() {
                    paths.push(path);
                }
            }
        }
    }
}

/// Whether two sections differ in a setting of their store.
pub(crate) fn store_settings_differ(
    recorded: &Map<String, Value>,
    present: &Map<String, Value>,
) -> bool {
    let mut keys = recorded.keys().chain(present.keys()).filter(|key| is_store_key(key));
    keys.any(|key| recorded.get(key) != present.get(key))
}

fn is_store_key(key: &str) -> bool {
    !CHAIN_KEYS.contains(&key) && !SELECTOR_KEYS.contains(&key) && !is_entry_key(key)
}

fn collect_servers(store: &str, key: &str, value: &Value, found: &mut Vec<NamedServer>) {
    match value {
        Value::Object(section) => {
            for (key, value) in section {
                collect_servers(store, key, value, found);
            }
        }
        Value::Array(list) => {
            for value in list {
                collect_servers(store, key, value, found);
            }
        }
        Value::String(text) if (is_server_key(key) || text.contains("://")) && !text.is_empty() => {
            found.push(NamedServer::parse(store, text));
        }
        _ => {}
    }
}

/// The store that a key of `ipam` belongs to: the first word of a section, or of a key with servers that
/// has more words; empty for any other key.
fn store_of_key<'a>(key: &'a str, value: &Value) -> &'a str {
    let end = key.find(|c: char| c == '_' || c.is_ascii_uppercase()).unwrap_or(key.len());
    if value.is_object() || (is_server_key(key) && end < key.len()) { &key[..end] } else { "" }
}

fn is_server_key(key: &str) -> bool {
    ends_with_any(key, &SERVER_KEYS)
}

fn is_file_key(key: &str) -> bool {
    ends_with_any(key, &FILE_KEYS)
}

fn ends_with_any(key: &str, ends: &[&str]) -> bool {
    let key = key.to_ascii_lowercase();
    ends.iter().any(|end| key.ends_with(end))
}
