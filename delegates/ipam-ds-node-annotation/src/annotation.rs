//! The annotation of a node object: its name in the configuration, its value, and the settings in
//! it.

use ipam_kit::keys::Key;
use ipam_kit::{Error, Result};
use ipam_kube::own_node::{NodeKeys, rejected};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::fragment;

/// The keys of `ipam` that this delegate reads; those of the annotation replace all others.
pub(crate) const KEYS: &[Key] =
    &[Key::All(OWN), Key::All(NodeKeys::KEYS), Key::Value("rangeRules")];

const OWN: &[Key] = &[Key::Value("annotation")];

/// The keys of `ipam` that this delegate reads, without those that find the node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AnnotationConfig {
    annotation: Option<String>,
}

impl AnnotationConfig {
    /// The annotation's name.
    ///
    /// # Errors
    /// The configuration names none.
    pub(crate) fn annotation(&self) -> Result<&str> {
        self.annotation.as_deref().filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::config("ipam.annotation", "missing").advise(
                r#"set the name of the annotation, for example "annotation": "example.com/ranges""#,
            )
        })
    }
}

/// The value of the annotation.
///
/// # Errors
/// The node object has no such annotation.
pub(crate) fn value_of(found: Option<&str>, node: &str, name: &str) -> Result<String> {
    found.map(str::to_owned).ok_or_else(|| {
        rejected(node, &path(name), "missing").advise(format!(
            r#"kubectl annotate node {node} {name}='"ranges": [[{{"subnet": "10.1.2.0/24"}}]]'"#
        ))
    })
}

/// Parses the settings in the value of an annotation.
///
/// # Errors
/// The value is malformed.
pub(crate) fn parse(value: &str, node: &str, name: &str) -> Result<Map<String, Value>> {
    fragment::parse(value).map_err(|error| error.within(of_node(node, name)))
}

/// The annotation of a node, as errors name it.
pub(crate) fn of_node(node: &str, name: &str) -> String {
    format!("{} of node {node}", path(name))
}

/// The annotation, as errors name it.
pub(crate) fn path(name: &str) -> String {
    format!("annotation {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::keys::names;

    #[test]
    fn every_key_is_declared() {
        ipam_testkit::fields::assert_fields::<AnnotationConfig>(&names(OWN));
    }
}
