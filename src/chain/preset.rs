use std::path::Path;

use serde_json::{Map, Value};

use ipam_kit::error::Error;

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
    /// How the chain differs from the replaced system, one sentence each.
    pub differences: &'static [&'static str],
}

/// One chain of a preset.
#[derive(Clone, Copy, Debug)]
pub struct PresetChain {
    /// The key of `ipam` and its value that choose this chain; `None` for any.
    pub when: Option<(&'static str, &'static str)>,
    /// The delegates, in order.
    pub delegates: &'static [&'static str],
    /// Settings put over `ipam`: keys, and values in JSON. An object is joined with that of the
    /// configuration, which must not contradict it; any other value replaces that of the configuration.
    pub settings: &'static [(&'static str, &'static str)],
    /// Keys of `ipam` that its selectors may set for `ipam-da-*`, beside those of every selector, as in
    /// `sets` of `ipam.delegates`.
    pub sets: &'static [&'static str],
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

    /// Applies the settings of the chain that this section `ipam` chooses.
    pub(crate) fn apply_settings(&self, ipam: &mut Map<String, Value>) {
        for (key, setting) in self.chain(ipam).into_iter().flat_map(PresetChain::settings) {
            match (ipam.get_mut(&key), setting) {
                (Some(Value::Object(section)), Value::Object(ours)) => section.extend(ours),
                (_, setting) => drop(ipam.insert(key, setting)),
            }
        }
    }

    /// The chain that this `ipam` section chooses.
    pub(crate) fn chain(&self, ipam: &Map<String, Value>) -> Option<&'static PresetChain> {
        self.chains.iter().find(|chain| match chain.when {
            None => true,
            Some((key, value)) => ipam.get(key).and_then(Value::as_str) == Some(value),
        })
    }
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

    #[test]
    fn a_key_chooses_among_chains() {
        const CHAIN: PresetChain =
            PresetChain { when: None, delegates: &["b"], settings: &[], sets: &[] };
        let preset = Preset {
            name: "old",
            chains: &[
                PresetChain {
                    when: Some(("datastore", "etcd")),
                    delegates: &["a"],
                    settings: &[("x", "[1]")],
                    sets: &[],
                },
                CHAIN,
            ],
            has_default_location: false,
            host_program: None,
            cli: None,
            differences: &[],
        };
        let etcd = Map::from_iter([("datastore".to_owned(), Value::from("etcd"))]);
        let chosen = preset.chain(&etcd).unwrap();
        assert_eq!(chosen.delegates, ["a"]);
        assert_eq!(chosen.settings().next().unwrap().1, serde_json::json!([1]));
        assert_eq!(preset.chain(&Map::new()).unwrap().delegates, ["b"]);
    }
}
