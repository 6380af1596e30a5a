//! The reconciler of v0.7.0, which v0.9.4 still has: `pkg/reconciler/iploop.go`.

use serde_json::json;

use crate::kube::Client;
use crate::whereabouts::{Objects, POOLS, RESERVATIONS};

/// Does what the reconciler does every night, where these pods live: podref and address as text.
///
/// It deletes the entries with a podref that no such pod has, and the reservations likewise, whose
/// names it takes for addresses with `-` for `:`. So it deletes the reservations of all named
/// networks, and those without a podref.
#[track_caller]
pub fn reconcile(client: &Client, namespace: &str, living: &[(&str, &str)]) {
    let objects = Objects::of(client, namespace);
    let lives = |podref: &str, address: &str| living.contains(&(podref, address));
    for held in objects.held() {
        let (podref, address) = (held.entry.podref.unwrap_or_default(), held.address.to_string());
        if !podref.is_empty() && !lives(&podref, &address) {
            let path = format!("/spec/allocations/{}", held.offset);
            let patch = json!([{"op": "remove", "path": path}]);
            client.patch(&objects.path(POOLS, &held.pool), &patch);
        }
    }
    for (name, reservation) in objects.reservations() {
        let podref = reservation["spec"]["podref"].as_str().unwrap_or_default();
        if !lives(podref, &name.replace('-', ":")) {
            client.delete(&objects.path(RESERVATIONS, &name));
        }
    }
}
