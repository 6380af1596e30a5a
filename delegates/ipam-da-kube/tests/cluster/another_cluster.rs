//! A kubeconfig that leads to another cluster than before: no call reports that leases there are gone.

use std::fs;

use ipam_testkit::kube::{Grant, Kubeconfig, Login};
use ipam_testkit::node::{addresses, given};
use ipam_testkit::whereabouts::{API, Crds, Objects, POOLS, RESERVATIONS};
use serde_json::{Value, json};

use crate::common::node::{Node, POOL, SUBNET, change_note};
use crate::common::relay::{Fate, Relay};
use crate::common::{Desk, v094};

/// What the other cluster has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum There {
    Nothing,
    /// The same pool, without entries.
    EmptyPool,
    /// The same objects, of other containers.
    OthersLeases,
}

impl There {
    /// Lets the kubeconfig of a desk lead to another cluster. Returns what that has.
    #[track_caller]
    pub fn reach(self, desk: &Desk) -> Objects {
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

const ANOTHER: [&str; 4] = [
    "is of another cluster than the lease",
    "its namespace kube-system",
    "run `ipam-delegated forget NETWORK CONTAINER --yes`",
    "then `ipam-da-kube accept --config FILE`",
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

#[track_caller]
fn assert_new(outcome: ipam_testkit::world::Outcome) {
    let (code, text) = outcome.failure();
    assert_eq!(code, 11, "{text}");
    for part in ["is of another cluster than this node's leases", "check the server"] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    assert!(!text.contains("backup"), "{text}");
}

#[test]
fn an_add_fails_in_another_cluster_also_in_a_pool_that_is_new_to_the_node() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    node.add("c1");
    let own = fs::read(desk.kubeconfig_path()).unwrap();
    let objects = There::OthersLeases.reach(&desk);
    let elsewhere = node.with_subnets(&["10.9.0.0/24"]);
    assert_new(elsewhere.call("ADD", "c2"));
    // It stops no call in the node's own cluster.
    fs::write(desk.kubeconfig_path(), own).unwrap();
    let node = elsewhere.with_subnets(&[SUBNET]);
    node.add("c2");
    There::Nothing.reach(&desk);
    for container in ["c1", "c2"] {
        assert_eq!(node.call("ADD", container).failure().0, 11, "{container}");
    }
    assert_eq!(objects.pools().len(), 1);
}

#[test]
fn after_a_move_each_lease_is_released_in_its_own_cluster_alone() {
    for overlap_check in [true, false] {
        let desk = Desk::new(&v094());
        let node = Node::of(&desk).with("overlapCheck", overlap_check);
        let [old, left] = ["c1", "c0"].map(|container| node.add(container));
        let own = fs::read(desk.kubeconfig_path()).unwrap();
        let objects = There::OthersLeases.reach(&desk);
        let theirs = fs::read(desk.kubeconfig_path()).unwrap();
        // A person says that the node is of this cluster now.
        let accepted = node.typed(&["accept"]);
        assert_eq!(accepted.exit, Some(0), "{accepted:?}");
        for left in ["c1/eth0 holds 10.1.2.2 in the cluster", "c0/eth0 holds 10.1.2.3 in the"] {
            assert!(accepted.stderr.contains(left), "{accepted:?}");
        }
        let later = ["c2", "c3"].map(|container| node.add(container));
        assert_eq!(addresses(&later[0]), ["10.1.2.3"]);
        assert_another(node.del_known("c1", &old));
        assert_another(node.check("c1", &old));
        // Without a record, this node leaves its lease where it is.
        node.del("c0");
        fs::write(desk.kubeconfig_path(), own).unwrap();
        for _ in 0..2 {
            assert_another(node.del_known("c2", &later[0]));
            assert_another(node.call("DEL", "c3"));
            assert_another(node.check("c2", &later[0]));
        }
        assert_eq!(node.call("ADD", "c2").failure().0, 11);
        node.del_known("c1", &old).success();
        node.del_known("c0", &left).success();
        assert_eq!(desk.held(), [""; 0], "{overlap_check}");
        fs::write(desk.kubeconfig_path(), theirs).unwrap();
        node.del_known("c2", &later[0]).success();
        node.del("c3");
        assert_eq!(objects.allocations(POOL).len(), 1, "{overlap_check}");
    }
}

#[test]
fn a_network_claims_in_each_cluster_that_was_accepted() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    node.add("c1");
    let own = fs::read(desk.kubeconfig_path()).unwrap();
    There::Nothing.reach(&desk);
    let theirs = fs::read(desk.kubeconfig_path()).unwrap();
    let node = node.with_subnets(&["10.9.0.0/24"]);
    assert_new(node.call("ADD", "c2"));
    node.told(&["accept"]);
    let mut node = node;
    let mut results = Vec::new();
    for container in ["c2", "c3", "c4", "c5"] {
        let (kubeconfig, subnet) = match container {
            "c2" | "c4" => (&theirs, "10.9.0.0/24"),
            _ => (&own, SUBNET),
        };
        fs::write(desk.kubeconfig_path(), kubeconfig).unwrap();
        node = node.with_subnets(&[subnet]);
        results.push(node.add(container));
    }
    assert_another(node.del_known("c4", &results[2]));
    node.del_known("c5", &results[3]).success();
    fs::write(desk.kubeconfig_path(), theirs).unwrap();
    assert_another(node.del_known("c3", &results[1]));
    node.del_known("c4", &results[2]).success();
}

#[test]
fn an_add_with_several_views_tells_of_a_lease_elsewhere_once() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    node.add("c1");
    let own = fs::read(desk.kubeconfig_path()).unwrap();
    There::Nothing.reach(&desk);
    node.told(&["accept"]);
    let node = node.with_subnets(&["10.9.0.0/24"]);
    node.add("c2");
    let node = node.with_subnets(&[SUBNET]);
    fs::write(desk.kubeconfig_path(), own).unwrap();
    desk.client.create(&json!({
        "apiVersion": API, "kind": "OverlappingRangeIPReservation",
        "metadata": {"namespace": desk.namespace, "name": "10.1.2.3"},
        "spec": {"podref": "a/b", "containerid": "foreign", "ifname": "eth0"},
    }));
    let added = node.call("ADD", "c2");
    let told = added.stderr.matches("c2/eth0 holds 10.9.0.2 in the cluster").count();
    assert_eq!(told, 1, "{added:?}");
    assert_ne!(added.ips(), ["10.1.2.3/24"]);
}

#[test]
fn a_first_add_that_fails_notes_no_cluster() {
    let desk = Desk::new(&v094());
    let own = fs::read(desk.kubeconfig_path()).unwrap();
    There::OthersLeases.reach(&desk);
    let node = Node::of(&desk).with_in_pools("requested-ip", "10.1.2.2");
    assert_eq!(node.call("ADD", "c1").failure().0, 102);
    fs::write(desk.kubeconfig_path(), own).unwrap();
    node.add("c1");
}

/// Removes what an earlier release did not write: the cluster of a lease.
fn as_before(lease: &mut Value) {
    assert!(lease.as_object_mut().unwrap().remove("store").is_some(), "{lease}");
}

/// An ADD's leases as an earlier release gave them.
fn given_before(result: &Value) -> Value {
    let mut given = given(result);
    as_before(&mut given["leases"][0]);
    given
}

#[test]
fn leases_of_an_earlier_release_are_proved_by_the_clusters_of_the_network() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    let held = ["c1", "c2"].map(|container| given_before(&node.add(container)));
    let notes = node.world.path("state/kube/net");
    for container in ["c1", "c2"] {
        let note = notes.join(format!("owners/{container}:eth0"));
        change_note(&note, |note| as_before(&mut note["leases"][0]));
    }
    change_note(&notes.join(format!("pools/{POOL}.json")), |note| {
        assert!(note.as_object_mut().unwrap().remove("cluster").is_some());
    });
    let own = fs::read(desk.kubeconfig_path()).unwrap();
    There::EmptyPool.reach(&desk);
    assert_another(node.call_with("DEL", "c1", &held[0]));
    assert_another(node.call("DEL", "c2"));
    fs::write(desk.kubeconfig_path(), own).unwrap();
    // A repeated ADD proves them by themselves.
    let again = node.add("c2");
    assert!(given(&again)["leases"][0]["store"].is_string());
    node.del_known("c2", &again).success();
    node.call_with("DEL", "c1", &held[0]).success();
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_call_that_changes_the_pool_meanwhile_costs_no_look_at_the_cluster() {
    let get = "GET ippools/10.1.2.0-24 200";
    let reservation = |verb: &str| format!("{verb} overlappingrangeipreservations/10.1.2.2 404");
    for is_repeated in [true, false] {
        let desk = Desk::new(&v094());
        let relay: Relay = desk.relayed();
        let node = Node::of(&desk);
        let held = node.add("c1");
        let expected = match is_repeated {
            true => {
                node.del_known("c1", &held).success();
                vec![get.to_owned(), reservation("GET")]
            }
            // Others have released it, as the reconciler of whereabouts does.
            false => {
                desk.client.delete(&desk.objects().path(RESERVATIONS, "10.1.2.2"));
                desk.patch(POOLS, POOL, &json!({"spec": {"allocations": {"2": null}}}));
                let patch = "PATCH ippools/10.1.2.0-24 422";
                vec![reservation("DELETE"), patch.to_owned(), get.to_owned()]
            }
        };
        let note = node.world.path(&format!("state/kube/net/pools/{POOL}.json"));
        relay.decide(move |ask| {
            if ask.method == "GET" && ask.target.contains("/ippools/") {
                change_note(&note, |noted| {
                    noted["version"] = (noted["version"].as_u64().unwrap() + 1_000_000).into();
                });
            }
            Fate::Pass
        });
        assert_eq!(relay.during(|| drop(node.del_known("c1", &held).success())), expected);
    }
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
    for part in [
        "its DEL in another one finds nothing and succeeds",
        "a DEL that finds neither pool nor any other lease fails with code 103",
        "\"resources\": [\"namespaces\"]",
    ] {
        assert!(said.contains(part), "{said}");
    }
    There::Nothing.reach(&desk);
    node.del_known("c1", &held).success();
    // The right can be given later.
    desk.log_in(&login);
    let grant = allow_cluster(&desk, &login);
    let said = node.told(&["lint"]);
    assert!(!said.contains("names no cluster"), "{said}");
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
    change_note(&note, |noted: &mut Value| {
        assert!(noted["cluster_refused"].as_u64().unwrap() > 0);
        noted["cluster_refused"] = 1.into();
    });
}
