//! The way to a store as a section `ipam` has it: the servers, and the files that a client of them reads.
//! What identifies a store is the record's; the way to it may be today's.

use std::path::Path;

use serde_json::{Map, Value};

use super::entry::is_entry_key;
use ipam_kit::delegate::selector_keys::{CHAIN_KEYS, SELECTOR_KEYS};

/// How keys end, in small letters, that hold servers, at any depth. A text with `://` is a server under any
/// key.
const SERVERS: [&str; 7] =
    ["endpoint", "endpoints", "kubeconfig", "server", "servers", "url", "urls"];

/// How keys end, in small letters, that hold the files of a client, at any depth.
const FILES: [&str; 8] = [
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
    /// Of which store it is; empty where any delegate may read it.
    store: String,
    scheme: Option<String>,
    /// Host and port, with a path where there is one.
    place: String,
}

impl NamedServer {
    /// Every server that a section names, but those of other delegates.
    pub(crate) fn all(ipam: &Map<String, Value>) -> Vec<Self> {
        let mut found = Vec::new();
        for (key, value) in ipam.iter().filter(|(key, _)| *key != "delegates") {
            gather(store_named_by(key, value), key, value, &mut found);
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
        Self { store: store.to_owned(), scheme, place: host.to_ascii_lowercase() + path }
    }

    /// Whether what is meant for this server may go to another one. A secret for TLS stays in TLS.
    fn covers(&self, other: &Self) -> bool {
        let [ours, theirs] = [self, other].map(|server| server.scheme.as_deref());
        let is_stripped = (ours, theirs) == (Some("https"), Some("http"));
        (&self.store, &self.place) == (&other.store, &other.place) && !is_stripped
    }

    /// Host and port, without a name or a password in front.
    fn shown(&self) -> &str {
        let host = self.place.split(['?', '#']).next().unwrap_or_default();
        host.rsplit_once('@').map_or(host, |(_, host)| host)
    }
}

fn gather(store: &str, key: &str, value: &Value, found: &mut Vec<NamedServer>) {
    match value {
        Value::Object(section) => {
            section.iter().for_each(|(key, value)| gather(store, key, value, found));
        }
        Value::Array(list) => list.iter().for_each(|it| gather(store, key, it, found)),
        Value::String(text)
            if (ends(key, &SERVERS) || text.contains("://")) && !text.is_empty() =>
        {
            found.push(NamedServer::parse(store, text));
        }
        _ => {}
    }
}

fn ends(key: &str, ends: &[&str]) -> bool {
    let key = key.to_ascii_lowercase();
    ends.iter().any(|end| key.ends_with(end))
}

/// Whose key of `ipam` it is: the first word of a section, or of a key with servers that has more words.
fn store_named_by<'a>(key: &'a str, value: &Value) -> &'a str {
    let end = key.find(|c: char| c == '_' || c.is_ascii_uppercase()).unwrap_or(key.len());
    if value.is_object() || (ends(key, &SERVERS) && end < key.len()) { &key[..end] } else { "" }
}

/// Takes out of a newer section what may hold secrets that are not meant for the servers of the recorded
/// one: each of these has to be among today's. Where a section has servers of its own, these decide.
pub(crate) fn remove_settings_for_other_servers(
    recorded: &Map<String, Value>,
    newer: &mut Map<String, Value>,
) {
    let (before, todays) = (NamedServer::all(recorded), NamedServer::all(newer));
    let is_strange = |server: &&NamedServer| !todays.iter().any(|today| today.covers(server));
    let strange: Vec<&NamedServer> = before.iter().filter(is_strange).collect();
    newer.retain(|key, value| {
        let store = store_named_by(key, value);
        let has_its_own = !store.is_empty() && before.iter().any(|server| server.store == store);
        let speaks = |server: &&NamedServer| {
            !has_its_own || server.store == store || server.store.is_empty()
        };
        !strange.iter().any(speaks)
    });
}

/// Whether a section says about its store what the network configuration says: a selector has chosen
/// nothing but addresses.
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

/// Replaces recorded files that cannot be read by what the same section names now: all files of the
/// section, for a certificate goes with its key.
pub(crate) fn refresh_files(recorded: &mut Map<String, Value>, newer: &Map<String, Value>) {
    let is_file = |key: &str| ends(key, &FILES);
    let is_lost = |(key, value): (&String, &Value)| {
        let file = value.as_str().filter(|file| is_file(key) && !file.is_empty());
        newer.get(key).is_some_and(|today| today != value)
            && file.is_some_and(|file| Path::new(file).metadata().is_err())
    };
    if recorded.iter().any(is_lost) {
        recorded.retain(|key, _| !is_file(key));
        let files = newer.iter().filter(|(key, _)| is_file(key));
        recorded.extend(files.map(|(key, file)| (key.clone(), file.clone())));
    }
    for (key, value) in recorded.iter_mut().filter(|(key, _)| *key != "delegates") {
        if let (Value::Object(section), Some(Value::Object(today))) = (value, newer.get(key)) {
            refresh_files(section, today);
        }
    }
}

/// The keys, as in `ipam.store.servers`, whose servers or files are others by now.
pub(crate) fn changed_access_keys(
    recorded: &Map<String, Value>,
    newer: &Map<String, Value>,
) -> Vec<String> {
    let mut keys = Vec::new();
    differences("ipam", recorded, newer, &mut keys);
    keys
}

fn differences(
    path: &str,
    recorded: &Map<String, Value>,
    newer: &Map<String, Value>,
    keys: &mut Vec<String>,
) {
    let added = newer.keys().filter(|key| !recorded.contains_key(*key));
    for key in recorded.keys().chain(added).filter(|key| *key != "delegates") {
        let place = [path, ".", key].concat();
        match (recorded.get(key), newer.get(key)) {
            (before, now) if before == now => {}
            (Some(Value::Object(before)), Some(Value::Object(now))) => {
                differences(&place, before, now, keys);
            }
            (before, now) => {
                let mut servers = Vec::new();
                for value in [before, now].into_iter().flatten() {
                    gather("", key, value, &mut servers);
                }
                if ends(key, &FILES) || !servers.is_empty() {
                    keys.push(place);
                }
            }
        }
    }
}

/// Whether a section says anything else about its store than another.
pub(crate) fn store_settings_differ(
    recorded: &Map<String, Value>,
    newer: &Map<String, Value>,
) -> bool {
    let is_of_store = |key: &&String| {
        let key = key.as_str();
        !CHAIN_KEYS.contains(&key) && !SELECTOR_KEYS.contains(&key) && !is_entry_key(key)
    };
    let mut keys = recorded.keys().chain(newer.keys()).filter(is_of_store);
    keys.any(|key| recorded.get(key) != newer.get(key))
}

/// The servers of the record and those of today, where they are others.
pub(crate) fn changed_servers(
    recorded: &Map<String, Value>,
    newer: &Map<String, Value>,
) -> Option<[String; 2]> {
    let of = |ipam| {
        let servers = NamedServer::all(ipam);
        servers.iter().map(NamedServer::shown).collect::<Vec<_>>().join(", ")
    };
    let lists = [of(recorded), of(newer)];
    (lists[0] != lists[1]).then_some(lists)
}
