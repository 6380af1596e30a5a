//! A server with the objects of whereabouts, and a state folder.

pub mod beside;
pub mod node;
pub mod relay;
pub mod site;
pub mod sticky;

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipam_testkit::kube::{Client, Kube, Kubeconfig, Login};
use ipam_testkit::whereabouts::{Crds, Objects, Release};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use relay::{Relay, no_bug};

/// A namespace of a server, and a node's state folder.
pub struct Desk {
    pub kube: &'static Kube,
    pub login: Login,
    pub client: Client,
    pub namespace: String,
    pub folder: TempDir,
}

impl Desk {
    /// On the server of these CRDs.
    #[track_caller]
    pub fn new(crds: &Crds) -> Self {
        Self::on(crds.served())
    }

    /// On a server that serves the kinds of whereabouts.
    #[track_caller]
    pub fn on(kube: &'static Kube) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("desk-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let login = kube.admin();
        let client = kube.client(&login);
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        client.create(&object);
        let folder = TempDir::new().unwrap();
        let more = json!({"contexts": [{"context": {"namespace": namespace}}]});
        Kubeconfig::of(kube, &login).more(&more).write(&folder.path().join("kubeconfig"));
        Self { kube, login, client, namespace, folder }
    }

    /// The section `ipam`, with these keys in `kube`.
    pub fn ipam(&self, kube: &Value) -> Value {
        let mut ipam = json!({
            "kube": {"kubeconfig": self.folder.path().join("kubeconfig"), "timeout": "20s"},
            "stateDir": self.folder.path().join("state"),
        });
        for (key, value) in kube.as_object().unwrap() {
            ipam["kube"][key] = value.clone();
        }
        ipam
    }

    /// Lets nodes reach the server through a relay.
    pub fn relayed(&self) -> Relay {
        let relay = Relay::to(&self.client, no_bug);
        let kubeconfig = self.kubeconfig_of(&self.login).server(&relay.url()).authority(None);
        kubeconfig.write(&self.kubeconfig_path());
        relay
    }

    /// Lets no call wait for its turn at a pool.
    pub fn end_turns(&self) {
        end_turns(&self.folder.path().join("state"));
    }

    pub fn objects(&self) -> Objects {
        Objects::of(&self.client, &self.namespace)
    }

    /// Makes all leases of the namespace look older.
    pub fn age(&self, by: Duration) {
        age(&self.client, &self.namespace, by);
    }
}

/// The server whose CRDs tests change, for one test at a time. It serves what the last one left.
#[track_caller]
pub fn changing() -> MutexGuard<'static, &'static Kube> {
    static SERVER: LazyLock<Mutex<&Kube>> = LazyLock::new(|| Mutex::new(Kube::shared()));
    SERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets no call of a node wait for its turn at a pool: the folder of the locks is a file.
pub fn end_turns(state: &Path) {
    let folder = state.join("kube");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).unwrap();
    fs::write(folder.join("#locks"), "").unwrap();
}

/// Makes all leases of a namespace look older.
pub fn age(client: &Client, namespace: &str, by: Duration) {
    let objects = Objects::of(client, namespace);
    let by = u64::try_from(by.as_millis()).unwrap();
    for (name, reservation) in objects.reservations() {
        let mut older = json!({});
        for key in ["ipam-delegated/taken", "ipam-delegated/confirmed"] {
            if let Some(time) = reservation["metadata"]["annotations"][key].as_str() {
                older[key] = (time.parse::<u64>().unwrap() - by).to_string().into();
            }
        }
        let path = objects.path("overlappingrangeipreservations", &name);
        client.patch(&path, &json!({"metadata": {"annotations": older}}));
    }
    let sticky = format!("/apis/{}/namespaces/{namespace}/stickyleases", sticky::STICKY_API);
    for object in client.get(&sticky).iter().flat_map(|all| all["items"].as_array()).flatten() {
        // Their times are those of people: they become as old as any.
        let past = "2026-01-01T00:00:00Z";
        let older = match object["spec"]["holder"].is_object() {
            true => json!({"spec": {"holder": {"since": past}}}),
            false => json!({"spec": {"keptUntil": past}}),
        };
        let name = object["metadata"]["name"].as_str().unwrap();
        client.patch(&format!("{sticky}/{name}"), &older);
    }
    for (name, pool) in objects.pools() {
        let notes = pool["metadata"]["annotations"].as_object().into_iter().flatten();
        let notes = notes.filter(|(key, _)| key.starts_with("ipam-delegated/freed-"));
        let older = notes.map(|(key, note)| {
            let (freed, time) = note.as_str().unwrap().split_once(' ').unwrap();
            (key.clone(), json!(format!("{freed} {}", time.parse::<u64>().unwrap() - by)))
        });
        let older: Map<String, Value> = older.collect();
        if !older.is_empty() {
            let change = json!({"metadata": {"annotations": older}});
            client.patch(&objects.path("ippools", &name), &change);
        }
        for (key, entry) in pool["spec"]["allocations"].as_object().into_iter().flatten() {
            let Some(text) = entry["ipamDelegated"].as_str() else { continue };
            let mut mark: Value = serde_json::from_str(text).unwrap();
            for key in ["taken", "confirmed"] {
                mark[key] = (mark[key].as_u64().unwrap() - by).into();
            }
            let change =
                json!({"spec": {"allocations": {key: {"ipamDelegated": mark.to_string()}}}});
            client.patch(&objects.path("ippools", &name), &change);
        }
    }
}

/// The CRDs of upstream's newest release.
pub fn v094() -> Crds {
    Release::V094.crds()
}

/// The CRDs of releases that drop the interface of an entry.
pub fn v07() -> Crds {
    Release::V07.crds()
}
