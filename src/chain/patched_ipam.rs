//! The section `ipam` with what selectors have put over it: each delegate gets what is for it.

use serde_json::{Map, Value};

use super::patch::merge_patch;
use super::plan::Step;
use ipam_kit::delegate::selector_keys::{SELECTOR_KEYS, judge, other_spelling, twice};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;

/// The section `ipam` on its way through a chain.
#[derive(Clone, Debug)]
pub(crate) struct PatchedIpam {
    /// With all settings of selectors, for standard plugins.
    all: Map<String, Value>,
    /// With what is a selector's to set, for allocators of ours and for selectors.
    ours: Map<String, Value>,
}

impl PatchedIpam {
    /// As the network configuration has it.
    pub(super) fn new(ipam: &Map<String, Value>) -> Self {
        Self { all: ipam.clone(), ours: ipam.clone() }
    }

    /// What a delegate gets, less its own keys.
    pub(super) fn seen_by(&self, step: &Step) -> &Map<String, Value> {
        if step.is_ours() { &self.ours } else { &self.all }
    }

    /// Puts a selector's answer over it: a JSON merge patch. A verb that releases reads no `resolvConf`.
    ///
    /// # Errors
    /// The answer sets what is not a selector's to set.
    pub(super) fn merge(
        &mut self,
        step: &Step,
        patch: &Map<String, Value>,
        settings: &Settings,
        releases: bool,
    ) -> Result<()> {
        const PATH: &str = "its answer sets ipam.";
        let refused = |error: Error| error.with_code(ErrorCode::DELEGATE).within(&step.name);
        judge(patch, settings, releases, PATH).map_err(refused)?;
        let (ours, foreign) = settings_for_ours(patch, &step.sets);
        if let (Some(key), Some(before)) = (foreign, &step.next_allocator) {
            let key = key.escape_debug();
            let message = format!("{before} takes it from the network configuration alone");
            let error = Error::config(format!("{PATH}{key}"), message).advise(format!(
                "take it out of what {name} reads; or let {name} decide on it, by \
                 {{\"type\": \"{name}\", \"sets\": [\"{key}\"]}} in ipam.delegates",
                name = step.name
            ));
            return Err(refused(error));
        }
        let mut all = self.all.clone();
        merge_patch(&mut all, patch);
        let mut set = patch.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key);
        if let Some((key, other)) = set.find_map(|key| Some((key, other_spelling(&all, key)?))) {
            return Err(refused(twice(&format!("{PATH}{}", key.escape_debug()), other)));
        }
        self.all = all;
        merge_patch(&mut self.ours, &ours);
        Ok(())
    }
}

/// The part of a selector's settings that delegates of ours get: what is every selector's to set, and the
/// sections that the network's author has opened. A null takes nothing else away, so that what the
/// configuration says about a store stays.
///
/// Comes with the first key that is set beside them.
fn settings_for_ours<'a>(
    patch: &'a Map<String, Value>,
    opened: &[String],
) -> (Map<String, Value>, Option<&'a str>) {
    let is_open =
        |key: &str| SELECTOR_KEYS.contains(&key) || opened.iter().any(|section| section == key);
    let (ours, others): (Vec<_>, Vec<_>) = patch.iter().partition(|(key, _)| is_open(key));
    let foreign = others.into_iter().find(|(_, value)| !value.is_null());
    let ours = ours.into_iter().map(|(key, value)| (key.clone(), value.clone()));
    (ours.collect(), foreign.map(|(key, _)| key.as_str()))
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
        let mut section = PatchedIpam::new(&object(ipam));
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
            "ipam-ds-x: its answer sets ipam.etcd: ipam-da-etcd takes it from the network configuration alone"
        );
        let (_, all) = merged(None, &[], patch.clone()).unwrap();
        assert_eq!(all["etcd"], json!({"endpoints": ["b"], "user": "u"}));
        let (ours, _) = merged(Some("ipam-da-etcd"), &["etcd"], patch).unwrap();
        assert_eq!(ours["etcd"], json!({"endpoints": ["b"], "user": "u"}));
    }

    #[test]
    fn a_key_of_the_configuration_in_other_letters_is_refused() {
        let error = merged(None, &[], json!({"Subnet": "10.9.0.0/24"})).unwrap_err();
        assert!(error.to_string().contains("ipam.Subnet: subnet is there, too"), "{error}");
        assert!(merged(None, &[], json!({"Subnet": "10.9.0.0/24", "subnet": null})).is_ok());
    }
}
