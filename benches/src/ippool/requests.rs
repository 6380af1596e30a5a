//! The requests of the bare processes, by verb.

use std::fmt::{self, Display, Write};

use ipam_testkit::kube::Client;
use ipam_testkit::whereabouts::{API, POOLS, RESERVATIONS, collection, pool_name};
use serde_json::{Value, json};

use crate::cluster::NODE;
use crate::network::{NETWORK, SUBNET};

/// The requests of one call, as `kube-floor` reads them.
#[derive(Default)]
pub struct Requests(String);

const JSON: &str = "application/json";
const METADATA_ONLY: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";
const TIME: &str = "2026-01-01T00:00:00.000000Z";

impl Requests {
    fn then(mut self, method: &str, accept: &str, path: &str, body: &Value) -> Self {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let _ = writeln!(self.0, "{method} {accept} {path} {body}");
        self
    }

    fn read(self, path: &str) -> Self {
        self.then("GET", JSON, path, &Value::Null)
    }
}

impl Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Those of `ipam-da-kube`: ADD, and DEL with a record. The entry's key and the reservation's name
/// are the container's, which no other call has.
pub fn own(namespace: &str) -> [Requests; 2] {
    let (pool, reservations) = (pool(namespace), collection(namespace, RESERVATIONS));
    let key = "/spec/allocations/CONTAINER";
    let entry = json!({"id": "CONTAINER", "podref": "", "ifname": "eth0"});
    let taken = "1700000000000";
    let reservation = json!({
        "apiVersion": API, "kind": "OverlappingRangeIPReservation",
        "metadata": {
            "name": "CONTAINER", "namespace": namespace,
            "labels": {"ipam-delegated/node": NODE, "ipam-delegated/network": NETWORK},
            "annotations": {
                "ipam-delegated/node": NODE, "ipam-delegated/network": NETWORK,
                "ipam-delegated/container": "CONTAINER", "ipam-delegated/ifname": "eth0",
                "ipam-delegated/range": SUBNET, "ipam-delegated/pod-uid": "",
                "ipam-delegated/taken": taken, "ipam-delegated/confirmed": taken,
            },
        },
        "spec": {"podref": "", "ifname": "eth0", "containerid": "CONTAINER"},
    });
    let put = json!([
        {"op": "test", "path": key, "value": null}, {"op": "add", "path": key, "value": entry},
    ]);
    let remove = json!([
        {"op": "test", "path": format!("{key}/id"), "value": "CONTAINER"},
        {"op": "test", "path": format!("{key}/ifname"), "value": "eth0"},
        {"op": "remove", "path": key},
    ]);
    let add = Requests::default().read(&pool).then("PATCH", METADATA_ONLY, &pool, &put).then(
        "POST",
        METADATA_ONLY,
        &reservations,
        &reservation,
    );
    let del = Requests::default()
        .then("DELETE", JSON, &format!("{reservations}/CONTAINER"), &Value::Null)
        .then("PATCH", METADATA_ONLY, &pool, &remove);
    [add, del]
}

/// Those of whereabouts 0.9.4, if nothing hinders it.
pub fn old(namespace: &str) -> [Requests; 2] {
    let (pool, reservations) = (pool(namespace), collection(namespace, RESERVATIONS));
    let reservation = format!("{reservations}/CONTAINER");
    let key = "/spec/allocations/CONTAINER";
    let version =
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": "{resourceVersion}"});
    let podref = "default/CONTAINER";
    let entry = json!({"id": "CONTAINER", "podref": podref, "ifname": "eth0"});
    let put = json!([
        version, {"op": "test", "path": key, "value": null}, {"op": "add", "path": key, "value": entry},
    ]);
    let remove = json!([version, {"op": "remove", "path": key}]);
    let object = json!({
        "apiVersion": API, "kind": "OverlappingRangeIPReservation",
        "metadata": {"name": "CONTAINER", "namespace": namespace},
        "spec": {"podref": podref, "ifname": "eth0"},
    });
    let leading = || {
        let lease = lease(namespace);
        let held = record(namespace, podref, "{resourceVersion}");
        Requests::default()
            .read(&lease)
            .then("PUT", JSON, &lease, &held)
            .then("PUT", JSON, &lease, &held)
    };
    let resign = |requests: Requests| {
        let lease = lease(namespace);
        let free = record(namespace, "", "{resourceVersion}");
        requests.read(&lease).then("PUT", JSON, &lease, &free)
    };
    let add = leading()
        .read(&collection(namespace, POOLS))
        .read(&pool)
        .read(&reservation)
        .then("PATCH", JSON, &pool, &put)
        .then("POST", JSON, &reservations, &object);
    let del = leading()
        .read(&collection(namespace, POOLS))
        .read(&pool)
        .then("PATCH", JSON, &pool, &remove)
        .then("DELETE", JSON, &reservation, &Value::Null);
    [add, del].map(resign)
}

/// Makes the Lease that whereabouts waits for, free.
pub fn create_lease(client: &Client, namespace: &str) {
    client.create(&record(namespace, "", ""));
}

fn record(namespace: &str, holder: &str, version: &str) -> Value {
    let mut metadata = json!({"name": "whereabouts", "namespace": namespace});
    if !version.is_empty() {
        metadata["resourceVersion"] = version.into();
    }
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 1, "acquireTime": TIME,
            "renewTime": TIME, "leaseTransitions": 1,
        },
    })
}

fn lease(namespace: &str) -> String {
    format!("{LEASES}/{namespace}/leases/whereabouts")
}

fn pool(namespace: &str) -> String {
    let name = pool_name("", SUBNET.parse().unwrap());
    format!("{}/{name}", collection(namespace, POOLS))
}
