//! The list `ipam.delegates`: which delegates run, and the settings that each entry has.

use std::time::Duration;

use serde_json::{Map, Value};

use ipam_kit::cni::{kind, shown};
use ipam_kit::delegate::selector_keys::is_chain_key;
use ipam_kit::error::{Error, Result};
use ipam_kit::host::parse_duration;
pub(crate) use ipam_kit::pool::Placement;

/// The keys of an entry that the chain reads itself. A delegate does not get them, except `serves`: an
/// allocator must leave other pools' leases alone. The key `pools` counts only if it is a word, which an
/// allocator's entry never has.
pub(crate) const ENTRY_KEYS: [&str; 5] = ["type", "timeout", "serves", "answers", "sets"];

/// An entry of `ipam.delegates`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DelegateEntry {
    /// Its path in the configuration, as in `ipam.delegates[1]`.
    pub path: String,
    pub name: String,
    pub timeout: Option<Duration>,
    /// The names of the only pools it is shown.
    pub serves: Option<Vec<String>>,
    /// `"answers": "any"`: its answer is not compared with the pools.
    pub answers_any: bool,
    /// Keys of `ipam` that this selector may set, beside those of every selector.
    pub sets: Vec<String>,
    pub placing: Option<Placement>,
    /// All other keys, which override `ipam` for this delegate.
    pub overrides: Map<String, Value>,
}

/// Parses `ipam.delegates`.
///
/// # Errors
/// The list is missing or empty, or an entry is malformed.
pub(crate) fn parse_entries(ipam: &Map<String, Value>) -> Result<Vec<DelegateEntry>> {
    let fault = match ipam.get("delegates") {
        Some(Value::Array(list)) if !list.is_empty() => {
            let entries = list.iter().enumerate();
            return entries
                .map(|(i, value)| DelegateEntry::parse(value, format!("ipam.delegates[{i}]")))
                .collect();
        }
        Some(Value::Array(_)) => "expected at least one delegate".to_owned(),
        Some(other) => format!("expected an array, found {}", kind(other)),
        None => "missing".to_owned(),
    };
    Err(Error::config("ipam.delegates", fault).advise(
        "list the delegates in order, as in \"delegates\": [\"ipam-ds-static\", \"host-local\"]",
    ))
}

/// An entry in its object form; a name is `{"type": NAME}`. `None` if it is neither.
pub(crate) fn object_form(entry: &Value) -> Option<Map<String, Value>> {
    match entry {
        Value::Object(object) => Some(object.clone()),
        Value::String(_) => Some(Map::from_iter([("type".to_owned(), entry.clone())])),
        _ => None,
    }
}

/// Whether the chain reads this key of an entry itself.
pub(crate) fn is_entry_key(key: &str) -> bool {
    ENTRY_KEYS.contains(&key)
}

/// Parses a timeout; `path` is its path in the configuration.
pub(crate) fn parse_timeout(value: &Value, path: &str) -> Result<Duration> {
    let Some(text) = value.as_str() else {
        let message = format!("expected a duration such as \"10s\", found {}", kind(value));
        return Err(Error::config(path, message));
    };
    parse_duration(text).ok_or_else(|| {
        Error::config(path, format!("invalid duration {text:?}: expected one such as \"10s\""))
    })
}

impl DelegateEntry {
    fn parse(value: &Value, path: String) -> Result<Self> {
        let Some(mut object) = object_form(value) else {
            let found = kind(value);
            return Err(Error::config(
                path,
                format!("expected a delegate's name or an object with `type`, found {found}"),
            ));
        };
        Ok(Self {
            name: take_name(&mut object, &path)?,
            timeout: take_timeout(&mut object, &path)?,
            serves: take_serves(&mut object, &path)?,
            answers_any: take_answers_any(&mut object, &path)?,
            sets: take_sets(&mut object, &path)?,
            placing: take_placing(&mut object, &path)?,
            overrides: object,
            path,
        })
    }

    /// Fails if the entry has a key that only a selector's may have.
    pub(crate) fn refuse_selector_keys(&self) -> Result<()> {
        let key = match (self.sets.is_empty(), self.placing) {
            (false, _) => "sets",
            (true, Some(_)) => "pools",
            (true, None) => return Ok(()),
        };
        let message = format!("only a selector may have this key, and {} is not one", self.name);
        Err(Error::config(format!("{}.{key}", self.path), message)
            .advise("move it to the entry of a selector (ipam-ds-…)"))
    }
}

fn take_name(object: &mut Map<String, Value>, path: &str) -> Result<String> {
    let Some(Value::String(name)) = object.remove("type") else {
        return Err(Error::config(format!("{path}.type"), "expected the delegate's name"));
    };
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(Error::config(
            path,
            format!("invalid delegate name {name:?}: expected a file name"),
        )
        .advise("name a program in CNI_PATH, without a slash"));
    }
    Ok(name)
}

fn take_timeout(object: &mut Map<String, Value>, path: &str) -> Result<Option<Duration>> {
    let Some(value) = object.remove("timeout") else { return Ok(None) };
    parse_timeout(&value, &format!("{path}.timeout")).map(Some)
}

fn take_serves(object: &mut Map<String, Value>, path: &str) -> Result<Option<Vec<String>>> {
    let Some(value) = object.remove("serves") else { return Ok(None) };
    serde_json::from_value(value).map(Some).map_err(|_| {
        Error::config(format!("{path}.serves"), "expected an array of pool names")
            .advise(r#"for example "serves": ["blue"]"#)
    })
}

fn take_answers_any(object: &mut Map<String, Value>, path: &str) -> Result<bool> {
    let Some(value) = object.remove("answers") else { return Ok(false) };
    if value == "any" {
        return Ok(true);
    }
    let message = format!("expected \"any\", found {}", shown(&value));
    Err(Error::config(format!("{path}.answers"), message)
        .advise("remove the key: the chain then compares each answer with the pools"))
}

fn take_sets(object: &mut Map<String, Value>, path: &str) -> Result<Vec<String>> {
    let Some(value) = object.remove("sets") else { return Ok(Vec::new()) };
    let path = format!("{path}.sets");
    let keys = value.as_array().map(|keys| keys.iter().map(Value::as_str));
    let Some(keys) = keys.and_then(|keys| keys.collect::<Option<Vec<&str>>>()) else {
        return Err(Error::config(path, "expected an array of keys of ipam")
            .advise(r#"for example "sets": ["kube"]"#));
    };
    if let Some(key) = keys.iter().find(|key| is_chain_key(key)) {
        let message = format!("no selector may set {key}, a key of the chain");
        return Err(Error::config(path, message).advise("remove it from sets"));
    }
    Ok(keys.into_iter().map(str::to_owned).collect())
}

/// How the chain combines a selector's pools with those before: a word. Any other value of `pools` is the
/// delegate's own setting.
fn take_placing(object: &mut Map<String, Value>, path: &str) -> Result<Option<Placement>> {
    let Some(value @ Value::String(word)) = object.get("pools") else { return Ok(None) };
    let Some(placing) = Placement::parse(word) else {
        let found = shown(value);
        let message = format!("expected \"add\", \"replace\" or an array of pools, found {found}");
        return Err(Error::config(format!("{path}.pools"), message)
            .advise("add keeps the pools of earlier selectors, replace drops them"));
    };
    object.remove("pools");
    Ok(Some(placing))
}
