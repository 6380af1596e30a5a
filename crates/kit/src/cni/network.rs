use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::strict_value::StrictValue;
use super::{Args, IpamResult, NetworkName, RequestedAddress, Version};
use crate::error::{Error, ErrorCode, Result};

/// A network configuration, as a runtime or a chain sends it to an IPAM plugin on stdin.
///
/// Keys that are not known here belong to others and are kept.
#[derive(Clone, Debug)]
pub struct Network {
    version: Version,
    name: NetworkName,
    config: Map<String, Value>,
}

impl Network {
    /// Takes a configuration that names a supported version and a network, and has an `ipam`
    /// object.
    pub fn new(config: Map<String, Value>) -> Result<Self> {
        let version = Version::of(&config)?;
        let name = match config.get("name") {
            Some(Value::String(name)) => NetworkName::parse(name)?,
            Some(other) => {
                return Err(Error::config(
                    "name",
                    format!("expected a string, found {}", shown(other)),
                ));
            }
            None => return Err(Error::config("name", "missing network name")),
        };
        match config.get("ipam") {
            Some(Value::Object(_)) => Ok(Self { version, name, config }),
            Some(other) => {
                let message = format!("expected an object, found {}", kind(other));
                Err(Error::config("ipam", message))
            }
            None => {
                let missing = "missing: the network configuration has no IPAM section";
                let error = Error::config("ipam", missing);
                Err(if config.contains_key("plugins") {
                    error.advise(
                        "this is a list of plugins: send one of them, with the list's cniVersion and name",
                    )
                } else {
                    error
                })
            }
        }
    }

    /// The version to answer in.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The network's name.
    pub fn name(&self) -> &NetworkName {
        &self.name
    }

    /// The whole configuration.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The section `ipam`.
    pub fn ipam(&self) -> &Map<String, Value> {
        match &self.config["ipam"] {
            Value::Object(ipam) => ipam,
            _ => unreachable!("Network::new takes no other"),
        }
    }

    /// The section `ipam` as a type of the delegate's own.
    ///
    /// Errors name the path. Keys the type does not know are other delegates' keys.
    pub fn settings<T: DeserializeOwned>(&self) -> Result<T> {
        parse_value(&self.config["ipam"], "ipam")
    }

    /// A copy with another value at a top-level key.
    ///
    /// # Panics
    ///
    /// When `key` is one that [`Network::new`] checks and `value` would not pass.
    #[must_use]
    pub fn with(&self, key: &str, value: Value) -> Self {
        let mut config = self.config.clone();
        config.insert(key.to_owned(), value);
        Self::new(config).expect("the replaced value passes the checks of a network configuration")
    }

    /// The previous result, when there is one.
    pub fn prev_result(&self) -> Result<Option<IpamResult>> {
        match self.config.get("prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(value) => IpamResult::parse(value, "prevResult").map(Some),
        }
    }

    /// Ranges the runtime adds (`runtimeConfig.ipRanges`, in the form of `ipam.ranges`).
    pub fn ip_ranges(&self) -> Option<&Value> {
        self.config.get("runtimeConfig")?.get("ipRanges").filter(|ranges| !ranges.is_null())
    }

    /// The addresses asked for in the configuration and in `args`.
    pub(crate) fn requested(&self, args: &Args) -> Result<Vec<RequestedAddress>> {
        RequestedAddress::all(args, &self.config)
    }

    /// GC's list of valid attachments: both of its keys together.
    ///
    /// Neither key is error 7: an empty list would mean to release everything.
    pub fn keep(&self) -> Result<ValidAttachments> {
        let lists: Vec<_> = ValidAttachments::KEYS
            .into_iter()
            .filter_map(|key| Some((key, self.config.get(key).filter(|v| !v.is_null())?)))
            .collect();
        if lists.is_empty() {
            return Err(Error::config(
                ValidAttachments::KEYS[0],
                "missing: GC needs the list of attachments to keep, which may be empty",
            ));
        }
        let mut keep = ValidAttachments::default();
        for (key, list) in lists {
            let list = list
                .as_array()
                .ok_or_else(|| Error::config(key, "expected an array of attachments"))?;
            for (i, entry) in list.iter().enumerate() {
                let text = |member: &str| {
                    entry.get(member).and_then(Value::as_str).ok_or_else(|| {
                        Error::config(format!("{key}[{i}].{member}"), "expected a string")
                    })
                };
                keep.insert(text("containerID")?, text("ifname")?);
            }
        }
        Ok(keep)
    }
}

/// The attachments that GC must leave alone: pairs of container id and ifname.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidAttachments {
    /// Each container id, with an object whose keys are its interfaces.
    containers: Map<String, Value>,
}

impl ValidAttachments {
    /// The key of the specification, and the one it had before; libcni sends both.
    pub const KEYS: [&'static str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

    /// Whether GC must keep the attachment.
    pub fn contains(&self, container: &str, ifname: &str) -> bool {
        self.containers.get(container).is_some_and(|ifnames| ifnames.get(ifname).is_some())
    }

    /// Adds an attachment.
    pub fn insert(&mut self, container: &str, ifname: &str) {
        let ifnames = self.containers.entry(container).or_insert_with(|| Value::Object(Map::new()));
        ifnames[ifname] = Value::Null;
    }

    /// Every attachment.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.containers.iter().flat_map(|(container, ifnames)| {
            let ifnames = ifnames.as_object().into_iter().flat_map(Map::keys);
            ifnames.map(move |ifname| (container.as_str(), ifname.as_str()))
        })
    }

    /// The list on the wire.
    pub fn to_json(&self) -> Value {
        self.iter()
            .map(|(container, ifname)| serde_json::json!({"containerID": container, "ifname": ifname}))
            .collect()
    }
}

/// Reads a value as a type; error 7 names the place inside `path`, which is the value's own.
pub fn parse_value<T: DeserializeOwned>(value: &Value, path: &str) -> Result<T> {
    serde_path_to_error::deserialize(StrictValue(value)).map_err(|error| {
        let inner = error.path().to_string();
        let place = match inner.as_str() {
            "." => path.to_owned(),
            index if index.starts_with('[') => format!("{path}{index}"),
            member => format!("{path}.{member}"),
        };
        Error::config(place, without_value(&error.inner().to_string()))
    })
}

/// serde's message about a value of the wrong type, in the words of JSON and without the value:
/// where an object belongs, a string may be a secret.
fn without_value(text: &str) -> String {
    // The expected type is named by our own code. The value before it may hold any text.
    let parts =
        text.strip_prefix("invalid type: ").and_then(|found| found.rsplit_once(", expected "));
    let Some((found, expected)) = parts else { return text.to_owned() };
    let found = found.split(['"', '`']).next().unwrap_or_default().trim_end();
    format!("expected {}, found {}", in_json_words(expected), in_json_words(found))
}

/// A type of serde's, as JSON calls it.
fn in_json_words(word: &str) -> &str {
    match word {
        "boolean" => "a boolean",
        "integer" | "floating point" => "a number",
        "map" | "a map" => "an object",
        "path string" => "a path",
        "sequence" | "a sequence" => "an array",
        "string" => "a string",
        "u8" | "u16" | "u32" | "u64" => "a whole number",
        word if word.starts_with("struct ") => "an object",
        word => word,
    }
}

/// Parses exactly one JSON object; error 6 otherwise, in words that fit `what`.
pub fn parse_object(bytes: &[u8], what: &str) -> Result<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::new(ErrorCode::DECODE, format!("{what} is JSON but not an object"))
            .advise("expected one JSON object, in braces")),
        Err(error) if bytes.iter().all(u8::is_ascii_whitespace) => {
            Err(Error::new(ErrorCode::DECODE, format!("{what} is empty")).caused_by(error))
        }
        Err(error) => Err(Error::new(ErrorCode::DECODE, format!("{what} is not one JSON object"))
            .caused_by(error)),
    }
}

/// Members as JSON text, in one pass: [`Value::to_string`](ToString::to_string) formats each piece.
///
/// # Panics
/// A key of a map is not a string.
pub fn to_text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("keys are strings")
}

/// A value as an error shows it where a string belongs: the string, or the kind of any other value,
/// which may hold a misplaced secret.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(_) => value.to_string(),
        other => kind(other).to_owned(),
    }
}

/// The kind of a value found where an object or an array belongs.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A URL as an error shows it: without a user's name and password, and without what comes after its
/// path.
pub fn shown_url(text: &str) -> String {
    if text.contains('@') {
        return "the URL".to_owned();
    }
    match text.split_once(['?', '#']) {
        Some((shown, _)) => format!("\"{}…\"", shown.escape_debug()),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(json: &str) -> Result<Network> {
        Network::new(parse_object(json.as_bytes(), "stdin")?)
    }

    #[test]
    fn settings_name_the_path() {
        #[derive(serde::Deserialize, Debug)]
        struct Settings {
            #[allow(dead_code)]
            servers: Vec<String>,
        }
        let network = network(r#"{"name":"n","ipam":{"servers":["a",1],"other":true}}"#).unwrap();
        let error = network.settings::<Settings>().unwrap_err();
        assert!(
            error.to_string().starts_with("ipam.servers[1]: expected a string, found a number"),
            "{error}"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_not_quoted() {
        #[derive(serde::Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Section {
            token: Option<String>,
            flag: Option<bool>,
        }
        for (value, message) in [
            (serde_json::json!("a, expected \"b\""), "p: expected an object, found a string"),
            (serde_json::json!(["a", true]), "p: expected an object, found an array"),
            (serde_json::json!(4711), "p: expected an object, found a number"),
            (serde_json::json!({"token": 4711.5}), "p.token: expected a string, found a number"),
            (serde_json::json!({"token": true}), "p.token: expected a string, found a boolean"),
            (serde_json::json!({"flag": "x`y"}), "p.flag: expected a boolean, found a string"),
            (serde_json::json!({"token": {}}), "p.token: expected a string, found an object"),
            (serde_json::json!({"x": 1}), "p.x: unknown field `x`, expected `token` or `flag`"),
        ] {
            let error = parse_value::<Section>(&value, "p").unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_a_secret() {
        for (url, shown) in [
            ("http://u:pw@h", "the URL"),
            ("u:pw@h", "the URL"),
            ("http://h/p?token=x", r#""http://h/p…""#),
            ("http://h#x", r#""http://h…""#),
            ("a \"b", r#""a \"b""#),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn gc_takes_the_union_of_both_keys() {
        let config = r#"{"name":"n","ipam":{},
            "cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}],
            "cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}"#;
        let keep = network(config).unwrap().keep().unwrap();
        assert!(keep.contains("a", "eth0") && keep.contains("b", "eth0"));
        assert!(!keep.contains("a", "eth1"));
        let empty = r#"{"name":"n","ipam":{},"cni.dev/attachments":[]}"#;
        assert_eq!(network(empty).unwrap().keep().unwrap(), ValidAttachments::default());
        let none = network(r#"{"name":"n","ipam":{}}"#).unwrap().keep().unwrap_err();
        assert_eq!(none.code(), ErrorCode::INVALID_CONFIG);
        let bad = r#"{"name":"n","ipam":{},"cni.dev/attachments":[{"containerID":"a"}]}"#;
        let error = network(bad).unwrap().keep().unwrap_err();
        assert!(error.to_string().starts_with("cni.dev/attachments[0].ifname"), "{error}");
    }

    #[test]
    fn anything_but_one_object_is_refused() {
        for text in ["", "  \n", "null", "[]", "{} {}", "{", "{}x"] {
            assert_eq!(
                parse_object(text.as_bytes(), "stdin").unwrap_err().code(),
                ErrorCode::DECODE
            );
        }
        assert!(parse_object(b" {} \n", "stdin").is_ok());
        assert!(parse_object("[".repeat(100_000).as_bytes(), "stdin").is_err());
    }

    #[test]
    fn a_network_needs_a_name_and_ipam() {
        for (json, path) in [
            ("{}", "name"),
            (r#"{"name":1,"ipam":{}}"#, "name"),
            (r#"{"name":"../n","ipam":{}}"#, "name"),
            (r#"{"name":"n"}"#, "ipam"),
            (r#"{"name":"n","ipam":[]}"#, "ipam"),
        ] {
            let error = network(json).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
            assert!(error.to_string().starts_with(&format!("{path}: ")), "{error}");
        }
    }
}
