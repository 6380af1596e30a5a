//! The CRDs by release, as `doc/crds` of each tag has them, without descriptions.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{POOLS, RESERVATIONS};
use crate::kube::kubectl;
use crate::servers::process;

const GROUP: &str = "whereabouts.cni.cncf.io";

/// A release of whereabouts, by what its objects may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Tag v0.4. The CRD is of `apiextensions.k8s.io/v1beta1`, which keeps unknown members.
    V04,
    /// Tag v0.5.4; v0.4.1 and v0.4.2 have the same IPPool.
    V054,
    /// Tag v0.7.0, with the CRDs of v0.5.4.
    V07,
    /// Tag v0.9.4; v0.8.0 has the same objects.
    V094,
    /// vivekskrishna/whereabouts at 725861cb, with the CRD of v0.4.
    Fork,
}

/// CRDs for a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Crds(pub Vec<Value>);

impl Release {
    pub const ALL: [Self; 5] = [Self::V04, Self::V054, Self::V07, Self::V094, Self::Fork];

    /// Its CRDs. The server serves no kind that the release lacks.
    pub fn crds(self) -> Crds {
        match self {
            Self::V04 | Self::Fork => {
                let open = |mut schema: Value| {
                    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                    schema
                };
                let mut schema = root(open(pool_spec(open(strings(&["id"], &["id"])))));
                schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                Crds(vec![crd("IPPool", POOLS, schema)])
            }
            Self::V054 | Self::V07 => both(
                strings(&["id", "podref"], &["id"]),
                strings(&["containerid", "podref"], &["containerid"]),
            ),
            Self::V094 => both(
                strings(&["id", "ifname", "podref"], &["id", "podref"]),
                strings(&["containerid", "ifname", "podref"], &["podref"]),
            ),
        }
    }
}

impl Crds {
    /// Those that the repository ships.
    #[track_caller]
    pub fn shipped() -> Self {
        static SHIPPED: OnceLock<Crds> = OnceLock::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = root.join("delegates/ipam-da-kube/deploy/crds.yaml");
        SHIPPED.get_or_init(|| Self::read(&file)).clone()
    }

    /// The CRDs of a file in YAML, as kubectl reads it. It asks no server.
    #[track_caller]
    fn read(file: &Path) -> Self {
        let folder = process::folder();
        let mut command = process::plain(kubectl());
        command.env("HOME", folder.path()).args(["label", "--local", "none-", "--output=json"]);
        let output = command.arg("--filename").arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        Self(values.map(Result::unwrap).collect())
    }
}

/// A list as kubectl takes it.
impl fmt::Display for Crds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", json!({"apiVersion": "v1", "kind": "List", "items": self.0}))
    }
}

fn both(entry: Value, reservation: Value) -> Crds {
    let mut schema = root(reservation);
    schema["required"] = json!(["spec"]);
    Crds(vec![
        crd("IPPool", POOLS, root(pool_spec(entry))),
        crd("OverlappingRangeIPReservation", RESERVATIONS, schema),
    ])
}

fn crd(kind: &str, plural: &str, schema: Value) -> Value {
    let singular = kind.to_lowercase();
    let version = json!({
        "name": "v1alpha1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema},
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced", "versions": [version],
            "names": {
                "kind": kind, "listKind": format!("{kind}List"),
                "plural": plural, "singular": singular,
            },
        },
    })
}

fn root(spec: Value) -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {
            "apiVersion": text, "kind": text, "metadata": {"type": "object"}, "spec": spec,
        },
    })
}

fn pool_spec(entry: Value) -> Value {
    json!({
        "type": "object",
        "properties": {
            "allocations": {"type": "object", "additionalProperties": entry},
            "range": {"type": "string"},
        },
        "required": ["allocations", "range"],
    })
}

/// An object of strings.
fn strings(members: &[&str], required: &[&str]) -> Value {
    let member = |name: &&str| ((*name).to_owned(), json!({"type": "string"}));
    let properties: serde_json::Map<String, Value> = members.iter().map(member).collect();
    json!({"type": "object", "properties": properties, "required": required})
}
