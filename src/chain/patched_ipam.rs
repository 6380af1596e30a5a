//! The section `ipam` with the settings that selectors put over it: each delegate gets those for it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::patch::merge_patch;
use super::plan::Step;
use ipam_kit::delegate::selector_keys::{SELECTOR_KEYS, other_spellings, refuse_forbidden, twice};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;

/// The section `ipam` between two delegates, with the settings of the selectors before.
#[derive(Clone, Debug)]
pub(crate) struct PatchedIpam<'a> {
    /// With all settings, for standard plugins.
    for_plugins: Cow<'a, Map<String, Value>>,
    /// With those that a selector may set for `ipam-ds-*` and `ipam-da-*`.
    for_ours: Cow<'a, Map<String, Value>>,
}

impl<'a> PatchedIpam<'a> {
    /// As the network configuration has it.
    pub(super) fn new(ipam: &'a Map<String, Value>) -> Self {
        Self { for_plugins: Cow::Borrowed(ipam), for_ours: Cow::Borrowed(ipam) }
    }

    /// The section for a delegate, without its own keys.
    pub(super) fn seen_by(&self, step: &Step) -> &Map<String, Value> {
        if step.is_ours() { &self.for_ours } else { &self.for_plugins }
    }

    /// Applies a selector's answer, a JSON merge patch. A verb that releases ignores `resolvConf`.
    ///
    /// # Errors
    /// The answer sets a key that a selector may not set.
    pub(super) fn merge(
        &mut self,
        step: &Step,
        patch: &Map<String, Value>,
        settings: &Settings,
        releases: bool,
    ) -> Result<()> {
        self.merge_allowed(step, patch, settings, releases)
            .map_err(|error| error.with_code(ErrorCode::DELEGATE).within(&step.name))
    }

    fn merge_allowed(
        &mut self,
        step: &Step,
        patch: &Map<String, Value>,
        settings: &Settings,
        releases: bool,
    ) -> Result<()> {
        const PATH: &str = "its answer sets ipam.";
        refuse_forbidden(patch, settings, releases, PATH)?;
        let (ours, foreign) = settings_for_ours(patch, &step.sets);
        if let (Some(key), Some(allocator)) = (foreign, &step.next_allocator) {
            let key = key.escape_debug();
            let message = format!("{allocator} accepts it only from the network configuration");
            return Err(Error::config(format!("{PATH}{key}"), message).advise(format!(
                "remove it from what {name} reads; or allow {name} to set it, by \
                 {{\"type\": \"{name}\", \"sets\": [\"{key}\"]}} in ipam.delegates",
                name = step.name
            )));
        }
        let is_removed = |key: &str| patch.get(key).is_some_and(Value::is_null);
        for (key, _) in patch.iter().filter(|(_, value)| !value.is_null()) {
            let stays = |other: &&str| !is_removed(other);
            if let Some(other) = other_spellings(&self.for_plugins, key).find(stays) {
                return Err(twice(&format!("{PATH}{}", key.escape_debug()), other));
            }
        }
        if patch.is_empty() {
            return Ok(());
        }
        merge_patch(self.for_plugins.to_mut(), patch);
        merge_patch(self.for_ours.to_mut(), &ours);
        Ok(())
    }
}

/// The settings that `ipam-ds-*` and `ipam-da-*` get of a selector's: those that every selector may set,
/// and the keys that the network's author has opened to this one. Second is the first other key that is
/// set. A null of another key removes nothing, so that the configuration of a store stays.
fn settings_for_ours<'a>(
    patch: &'a Map<String, Value>,
    opened: &[String],
) -> (Map<String, Value>, Option<&'a str>) {
    let mut ours = Map::new();
    let mut foreign = None;
    for (key, value) in patch {
        if SELECTOR_KEYS.contains(&key.as_str()) || opened.contains(key) {
            ours.insert(key.clone(), value.clone());
        } else if !value.is_null() {
            foreign = foreign.or(Some(key.as_str()));
        }
    }
    (ours, foreign)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// What each delegate gets after a selector's answer.
    fn merged(before: Option<&str>, sets: &[&str], patch: Value) -> Result<(Value, Value)> {
        let ipam =
            json!({"subnet": "10.0.0.0/24", "etcd": {"endpoints": ["a"], "user": "u"}, "x": 1});
        let ipam = object(ipam);
        let mut section = PatchedIpam::new(&ipam);
        let mut step = Step::new("ipam-ds-x", "/bin/ipam-ds-x".into());
        step.next_allocator = before.map(str::to_owned);
        step.sets = sets.iter().map(|key| (*key).to_owned()).collect();
        section.merge(&step, &object(patch), &Settings::default(), false)?;
        let of = |name: &str| Value::Object(section.seen_by(&Step::new(name, "/p".into())).clone());
        Ok((of("ipam-da-etcd"), of("host-local")))
    }

    #[test]
    fn a_store_stays_for_delegates_of_ours_and_goes_for_standard_plugins() {
        let patch = json!({"subnet": null, "etcd": null, "x": null, "ranges": [1]});
        let (ours, all) = merged(Some("ipam-da-etcd"), &[], patch).unwrap();
        let store = json!({"endpoints": ["a"], "user": "u"});
        assert_eq!(ours, json!({"etcd": store, "x": 1, "ranges": [1]}));
        assert_eq!(all, json!({"ranges": [1]}));
    }

    #[test]
    fn a_key_that_is_no_selectors_is_refused_only_where_a_delegate_of_ours_follows() {
        let patch = json!({"etcd": {"endpoints": ["b"]}});
        let error = merged(Some("ipam-da-etcd"), &[], patch.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::DELEGATE);
        assert_eq!(
            error.to_string(),
            "ipam-ds-x: its answer sets ipam.etcd: ipam-da-etcd accepts it only from the network configuration"
        );
        let (_, all) = merged(None, &[], patch.clone()).unwrap();
        assert_eq!(all["etcd"], json!({"endpoints": ["b"], "user": "u"}));
        let (ours, _) = merged(Some("ipam-da-etcd"), &["etcd"], patch).unwrap();
        assert_eq!(ours["etcd"], json!({"endpoints": ["b"], "user": "u"}));
    }

    #[test]
    fn a_key_of_the_configuration_in_other_letters_is_refused() {
        let error = merged(None, &[], json!({"Subnet": "10.9.0.0/24"})).unwrap_err();
        assert!(error.to_string().contains("ipam.Subnet: subnet is set, too"), "{error}");
        assert!(merged(None, &[], json!({"Subnet": "10.9.0.0/24", "subnet": null})).is_ok());
    }
}
