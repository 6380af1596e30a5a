//! A kubeconfig that leads to another cluster than before: no call reports that leases there are gone.

use std::fs;

use ipam_testkit::kube::{Grant, Kubeconfig, Login};
use ipam_testkit::node::{addresses, given};
use ipam_testkit::whereabouts::{Crds, Objects, POOLS, RESERVATIONS};
use serde_json::{Value, json};

use crate::common::node::{Node, POOL, SUBNET};
use crate::common::relay::Relay;
use crate::common::{Desk, v094};

/// What the other cluster has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum There {
    Nothing,
    /// The same pool, without entries.
    EmptyPool,
    /// The same objects, of other containers.
    OthersLeases,
}

impl There {
    /// Lets the kubeconfig of a desk lead to another cluster. Returns what that has.
    #[track_caller]
    fn reach(self, desk: &Desk) -> Objects {
        let other = Crds::shipped().served();
        let client = other.client(&other.admin());
        if client.get(&format!("/api/v1/namespaces/{}", desk.namespace)).is_none() {
            let metadata = json!({"name": desk.namespace});
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            client.create(&object);
        }
        let objects = Objects::of(&client, &desk.namespace);
        let entry = json!({"id": "other", "podref": "a/b", "ifname": "eth0"});
        match self {
            Self::Nothing => {}
            Self::EmptyPool => drop(objects.create_pool("", SUBNET, &json!({}))),
            Self::OthersLeases => drop(objects.create_pool("", SUBNET, &json!({"2": entry}))),
        }
        let more = json!({"contexts": [{"context": {"namespace": desk.namespace}}]});
        Kubeconfig::of(other, &other.admin()).more(&more).write(&desk.kubeconfig_path());
        objects
    }
}

const ANOTHER: [&str; 3] = [
    "is of another cluster",
    "its namespace kube-system",
    "run `ipam-da-kube accept --config FILE`",
];

#[track_caller]
fn assert_another(outcome: ipam_testkit::world::Outcome) {
    let (code, text) = outcome.failure();
    assert_eq!(code, 11, "{text}");
    for part in ANOTHER {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

#[test]
fn a_del_and_a_check_fail_in_another_cluster_and_succeed_in_their_own() {
    for overlap_check in [true, false] {
        for there in [There::Nothing, There::EmptyPool, There::OthersLeases] {
            let desk = Desk::new(&v094());
            let node = Node::of(&desk).with("overlapCheck", overlap_check);
            let held = ["c1", "c2", "c3"].map(|container| node.add(container));
            let here = desk.held();
            let own = fs::read(desk.kubeconfig_path()).unwrap();
            let objects = there.reach(&desk);
            let allocations = objects.allocations(POOL);
            for _ in 0..2 {
                assert_another(node.del_known("c1", &held[0]));
                // The node's note knows the lease, and a record that is older than the note.
                assert_another(node.call("DEL", "c2"));
                let (mut older, lease) = (given(&held[2]), "/leases/0/revision");
                if let Some(revision) = older.pointer_mut(lease) {
                    revision["reservation"] = json!({"uid": "u", "resourceVersion": "1"});
                }
                assert_another(node.call_with("DEL", "c3", &older));
                assert_another(node.check("c1", &held[0]));
            }
            assert_eq!(objects.allocations(POOL), allocations, "{there:?}");
            assert_eq!(desk.held(), here);
            fs::write(desk.kubeconfig_path(), own).unwrap();
            node.check("c1", &held[0]).success();
            for (container, held) in ["c1", "c2", "c3"].iter().zip(&held) {
                node.del_known(container, held).success();
            }
            assert_eq!(desk.held(), [""; 0], "{there:?} {overlap_check}");
        }
    }
}

#[test]
fn an_add_fails_in_another_cluster_also_in_a_pool_that_is_new_to_the_node() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    let [held, left] = ["c1", "c0"].map(|container| node.add(container));
    let own = fs::read(desk.kubeconfig_path()).unwrap();
    let objects = There::OthersLeases.reach(&desk);
    let elsewhere = node.with_subnets(&["10.9.0.0/24"]);
    let (code, text) = elsewhere.call("ADD", "c2").failure();
    assert!(code == 11 && text.contains("it is another cluster"), "{code}: {text}");
    let node = elsewhere.with_subnets(&[SUBNET]);
    for container in ["c1", "c2"] {
        assert_eq!(node.call("ADD", container).failure().0, 11, "{container}");
    }
    assert_eq!(objects.pools().len(), 1);
    // A person says that the node is of this cluster now.
    node.told(&["accept"]);
    let later = node.add("c2");
    assert_eq!(addresses(&later), ["10.1.2.3"]);
    node.del_known("c0", &left).success();
    node.del_known("c2", &later).success();
    assert_eq!(objects.allocations(POOL).len(), 1);
    // What it claimed in the other one is still released there.
    fs::write(desk.kubeconfig_path(), own).unwrap();
    assert_eq!(node.call("ADD", "c2").failure().0, 11);
    delete_all(&desk);
    node.del_known("c1", &held).success();
}

/// Lets a login do what `deploy/rbac.yaml` allows in the namespace of a desk.
fn allow(desk: &Desk, login: &Login) {
    let verbs = json!(["get", "list", "create", "patch", "delete"]);
    let all =
        json!([{"apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["*"], "verbs": verbs}]);
    // The right ends with the server.
    let _ = desk.kube.allow_in(&desk.namespace, login, &all);
}

/// Lets a login read the cluster.
fn allow_cluster<'k>(desk: &'k Desk, login: &Login) -> Grant<'k> {
    let rule = json!([{
        "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"],
        "verbs": ["get"],
    }]);
    desk.kube.allow_in("kube-system", login, &rule)
}

#[test]
fn deleted_pools_are_released_after_one_look_at_the_cluster() {
    let desk = Desk::new(&v094());
    let relay: Relay = desk.relayed();
    let node = Node::of(&desk);
    let held = ["c1", "c2"].map(|container| node.add(container));
    delete_all(&desk);
    let expected = [
        "DELETE overlappingrangeipreservations/10.1.2.2 404",
        "PATCH ippools/10.1.2.0-24 404",
        "GET namespaces/kube-system 200",
    ];
    assert_eq!(relay.during(|| drop(node.del_known("c1", &held[0]).success())), expected);
    let expected = [
        "GET ippools/10.1.2.0-24 404",
        "GET overlappingrangeipreservations/10.1.2.3 404",
        "GET namespaces/kube-system 200",
    ];
    assert_eq!(relay.during(|| node.del("c2")), expected);
}

#[test]
fn without_the_right_to_read_the_cluster_a_del_goes_on_and_lint_says_so() {
    let desk = Desk::new(&v094());
    let login = desk.kube.user();
    allow(&desk, &login);
    desk.log_in(&login);
    let node = Node::of(&desk);
    let held = node.add("c1");
    let said = node.told(&["lint"]);
    for part in
        ["warning: a DEL in another cluster is not noticed", "\"resources\": [\"namespaces\"]"]
    {
        assert!(said.contains(part), "{said}");
    }
    There::Nothing.reach(&desk);
    node.del_known("c1", &held).success();
    // The right can be given later.
    desk.log_in(&login);
    let grant = allow_cluster(&desk, &login);
    let said = node.told(&["lint"]);
    assert!(!said.contains("another cluster"), "{said}");
    note_refusals_as_old(&node);
    let held = node.add("c2");
    There::EmptyPool.reach(&desk);
    assert_another(node.del_known("c2", &held));
    // And be taken away: then nothing proves that a lease is gone.
    grant.revoke();
    desk.log_in(&login);
    delete_all(&desk);
    let (code, text) = node.call("DEL", "c2").failure();
    assert!(code == 103 && text.contains("\"resources\": [\"namespaces\"]"), "{code}: {text}");
}

/// Deletes pools and reservations, as a person may.
#[track_caller]
fn delete_all(desk: &Desk) {
    let objects = desk.objects();
    for (plural, all) in [(POOLS, objects.pools()), (RESERVATIONS, objects.reservations())] {
        all.keys().for_each(|name| desk.client.delete(&objects.path(plural, name)));
    }
}

/// Lets a node ask again for what the server refused to tell.
fn note_refusals_as_old(node: &Node) {
    let note = node.world.path("state/kube/net/network.json");
    crate::common::node::change_note(&note, |noted: &mut Value| {
        assert!(noted["cluster_refused"].as_u64().unwrap() > 0);
        noted["cluster_refused"] = 1.into();
    });
}
