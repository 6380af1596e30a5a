//! The pod of a call: its name by `CNI_ARGS`, and what its object says.

use std::collections::BTreeMap;
use std::fmt;

use ipam_kit::cni::{Args, Network, parse_value};
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{Kube, Resource, STATIC_POD_UID, is_object_name};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Annotations by their names: as many bytes as an API server keeps of an object.
#[derive(Debug, Default)]
pub(crate) struct Annotations(BTreeMap<String, String>);

/// The most bytes of all annotations of an object, as Kubernetes limits them.
const MOST: usize = 256 << 10;

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
#[serde(default)]
struct ObjectMetadata {
    uid: String,
    annotations: Option<Annotations>,
    #[serde(rename = "ownerReferences")]
    controller: Controller,
}

/// The reference to the controller, which is at most one of the owners.
#[derive(Default)]
struct Controller(Option<OwnerReference>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnerReference {
    kind: String,
    name: String,
    controller: Option<bool>,
}

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
                false => Err(invalid(format!("CNI_ARGS {key}: invalid name {text:?}"))
                    .advise("the runtime passes the name of a Kubernetes object")),
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
        let ObjectMetadata { uid: found, annotations, controller } = object.metadata;
        let annotations = annotations.unwrap_or_default();
        if let Some(uid) = uid.as_ref().filter(|uid| **uid != found)
            && !STATIC_POD_UID.iter().any(|key| annotations.get(key) == Some(uid))
        {
            return Err(self.gone(&format!("has the uid {found:?}, and the call is for {uid:?}")));
        }
        let is_of_stateful_set = controller.0.is_some_and(|owner| owner.named(name));
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

impl Annotations {
    pub(crate) fn get(&self, name: &str) -> Option<&String> {
        self.0.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnnotationVisitor;
        impl<'de> Visitor<'de> for AnnotationVisitor {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Annotations, A::Error> {
                let (mut annotations, mut bytes) = (BTreeMap::new(), 0);
                while let Some((name, text)) = members.next_entry::<String, String>()? {
                    bytes += name.len() + text.len();
                    if bytes > MOST {
                        return Err(A::Error::custom("more than 256 KiB of annotations"));
                    }
                    annotations.insert(name, text);
                }
                Ok(Annotations(annotations))
            }
        }
        deserializer.deserialize_map(AnnotationVisitor)
    }
}

impl<'de> Deserialize<'de> for Controller {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OwnersVisitor;
        impl<'de> Visitor<'de> for OwnersVisitor {
            type Value = Controller;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_unit<E>(self) -> Result<Controller, E> {
                Ok(Controller::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut owners: A) -> Result<Controller, A::Error> {
                let mut controller = None;
                while let Some(owner) = owners.next_element::<OwnerReference>()? {
                    let is_controller = owner.controller == Some(true);
                    controller = controller.or(Some(owner).filter(|_| is_controller));
                }
                Ok(Controller(controller))
            }
        }
        deserializer.deserialize_any(OwnersVisitor)
    }
}

impl OwnerReference {
    /// Whether this is a StatefulSet that gave a pod this name.
    fn named(&self, pod: &str) -> bool {
        let number = pod.strip_prefix(&*self.name).and_then(|rest| rest.strip_prefix('-'));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        self.kind == "StatefulSet" && number.is_some_and(is_number)
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

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        for (owners, expected) in [
            (json!([{"kind": "StatefulSet", "name": "web", "controller": true}]), true),
            (json!([{"kind": "StatefulSet", "name": "web", "controller": false}]), false),
            (json!([{"kind": "StatefulSet", "name": "web"}]), false),
            (json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]), false),
            (json!([{"kind": "StatefulSet", "name": "we", "controller": true}]), false),
            (json!([{"kind": "StatefulSet", "name": "web-0", "controller": true}]), false),
            (
                json!([{"kind": "Job", "name": "web"},
                       {"kind": "StatefulSet", "name": "web", "controller": true}]),
                true,
            ),
            (json!([]), false),
            (json!(null), false),
        ] {
            let read: ObjectMetadata =
                serde_json::from_value(json!({ "ownerReferences": owners })).unwrap();
            assert_eq!(read.controller.0.is_some_and(|it| it.named("web-0")), expected, "{owners}");
        }
    }

    #[test]
    fn a_runtime_passes_annotations_or_null_or_nothing() {
        for (runtime, expected) in [
            (json!({}), Ok(None)),
            (json!({CAPABILITY: null}), Ok(Some(0))),
            (json!({CAPABILITY: {"a": "b"}}), Ok(Some(1))),
            (json!({CAPABILITY: {"a": 5}}), Err(())),
            (json!({CAPABILITY: "a"}), Err(())),
            (json!({CAPABILITY: {"a": "b".repeat(MOST)}}), Err(())),
        ] {
            let config = json!({
                "cniVersion": "1.0.0", "name": "net", "ipam": {}, "runtimeConfig": runtime,
            });
            let network = Network::new(config.as_object().unwrap().clone()).unwrap();
            let passed = of_runtime(&network);
            let counts = passed.map(|it| it.map(|it| it.names().count())).map_err(|error| {
                assert!(
                    error.to_string().starts_with("runtimeConfig.io.kubernetes.cri"),
                    "{error}"
                );
            });
            assert_eq!(counts, expected, "{runtime}");
        }
    }
}
