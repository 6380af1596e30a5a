//! The pod of a call: its name by `CNI_ARGS`, and what its object says.

use std::collections::BTreeMap;
use std::fmt;

use ipam_kit::cni::{Args, Network, parse_value};
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{Kube, Resource};
use serde::Deserialize;

/// Annotations by their names.
pub(crate) type Annotations = BTreeMap<String, String>;

/// The pod that a runtime names.
#[derive(Debug)]
pub(crate) struct PodId {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Older runtimes name none.
    uid: Option<String>,
}

/// The parts of a pod that a choice depends on.
#[derive(Debug, Default)]
pub(crate) struct PodFacts {
    pub(crate) annotations: Annotations,
    /// A StatefulSet controls it, and gave it its name.
    pub(crate) is_of_stateful_set: bool,
}

/// A pod or a namespace, as far as it is read.
#[derive(Deserialize)]
struct ApiObject {
    metadata: ObjectMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectMetadata {
    uid: String,
    annotations: Option<Annotations>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnerReference {
    kind: String,
    name: String,
    controller: Option<bool>,
}

/// Annotations in which a static pod's mirror has the uid that runtimes know.
const OF_STATIC_POD: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

/// The capability by which a runtime passes the annotations of the pod.
const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

impl PodId {
    /// # Errors
    /// Error 4: the runtime names no pod, or one that cannot exist.
    pub(crate) fn of(args: &Args) -> Result<Self> {
        let part = |key: &str| {
            let text = args.get(key).filter(|text| !text.is_empty()).ok_or_else(|| {
                invalid(format!("CNI_ARGS {key}: missing"))
                    .advise("ipam.pod is for networks of Kubernetes, whose runtimes name the pod")
            })?;
            match is_object_name(text) {
                true => Ok(text.to_owned()),
                false => Err(invalid(format!("CNI_ARGS {key}: invalid name {text:?}"))),
            }
        };
        let uid = args.get("K8S_POD_UID").filter(|uid| !uid.is_empty());
        Ok(Self {
            namespace: part("K8S_POD_NAMESPACE")?,
            name: part("K8S_POD_NAME")?,
            uid: uid.map(str::to_owned),
        })
    }

    /// Reads the object of the pod.
    ///
    /// # Errors
    /// The pod does not exist any more, or is another one of its name (11); the API server is
    /// unreachable or refuses.
    pub(crate) fn read(&self, kube: &mut Kube) -> Result<PodFacts> {
        let Self { namespace, name, uid } = self;
        let object: Option<ApiObject> = kube.get(&pods(namespace, name))?;
        let object = object.ok_or_else(|| self.gone("does not exist"))?;
        let ObjectMetadata { uid: found, annotations, owner_references } = object.metadata;
        let annotations = annotations.unwrap_or_default();
        if let Some(uid) = uid.as_ref().filter(|uid| **uid != found)
            && !OF_STATIC_POD.iter().any(|key| annotations.get(*key) == Some(uid))
        {
            return Err(self.gone(&format!("has the uid {found:?}, and the call is for {uid:?}")));
        }
        let owners = owner_references.unwrap_or_default();
        let is_of_stateful_set = owners.iter().any(|owner| owner.named(name));
        Ok(PodFacts { annotations, is_of_stateful_set })
    }

    /// Reads the annotations of the pod's namespace.
    ///
    /// # Errors
    /// The namespace does not exist (11); the API server is unreachable or refuses.
    pub(crate) fn read_namespace(&self, kube: &mut Kube) -> Result<Annotations> {
        let object: Option<ApiObject> = kube.get(&namespaces(&self.namespace))?;
        let object = object.ok_or_else(|| self.gone("has a namespace that does not exist"))?;
        Ok(object.metadata.annotations.unwrap_or_default())
    }

    fn gone(&self, how: &str) -> Error {
        Error::new(ErrorCode::TRY_AGAIN, format!("pod {self} {how}"))
            .advise("the pod was deleted meanwhile: the runtime calls again for the next one")
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl OwnerReference {
    /// Whether this is a StatefulSet that controls a pod and gave it this name.
    fn named(&self, pod: &str) -> bool {
        let number = pod.strip_prefix(&*self.name).and_then(|rest| rest.strip_prefix('-'));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        self.controller == Some(true) && self.kind == "StatefulSet" && number.is_some_and(is_number)
    }
}

/// The annotations that the runtime passes; `None` if it passes none.
///
/// # Errors
/// They are not an object of strings.
pub(crate) fn of_runtime(network: &Network) -> Result<Option<Annotations>> {
    let passed = network.config().get("runtimeConfig").and_then(|it| it.get(CAPABILITY));
    let Some(passed) = passed else { return Ok(None) };
    // containerd passes null for a pod without annotations.
    let annotations: Option<Annotations> =
        parse_value(passed, &format!("runtimeConfig.{CAPABILITY}"))?;
    Ok(Some(annotations.unwrap_or_default()))
}

/// A pod.
pub(crate) fn pods<'a>(namespace: &'a str, name: &'a str) -> Resource<'a> {
    Resource { plural: "pods", namespace: Some(namespace), ..Resource::node(name) }
}

/// A namespace.
pub(crate) fn namespaces(name: &str) -> Resource<'_> {
    Resource { plural: "namespaces", ..Resource::node(name) }
}

/// Whether an object can have this name. Any other may have a meaning of its own in a path.
fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.bytes().all(|byte| is_inner(byte) || matches!(byte, b'-' | b'.'))
        && name.bytes().next().is_some_and(is_inner)
        && name.bytes().last().is_some_and(is_inner)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_by_the_runtime() {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=";
        let id = PodId::of(&Args::parse(args)).unwrap();
        assert_eq!((id.to_string(), id.uid), ("shop/web-0".to_owned(), None));
        for (args, message) in [
            ("", "CNI_ARGS K8S_POD_NAMESPACE: missing"),
            ("K8S_POD_NAME=ctr", "CNI_ARGS K8S_POD_NAMESPACE: missing"),
            ("K8S_POD_NAMESPACE=shop", "CNI_ARGS K8S_POD_NAME: missing"),
            ("K8S_POD_NAMESPACE=..;K8S_POD_NAME=a", "CNI_ARGS K8S_POD_NAMESPACE: invalid name"),
            ("K8S_POD_NAMESPACE=a;K8S_POD_NAME=b/log", "CNI_ARGS K8S_POD_NAME: invalid name"),
        ] {
            let error = PodId::of(&Args::parse(args)).unwrap_err();
            assert_eq!(error.code().number(), 4);
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_stateful_set_is_known_by_its_reference_and_its_name() {
        let owner = |kind: &str, name: &str, controller| OwnerReference {
            kind: kind.to_owned(),
            name: name.to_owned(),
            controller,
        };
        for (owner, expected) in [
            (owner("StatefulSet", "web", Some(true)), true),
            (owner("StatefulSet", "web", Some(false)), false),
            (owner("StatefulSet", "web", None), false),
            (owner("ReplicaSet", "web", Some(true)), false),
            (owner("StatefulSet", "we", Some(true)), false),
            (owner("StatefulSet", "web-0", Some(true)), false),
        ] {
            assert_eq!(owner.named("web-0"), expected, "{} {}", owner.kind, owner.name);
        }
    }

    #[test]
    fn a_runtime_passes_annotations_or_null_or_nothing() {
        for (runtime, expected) in [
            (serde_json::json!({}), Ok(None)),
            (serde_json::json!({CAPABILITY: null}), Ok(Some(0))),
            (serde_json::json!({CAPABILITY: {"a": "b"}}), Ok(Some(1))),
            (serde_json::json!({CAPABILITY: {"a": 5}}), Err(())),
            (serde_json::json!({CAPABILITY: "a"}), Err(())),
        ] {
            let config = serde_json::json!({
                "cniVersion": "1.0.0", "name": "net", "ipam": {}, "runtimeConfig": runtime,
            });
            let network = Network::new(config.as_object().unwrap().clone()).unwrap();
            let passed = of_runtime(&network);
            let counts = passed.map(|it| it.map(|it| it.len())).map_err(|error| {
                assert!(
                    error.to_string().starts_with("runtimeConfig.io.kubernetes.cri"),
                    "{error}"
                );
            });
            assert_eq!(counts, expected, "{runtime}");
        }
    }
}
