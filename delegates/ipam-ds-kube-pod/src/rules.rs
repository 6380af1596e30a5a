//! The section `ipam.pod`: what a pod may choose.

use std::path::PathBuf;

use ipam_kit::allocate::parse_keep;
use ipam_kit::cni::parse_value;
use ipam_kit::keys::Key;
use ipam_kit::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

/// The keys of `ipam` that this delegate reads.
pub(crate) const KEYS: &[Key] = &[
    Key::Section("pod", OF_POD),
    Key::Section("kube", &[Key::Value("kubeconfig")]),
    Key::Value("kubeconfig"),
];

const OF_POD: &[Key] = &[
    Key::Value("sticky"),
    Key::Value("nameScope"),
    Key::Value("keep"),
    Key::Value("pools"),
    Key::Value("poolFrom"),
    Key::Value("addresses"),
    Key::Section("annotations", OF_ANNOTATIONS),
    Key::Value("kubeconfig"),
];

const OF_ANNOTATIONS: &[Key] = &[Key::Value("sticky"), Key::Value("pool"), Key::Value("address")];

/// The choices that a network allows its pods.
#[derive(Debug, Default)]
pub(crate) struct PodRules {
    pub(crate) sticky: StickyRule,
    /// How long an address stays reserved for its sticky name, as a pool says it.
    pub(crate) keep: Option<String>,
    /// The pools of which one of each family is given.
    pub(crate) choices: Vec<PoolChoice>,
    /// Whether an annotation of the pod chooses among them.
    pub(crate) pod_chooses: bool,
    /// Whether an annotation of its namespace does, where the pod has not chosen.
    pub(crate) namespace_chooses: bool,
    /// Whether a pod requests addresses.
    pub(crate) addresses: bool,
    pub(crate) names: AnnotationNames,
    /// The kubeconfig of this section alone.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Keys without an effect.
    pub(crate) remarks: Vec<String>,
}

/// The origin of the sticky name of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StickyRule {
    #[default]
    Off,
    /// An annotation names it, and it counts in the pod's namespace.
    InNamespace,
    /// An annotation names it, and it counts in the whole cluster.
    InCluster,
    /// The pod's own name, if a StatefulSet controls the pod.
    StatefulSet,
}

/// A pool that may be chosen.
#[derive(Debug)]
pub(crate) struct PoolChoice {
    /// Its name, or the subnet of a pool without a name.
    pub(crate) name: String,
    /// Its place in the configuration.
    pub(crate) path: String,
}

/// The names of the annotations.
#[derive(Debug)]
pub(crate) struct AnnotationNames {
    pub(crate) sticky: Vec<String>,
    pub(crate) pool: String,
    pub(crate) address: String,
}

impl Default for AnnotationNames {
    fn default() -> Self {
        Self {
            sticky: ["ipam-delegated/sticky", "podname"].map(str::to_owned).to_vec(),
            pool: "ipam-delegated/pool".to_owned(),
            address: "ipam-delegated/address".to_owned(),
        }
    }
}

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KubePodConfig {
    pod: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct PodSection {
    sticky: Option<String>,
    name_scope: Option<String>,
    keep: Option<String>,
    pools: Option<Vec<String>>,
    pool_from: Option<Vec<String>>,
    addresses: Option<bool>,
    annotations: Option<AnnotationSection>,
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AnnotationSection {
    sticky: Option<Vec<String>>,
    pool: Option<String>,
    address: Option<String>,
}

impl KubePodConfig {
    /// Reads the section; `None` without one.
    ///
    /// # Errors
    /// A value is malformed.
    pub(crate) fn rules(self) -> Result<Option<PodRules>> {
        let Some(section) = self.pod.filter(|section| !section.is_null()) else { return Ok(None) };
        let section: PodSection = parse_value(&section, "ipam.pod")?;
        let remarks = section.remarks();
        let (pod_chooses, namespace_chooses) = pool_from(section.pool_from)?;
        if let Some(text) = &section.keep {
            parse_keep("ipam.pod.keep", text)?;
        }
        Ok(Some(PodRules {
            sticky: sticky(section.sticky.as_deref(), section.name_scope.as_deref())?,
            keep: section.keep,
            choices: choices(section.pools.unwrap_or_default())?,
            pod_chooses,
            namespace_chooses,
            addresses: section.addresses.unwrap_or(false),
            names: names(section.annotations.unwrap_or_default())?,
            kubeconfig: section.kubeconfig,
            remarks,
        }))
    }
}

impl PodRules {
    /// Whether a pod may choose nothing.
    pub(crate) fn allow_nothing(&self) -> bool {
        self.sticky == StickyRule::Off && self.choices.is_empty() && !self.addresses
    }

    /// Whether annotations of the pod are read.
    pub(crate) fn read_annotations(&self) -> bool {
        self.reads_sticky_annotation() || self.pod_may_choose_pool() || self.addresses
    }

    /// Whether the object of the pod is read: a runtime passes annotations alone.
    pub(crate) fn read_object(&self) -> bool {
        self.sticky == StickyRule::StatefulSet
    }

    /// Whether the choice depends on the pod.
    pub(crate) fn need_pod(&self) -> bool {
        self.read_annotations() || self.read_object() || self.namespace_may_choose_pool()
    }

    /// Whether an annotation may name the sticky name.
    pub(crate) fn reads_sticky_annotation(&self) -> bool {
        matches!(self.sticky, StickyRule::InNamespace | StickyRule::InCluster)
    }

    /// Whether an annotation of the pod may choose a pool.
    pub(crate) fn pod_may_choose_pool(&self) -> bool {
        self.pod_chooses && !self.choices.is_empty()
    }

    /// Whether an annotation of the namespace may choose a pool.
    pub(crate) fn namespace_may_choose_pool(&self) -> bool {
        self.namespace_chooses && !self.choices.is_empty()
    }

    /// The names of all annotations that are read of a pod or of its element for this network.
    pub(crate) fn read_names(&self) -> impl Iterator<Item = &str> {
        let Self { names, .. } = self;
        let sticky = names.sticky.iter().filter(|_| self.reads_sticky_annotation());
        let pool = Some(&names.pool).filter(|_| self.pod_may_choose_pool());
        let address = Some(&names.address).filter(|_| self.addresses);
        sticky.chain(pool).chain(address).map(String::as_str)
    }
}

impl PodSection {
    /// The keys that have no effect beside the others.
    fn remarks(&self) -> Vec<String> {
        let is_named = self.sticky.as_deref() == Some("name");
        let is_sticky = is_named || self.sticky.as_deref() == Some("statefulset");
        let has_pools = self.pools.as_ref().is_some_and(|pools| !pools.is_empty());
        let requests = self.addresses == Some(true);
        let of_annotations =
            |pick: fn(&AnnotationSection) -> bool| self.annotations.as_ref().is_some_and(pick);
        let by_name = r#""sticky": "name""#;
        [
            ("keep", self.keep.is_some() && !is_sticky, r#""sticky": "name" or "statefulset""#),
            ("nameScope", self.name_scope.is_some() && !is_named, by_name),
            ("poolFrom", self.pool_from.is_some() && !has_pools, "pools"),
            ("annotations.sticky", of_annotations(|it| it.sticky.is_some()) && !is_named, by_name),
            ("annotations.pool", of_annotations(|it| it.pool.is_some()) && !has_pools, "pools"),
            (
                "annotations.address",
                of_annotations(|it| it.address.is_some()) && !requests,
                r#""addresses": true"#,
            ),
        ]
        .into_iter()
        .filter(|(_, is_idle, _)| *is_idle)
        .map(|(key, _, needs)| format!("ipam.pod.{key} has no effect without {needs}"))
        .collect()
    }
}

fn sticky(sticky: Option<&str>, scope: Option<&str>) -> Result<StickyRule> {
    let in_cluster = match scope {
        None | Some("namespace") => false,
        Some("cluster") => true,
        Some(other) => return Err(unknown("nameScope", other, "namespace or cluster")),
    };
    match sticky {
        None | Some("off") => Ok(StickyRule::Off),
        Some("name") if in_cluster => Ok(StickyRule::InCluster),
        Some("name") => Ok(StickyRule::InNamespace),
        Some("statefulset") => Ok(StickyRule::StatefulSet),
        Some(other) => Err(unknown("sticky", other, "name, statefulset or off")),
    }
}

/// Whether the pod chooses, and whether its namespace does.
fn pool_from(words: Option<Vec<String>>) -> Result<(bool, bool)> {
    let Some(words) = words else { return Ok((true, false)) };
    for (i, word) in words.iter().enumerate() {
        if !matches!(&**word, "pod" | "namespace") {
            return Err(unknown(&format!("poolFrom[{i}]"), word, "pod or namespace"));
        }
    }
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    Ok((has("pod"), has("namespace")))
}

fn choices(names: Vec<String>) -> Result<Vec<PoolChoice>> {
    let mut choices: Vec<PoolChoice> = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let path = format!("ipam.pod.pools[{i}]");
        let is_plain = !name.is_empty() && !name.contains(',') && name.trim() == name;
        if !is_plain {
            return Err(Error::config(&path, format_args!("invalid name {name:?}"))
                .advise("expected the name of a pool, or the subnet of one without a name"));
        }
        if choices.iter().any(|choice| choice.name == name) {
            return Err(Error::config(&path, format_args!("{name:?} is there twice"))
                .advise("remove one of them"));
        }
        choices.push(PoolChoice { name, path });
    }
    Ok(choices)
}

fn names(section: AnnotationSection) -> Result<AnnotationNames> {
    let default = AnnotationNames::default();
    let names = AnnotationNames {
        sticky: section.sticky.unwrap_or(default.sticky),
        pool: section.pool.unwrap_or(default.pool),
        address: section.address.unwrap_or(default.address),
    };
    let of_sticky = names.sticky.iter().enumerate();
    let mut all: Vec<(String, &str)> =
        of_sticky.map(|(i, name)| (format!("sticky[{i}]"), &**name)).collect();
    all.push(("pool".to_owned(), &names.pool));
    all.push(("address".to_owned(), &names.address));
    for (i, (key, name)) in all.iter().enumerate() {
        let path = format!("ipam.pod.annotations.{key}");
        if name.is_empty() {
            return Err(Error::config(path, "expected the name of an annotation")
                .advise("leave the key out for the default"));
        }
        if let Some((other, _)) = all[..i].iter().find(|(_, other)| other == name) {
            let message = format!("{name:?} names ipam.pod.annotations.{other}, too");
            return Err(
                Error::config(path, message).advise("give each key an annotation of its own")
            );
        }
    }
    Ok(names)
}

fn unknown(key: &str, value: &str, expected: &str) -> Error {
    let message = format!("unknown value {value:?}: expected {expected}");
    Error::config(format_args!("ipam.pod.{key}"), message)
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    use super::*;

    fn read(pod: Value) -> Result<Option<PodRules>> {
        serde_json::from_value::<KubePodConfig>(json!({ "pod": pod })).unwrap().rules()
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<PodSection>(&names(OF_POD));
        assert_fields::<AnnotationSection>(&names(OF_ANNOTATIONS));
    }

    #[test]
    fn nothing_is_allowed_that_the_section_does_not_allow() {
        assert!(read(Value::Null).unwrap().is_none());
        for pod in [json!({}), json!({"sticky": "off", "pools": [], "addresses": false})] {
            let rules = read(pod).unwrap().unwrap();
            assert!(rules.allow_nothing() && !rules.read_annotations(), "{rules:?}");
            assert_eq!(rules.read_names().count(), 0);
        }
        let rules = read(json!({"sticky": "name"})).unwrap().unwrap();
        assert_eq!(rules.sticky, StickyRule::InNamespace);
        assert_eq!(rules.read_names().collect::<Vec<_>>(), ["ipam-delegated/sticky", "podname"]);
        let rules = read(json!({"pools": ["a"], "poolFrom": ["namespace"]})).unwrap().unwrap();
        assert!(!rules.pod_may_choose_pool() && rules.namespace_may_choose_pool());
    }

    #[test]
    fn a_malformed_value_is_named_by_its_path() {
        for (pod, message) in [
            (json!("sticky"), ": expected an object, found a string"),
            (json!({"sticky": true}), ".sticky: expected a string, found a boolean"),
            (json!({"sticky": "yes"}), ".sticky: unknown value \"yes\": expected name, "),
            (json!({"nameScope": "pod"}), ".nameScope: unknown value \"pod\": expected namespace "),
            (json!({"keep": "a day"}), ".keep: invalid duration \"a day\""),
            (json!({"keep": "99999999999h"}), ".keep: \"99999999999h\" is longer than 100 years"),
            (json!({"keep": 3600}), ".keep: expected a string, found a number"),
            (json!({"pools": "a"}), ".pools: expected an array, found a string"),
            (json!({"pools": [""]}), ".pools[0]: invalid name \"\""),
            (json!({"pools": ["a,b"]}), ".pools[0]: invalid name \"a,b\""),
            (json!({"pools": [{}]}), ".pools[0]: expected a string, found an object"),
            (json!({"pools": ["a", "a"]}), ".pools[1]: \"a\" is there twice"),
            (json!({"poolFrom": ["node"]}), ".poolFrom[0]: unknown value \"node\": expected pod "),
            (json!({"addresses": "yes"}), ".addresses: expected a boolean, found a string"),
            (json!({"annotations": {"pool": ""}}), ".annotations.pool: expected the name of an "),
            (
                json!({"annotations": {"pool": ["a"]}}),
                ".annotations.pool: expected a string, found",
            ),
            (
                json!({"annotations": {"address": "podname"}}),
                ".annotations.address: \"podname\" names ipam.pod.annotations.sticky[1], too",
            ),
            (json!({"stickyness": "name"}), ".stickyness: unknown field"),
        ] {
            let error = read(pod.clone()).unwrap_err();
            assert_eq!(error.code().number(), 7);
            assert!(error.to_string().starts_with(&format!("ipam.pod{message}")), "{pod}: {error}");
        }
    }

    #[test]
    fn a_key_without_an_effect_is_remarked() {
        let idle = json!({
            "sticky": "off", "nameScope": "cluster", "keep": "1h", "poolFrom": ["pod"],
            "annotations": {"sticky": ["podname"], "pool": "a/b", "address": "a/c"},
        });
        assert_eq!(
            read(idle).unwrap().unwrap().remarks,
            [
                r#"ipam.pod.keep has no effect without "sticky": "name" or "statefulset""#,
                r#"ipam.pod.nameScope has no effect without "sticky": "name""#,
                "ipam.pod.poolFrom has no effect without pools",
                r#"ipam.pod.annotations.sticky has no effect without "sticky": "name""#,
                "ipam.pod.annotations.pool has no effect without pools",
                r#"ipam.pod.annotations.address has no effect without "addresses": true"#,
            ]
        );
        let used = json!({"sticky": "name", "nameScope": "cluster", "keep": "1h", "pools": ["a"]});
        assert_eq!(read(used).unwrap().unwrap().remarks, [""; 0]);
    }
}
