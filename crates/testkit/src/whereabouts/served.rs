//! CRDs that a server serves.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::crds::Crds;
use super::{API, collection};
use crate::kube::{Client, Kube, minor_version};
use crate::servers::process;
use crate::world::until;

/// Where the definitions are.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A server that is started by the first that asks for it.
type Lasting = Arc<OnceLock<&'static Kube>>;

impl Crds {
    /// The server that all tests of this binary share under these CRDs: each set has one, which
    /// serves no other of whereabouts. A test that changes CRDs takes another server.
    #[track_caller]
    pub fn served(&self) -> &'static Kube {
        static SERVERS: Mutex<Vec<(Crds, Lasting)>> = Mutex::new(Vec::new());
        let server = {
            let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
            let known = servers.iter().find(|(crds, _)| crds == self);
            let server = known.map_or_else(Lasting::default, |(_, server)| server.clone());
            if known.is_none() {
                servers.push((self.clone(), server.clone()));
            }
            server
        };
        server.get_or_init(|| {
            let kube = Kube::lasting();
            self.install(kube);
            kube
        })
    }

    /// Makes a server serve these CRDs, in place of those of the same names, and waits until each
    /// takes effect. Objects stay. CRDs of other names stay, too.
    ///
    /// The server's schemas have one more member at their root, which no object has: an object
    /// that misuses it is refused as soon as the new schema is the one that is used.
    #[track_caller]
    pub fn install(&self, client: &Client) {
        let put: Vec<(String, String)> = self.0.iter().map(|crd| put(client, crd)).collect();
        for (plural, probe) in put {
            let path = collection("default", &plural);
            let kind = self.kind(&plural);
            let object = json!({
                "apiVersion": API, "kind": kind, "metadata": {"name": "probe"}, "spec": {},
                probe.as_str(): 1,
            });
            let body = object.to_string();
            until("the CRD takes effect", || {
                let answer = client.ask("POST", &format!("{path}?dryRun=All"), body.as_bytes());
                answer.status == 422 && answer.text().contains(&probe)
            });
            client.ask("GET", &path, b"").success();
        }
    }

    /// Makes a server serve these CRDs and no other of whereabouts. The objects of the others are
    /// deleted.
    #[track_caller]
    pub fn install_alone(&self, client: &Client) {
        let group = self.0[0]["spec"]["group"].clone();
        let all = client.get(DEFINITIONS).unwrap();
        for crd in all["items"].as_array().unwrap() {
            let known = self.0.iter().any(|own| own["metadata"]["name"] == crd["metadata"]["name"]);
            if crd["spec"]["group"] == group && !known {
                let path = path(crd);
                client.delete(&path);
                until("the CRD is deleted", || client.get(&path).is_none());
            }
        }
        self.install(client);
    }

    fn kind(&self, plural: &str) -> &Value {
        let names = self.0.iter().map(|crd| &crd["spec"]["names"]);
        &names.into_iter().find(|names| names["plural"] == plural).unwrap()["kind"]
    }
}

/// Writes a definition: its plural, and the member that the schema has more.
#[track_caller]
fn put(client: &Client, crd: &Value) -> (String, String) {
    let probe = format!("probe{:016x}", process::random());
    let mut crd = crd.clone();
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        if minor_version() < 21 {
            allow_empty_texts(&mut schema["properties"]["spec"]);
        }
        schema["properties"][&probe] = json!({"type": "string"});
    }
    // The server's controllers write it, too.
    until("the CRD is written", || {
        let answer = match client.get(&path(&crd)) {
            None => client.ask("POST", DEFINITIONS, crd.to_string().as_bytes()),
            Some(known) => {
                crd["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
                client.ask("PUT", &path(&crd), crd.to_string().as_bytes())
            }
        };
        answer.status != 409 && answer.success().status > 0
    });
    (crd["spec"]["names"]["plural"].as_str().unwrap().to_owned(), probe)
}

/// Lets each text be null. A server below 1.21 that Go 1.16 or later has built, as that of the tests,
/// takes an empty text for null; those that were released do not.
fn allow_empty_texts(schema: &mut Value) {
    if schema["type"] == "string" {
        schema["nullable"] = true.into();
    }
    let members = schema.get_mut("properties").and_then(Value::as_object_mut);
    members.into_iter().flatten().for_each(|(_, member)| allow_empty_texts(member));
    if let Some(entry) = schema.get_mut("additionalProperties") {
        allow_empty_texts(entry);
    }
}

fn path(crd: &Value) -> String {
    format!("{DEFINITIONS}/{}", crd["metadata"]["name"].as_str().unwrap())
}
