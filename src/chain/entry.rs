//! The list `ipam.delegates`: which delegates, and what each entry says of its own.

use std::time::Duration;

use serde_json::{Map, Value};

use ipam_kit::cni::{kind, shown};
use ipam_kit::delegate::selector_keys::is_chain_key;
use ipam_kit::error::{Error, Result};
use ipam_kit::host::parse_duration;
pub(crate) use ipam_kit::pool::Placing;

/// The entries of `ipam.delegates`.
///
/// # Errors
/// The list is missing or empty, or an entry is malformed.
pub(crate) fn parse_entries(ipam: &Map<String, Value>) -> Result<Vec<DelegateEntry>> {
    let example = "as in \"delegates\": [\"ipam-ds-static\", \"host-local\"]";
    let list = match ipam.get("delegates") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(Value::Array(_)) => {
            return Err(Error::config("ipam.delegates", "no delegate is named").advise(example));
        }
        Some(other) => {
            return Err(Error::config(
                "ipam.delegates",
                format!("expected an array, found {}", kind(other)),
            )
            .advise(example));
        }
        None => return Err(Error::config("ipam.delegates", "missing").advise(example)),
    };
    list.iter()
        .enumerate()
        .map(|(i, value)| DelegateEntry::parse(value, format!("ipam.delegates[{i}]")))
        .collect()
}

/// The object form of an entry that is a name.
pub(crate) fn object_form(name: Value) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("type".to_owned(), name);
    entry
}

/// Whether a key of an entry steers the chain: a delegate is not run with it, but for the names of pools
/// that an allocator of ours serves. `pools` steers where it is a word, which an allocator's entry never has.
pub(crate) fn is_entry_key(key: &str) -> bool {
    ENTRY_KEYS.contains(&key)
}

/// The keys of an entry that steer the chain.
pub(crate) const ENTRY_KEYS: [&str; 5] = ["type", "timeout", "serves", "answers", "sets"];

/// An entry of `ipam.delegates`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DelegateEntry {
    pub path: String,
    pub name: String,
    pub timeout: Option<Duration>,
    pub serves: Option<Vec<String>>,
    pub answers_any: bool,
    pub sets: Vec<String>,
    pub placing: Option<Placing>,
    pub overrides: Map<String, Value>,
}

impl DelegateEntry {
    fn parse(value: &Value, path: String) -> Result<Self> {
        let mut object = match value {
            Value::String(_) => object_form(value.clone()),
            Value::Object(object) => object.clone(),
            _ => {
                let found = kind(value);
                return Err(Error::config(
                    path,
                    format!("expected a delegate's name or an object with `type`, found {found}"),
                ));
            }
        };
        let name = match object.remove("type") {
            Some(Value::String(name)) => name,
            _ => return Err(Error::config(format!("{path}.type"), "expected the delegate's name")),
        };
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err(Error::config(path, format!("{name:?} is no delegate's name"))
                .advise("name a program of CNI_PATH, without a slash"));
        }
        let timeout = match object.remove("timeout") {
            None => None,
            Some(value) => Some(parse_timeout(&value, &format!("{path}.timeout"))?),
        };
        let serves = match object.remove("serves") {
            None => None,
            Some(value) => Some(serde_json::from_value(value).map_err(|_| {
                Error::config(format!("{path}.serves"), "expected an array of pool names")
                    .advise(r#"as in ["blue"]"#)
            })?),
        };
        let answers_any = match object.remove("answers") {
            None => false,
            Some(Value::String(any)) if any == "any" => true,
            Some(value) => {
                let message = ["expected \"any\", found ", &shown(&value)].concat();
                return Err(Error::config([&path, ".answers"].concat(), message)
                    .advise("leave it out: an answer is then compared with the pools"));
            }
        };
        let sets = object.remove("sets").map_or(Ok(Vec::new()), |sets| parse_sets(&sets, &path))?;
        let placing = take_placing(&mut object, &path)?;
        Ok(Self { path, name, timeout, serves, answers_any, sets, placing, overrides: object })
    }

    /// Fails where the entry says what only a selector's may, and is not a selector.
    pub(crate) fn refuse_selector_keys(&self) -> Result<()> {
        let key = match (self.sets.is_empty(), self.placing) {
            (false, _) => "sets",
            (true, Some(_)) => "pools",
            (true, None) => return Ok(()),
        };
        let message = format!("{} is not a selector", self.name);
        Err(Error::config(format!("{}.{key}", self.path), message)
            .advise("write it into the object of a selector (ipam-ds-…)"))
    }
}

/// What becomes of the pools that are there: a word. Anything else is the delegate's own setting.
fn take_placing(object: &mut Map<String, Value>, path: &str) -> Result<Option<Placing>> {
    let Some(value @ Value::String(word)) = object.get("pools") else { return Ok(None) };
    let Some(placing) = Placing::parse(word) else {
        let found = shown(value);
        let message = format!("expected \"add\", \"replace\" or an array of pools, found {found}");
        return Err(Error::config(format!("{path}.pools"), message).advise(
            "add keeps the pools of the selectors before it, replace puts its own in their place",
        ));
    };
    object.remove("pools");
    Ok(Some(placing))
}

/// The sections that an entry opens to its selector.
fn parse_sets(sets: &Value, path: &str) -> Result<Vec<String>> {
    let path = format!("{path}.sets");
    let sections: Option<Vec<&str>> =
        sets.as_array().and_then(|sets| sets.iter().map(Value::as_str).collect());
    let sections = sections.ok_or_else(|| {
        Error::config(&path, "expected an array of keys of ipam").advise(r#"as in ["kube"]"#)
    })?;
    match sections.iter().find(|section| is_chain_key(section)) {
        None => Ok(sections.into_iter().map(str::to_owned).collect()),
        Some(section) => Err(Error::config(
            path,
            format!("{section} is a key of the chain, which a selector may not set"),
        )
        .advise("take it out of sets")),
    }
}

pub(crate) fn parse_timeout(value: &Value, path: &str) -> Result<Duration> {
    value.as_str().and_then(parse_duration).ok_or_else(|| {
        Error::config(path, format!("{} is no duration such as \"10s\"", shown(value)))
    })
}
