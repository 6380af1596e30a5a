use std::fmt;
use std::path::Path;

use log::{debug, warn};
use serde_json::{Map, Value};

use ipam_kit::cni::parse_object;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::read_trusted;

/// A chain under the name of the system it replaces.
///
/// If this program is installed under that name (a symlink `host-local`), an unchanged network
/// configuration keeps working on the same state.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name of the replaced plugin, or a new name.
    pub name: &'static str,
    /// The chains to choose from: the first whose condition holds.
    pub chains: &'static [PresetChain],
    /// The replaced system finds its state without configuration, so a DEL with a stripped
    /// configuration can still release what was held before the take-over. False if the preset replaces
    /// no other system.
    pub has_default_location: bool,
    /// Where the host may name another last program for the chain, if it may.
    pub host_program: Option<HostProgram>,
    /// The delegate that answers a person's call under the preset's name; `None` for the operator's
    /// verbs.
    pub cli: Option<&'static str>,
    /// The process of the replaced system's pod on a node, if that pod writes the plugin through a link
    /// when it starts: the preset is then installed as a copy of this program.
    pub overwritten_by: Option<&'static str>,
    /// How the chain differs from the replaced system, one sentence each.
    pub differences: &'static [&'static str],
}

/// One chain of a preset.
#[derive(Clone, Copy, Debug)]
pub struct PresetChain {
    /// The condition of this chain.
    pub when: ChainCondition,
    /// The delegates, in order.
    pub delegates: &'static [&'static str],
    /// Settings put over `ipam`: keys, and values in JSON. An object is joined with that of the
    /// configuration, which must not contradict it; any other value replaces that of the configuration.
    pub settings: &'static [(&'static str, &'static str)],
    /// Keys of `ipam` that its selectors may set for `ipam-da-*`, beside those of every selector, as in
    /// `sets` of `ipam.delegates`.
    pub sets: &'static [&'static str],
}

/// A condition that chooses a chain of a preset.
#[derive(Clone, Copy, Debug)]
pub enum ChainCondition {
    /// Any section `ipam`.
    Always,
    /// This key of `ipam` is present and not empty.
    Has(&'static str),
    /// This key of `ipam` has this text.
    Is(&'static str, &'static str),
    /// This member of the JSON object in a file of the host has this text. Root alone may write the
    /// file; a missing file has no members.
    FileIs {
        /// The file.
        file: &'static str,
        /// The member.
        key: &'static str,
        /// Its text.
        text: &'static str,
    },
    /// All of these hold for `ipam` after a file of the host has filled its empty keys. A file that
    /// cannot be read fills none: the delegate that reads it fails.
    Filled {
        /// The key of `ipam` that names a file, which counts first.
        named_by: &'static str,
        /// The other files, of which the first counts that exists. Root alone may write them.
        files: &'static [&'static str],
        /// The conditions.
        all: &'static [Self],
    },
}

/// Where the host may name another last program for a preset's chain: a JSON object in a file that
/// root alone may write.
#[derive(Clone, Copy, Debug)]
pub struct HostProgram {
    /// The file.
    pub file: &'static str,
    /// A variable that names another file.
    pub variable: &'static str,
    /// The member that names the program: an absolute path, or a command that is found in `PATH`.
    pub key: &'static str,
}

impl Preset {
    /// The preset of a name.
    pub(crate) fn find(presets: &'static [Self], name: &str) -> Option<&'static Self> {
        presets.iter().find(|preset| preset.name == name)
    }

    /// Applies the settings of the chain that this section `ipam` chooses; if a file that chooses
    /// cannot be read, none: a DEL goes on by its record.
    pub(crate) fn apply_settings(&self, ipam: &mut Map<String, Value>) {
        let chain = self.chain(ipam).unwrap_or_else(|error| {
            warn!("{}", error.in_full());
            None
        });
        for (key, setting) in chain.into_iter().flat_map(PresetChain::settings) {
            match (ipam.get_mut(&key), setting) {
                (Some(Value::Object(section)), Value::Object(ours)) => section.extend(ours),
                (_, setting) => drop(ipam.insert(key, setting)),
            }
        }
    }

    /// The chain that this `ipam` section chooses.
    ///
    /// # Errors
    /// A file of the host that chooses is not trusted or not a JSON object.
    pub(crate) fn chain(&self, ipam: &Map<String, Value>) -> Result<Option<&'static PresetChain>> {
        for chain in self.chains {
            if chain.when.holds(ipam)? {
                return Ok(Some(chain));
            }
        }
        Ok(None)
    }
}

impl ChainCondition {
    fn holds(&self, ipam: &Map<String, Value>) -> Result<bool> {
        Ok(match *self {
            Self::Always => true,
            Self::Has(key) => ipam.get(key).is_some_and(|value| !is_empty(value)),
            Self::Is(key, text) => ipam.get(key).is_some_and(|value| value == text),
            Self::FileIs { file, key, text } => {
                trusted_member(file, key)?.is_some_and(|value| value == text)
            }
            Self::Filled { named_by, files, all } => {
                let filled = filled(ipam, named_by, files);
                let holds = all.iter().map(|condition| condition.holds(&filled));
                holds.collect::<Result<Vec<_>>>()?.into_iter().all(|holds| holds)
            }
        })
    }
}

impl fmt::Display for ChainCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("any"),
            Self::Has(key) => f.write_str(key),
            Self::Is(key, text) => write!(f, "{key}={text}"),
            Self::FileIs { file, key, text } => write!(f, "{key}={text} in {file}"),
            Self::Filled { all, .. } => {
                let all: Vec<String> = all.iter().map(Self::to_string).collect();
                f.write_str(&all.join(" and "))
            }
        }
    }
}

/// A section `ipam` whose empty keys are filled from the first of these files that exists.
fn filled(ipam: &Map<String, Value>, named_by: &str, files: &[&str]) -> Map<String, Value> {
    let mut filled = ipam.clone();
    let named = ipam.get(named_by).and_then(Value::as_str).filter(|file| !file.is_empty());
    for file in named.into_iter().chain(files.iter().copied()) {
        match trusted_object(file) {
            Ok(None) => {}
            Ok(Some(members)) => {
                for (key, value) in members {
                    if filled.get(&key).is_none_or(is_empty) {
                        filled.insert(key, value);
                    }
                }
                return filled;
            }
            Err(error) => {
                debug!("{}", error.in_full());
                return filled;
            }
        }
    }
    filled
}

/// Whether a value says as little as a missing one.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A member of the JSON object in a file that root alone may write; `None` if file or member is
/// missing.
///
/// # Errors
/// The file is not trusted or not a JSON object.
pub(super) fn trusted_member(file: &str, key: &str) -> Result<Option<Value>> {
    Ok(trusted_object(file)?.and_then(|mut object| object.remove(key)))
}

fn trusted_object(file: &str) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_trusted(Path::new(file))? else { return Ok(None) };
    let object = parse_object(&bytes, file);
    Ok(Some(object.map_err(|error| error.with_code(ErrorCode::INVALID_CONFIG))?))
}

/// The error of our own program under a name that is not a preset's; `path` names the setting.
pub(crate) fn unknown_preset(path: &str, name: &str, program: &Path) -> Error {
    let program = program.display();
    Error::config(path, format!("{program} is ipam-delegated itself, and its name is not a preset"))
        .advise(format!("install the real {name} there, or name another delegate; a replaced {name} is kept as {name}.orig"))
}

impl PresetChain {
    /// The settings, parsed.
    ///
    /// # Panics
    ///
    /// If the preset table has a setting that is not JSON.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (String, Value)> {
        self.settings.iter().map(|(key, text)| {
            let value = serde_json::from_slice(text.as_bytes()).expect("preset settings are JSON");
            ((*key).to_owned(), value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    const fn chain(when: ChainCondition, delegates: &'static [&'static str]) -> PresetChain {
        PresetChain { when, delegates, settings: &[("x", "[1]")], sets: &[] }
    }

    const PRESET: Preset = Preset {
        name: "old",
        chains: &[
            chain(ChainCondition::Is("store", "disk"), &["disk"]),
            chain(ChainCondition::Has("servers"), &["servers"]),
            chain(ChainCondition::Always, &["any"]),
        ],
        has_default_location: false,
        host_program: None,
        cli: None,
        overwritten_by: None,
        differences: &[],
    };

    #[test]
    fn the_first_chain_whose_condition_holds_is_chosen() {
        for (ipam, delegate) in [
            (json!({"store": "disk", "servers": ["a"]}), "disk"),
            (json!({"store": "other", "servers": ["a"]}), "servers"),
            (json!({"store": 1, "servers": "a"}), "servers"),
            (json!({"servers": []}), "any"),
            (json!({"servers": ""}), "any"),
            (json!({"servers": null}), "any"),
            (json!({}), "any"),
        ] {
            let chosen = PRESET.chain(ipam.as_object().unwrap()).unwrap().unwrap();
            assert_eq!(chosen.delegates, [delegate], "{ipam}");
        }
        assert_eq!(PRESET.chains[0].settings().next().unwrap().1, json!([1]));
    }

    #[test]
    fn a_file_of_the_host_fills_what_is_empty() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("flat.conf");
        let file: &'static str = Box::leak(path.display().to_string().into_boxed_str());
        let all = &[ChainCondition::Is("store", "disk"), ChainCondition::Has("servers")];
        let condition = ChainCondition::Filled { named_by: "path", files: &["/nowhere"], all };
        assert_eq!(condition.to_string(), "store=disk and servers");
        let holds = |ipam: Value| condition.holds(ipam.as_object().unwrap()).unwrap();
        for (flat, own, filled) in [
            (r#"{"servers": "a"}"#, false, true),
            (r#"{"store": "disk", "servers": ["a"]}"#, true, true),
            (r#"{"store": "other", "servers": "a"}"#, false, true),
            ("{}", false, false),
            ("{", false, false),
        ] {
            std::fs::write(&path, flat).unwrap();
            assert_eq!(holds(json!({"path": file, "store": ""})), own, "{flat}");
            assert_eq!(holds(json!({"path": file, "store": "disk", "servers": []})), filled);
            assert!(holds(json!({"path": file, "store": "disk", "servers": "own"})), "{flat}");
            assert!(!holds(json!({"store": "disk"})), "{flat}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!holds(json!({"path": file, "store": "disk"})));
    }

    #[test]
    fn a_member_of_a_trusted_file_chooses_and_a_broken_file_is_an_error() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("provider.conf");
        let file: &'static str = Box::leak(path.display().to_string().into_boxed_str());
        let condition = ChainCondition::FileIs { file, key: "type", text: "phpipam" };
        let holds = || condition.holds(&Map::new());
        assert!(!holds().unwrap(), "a missing file");
        for (content, expected) in
            [(r#"{"type": "phpipam"}"#, true), (r#"{"type": "openwisp"}"#, false), ("{}", false)]
        {
            std::fs::write(&path, content).unwrap();
            assert_eq!(holds().unwrap(), expected, "{content}");
        }
        std::fs::write(&path, r#"{"pwd": "secret", "#).unwrap();
        let error = holds().unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
        let text = error.in_full();
        assert!(text.contains("provider.conf") && !text.contains("secret"), "{text}");
        std::fs::write(&path, r#"{"type": "phpipam"}"#).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&path, open).unwrap();
        assert!(holds().unwrap_err().in_full().contains("is not trusted"));
    }
}
