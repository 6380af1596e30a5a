//! An API server that was restored or replaced is noticed, and gives no address before it is accepted;
//! and a record whose kubeconfig is another one today.

use std::fs;
use std::path::Path;

use ipam_testkit::kube::{Credential, Kubeconfig};
use ipam_testkit::node::addresses;
use ipam_testkit::whereabouts::{Crds, Objects, POOLS, RESERVATIONS};
use ipam_testkit::world::{Outcome, World, binary};
use serde_json::{Value, json};

use crate::another_cluster::There;
use crate::common::node::{Node, POOL, SUBNET, change_note};
use crate::common::{Desk, v094};

/// How the objects came to be as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A pool in an earlier state.
    Older,
    /// No objects at all.
    Gone,
    /// The same objects, made again.
    Again,
}

const WAYS: [Way; 3] = [Way::Older, Way::Gone, Way::Again];

impl Way {
    /// Does to the objects of a desk what a restore does. `state` is the state folder of a node.
    #[track_caller]
    fn restore(self, desk: &Desk, state: &Path) {
        let objects = desk.objects();
        if self == Way::Older {
            let note = state.join(format!("kube/net/pools/{POOL}.json"));
            change_note(&note, |noted| {
                noted["version"] = (noted["version"].as_u64().unwrap() + 1_000_000).into();
            });
            return;
        }
        for (plural, all) in [(POOLS, objects.pools()), (RESERVATIONS, objects.reservations())] {
            for (name, mut object) in all {
                desk.client.delete(&objects.path(plural, &name));
                if self == Way::Again {
                    for key in ["uid", "resourceVersion", "managedFields", "creationTimestamp"] {
                        object["metadata"].as_object_mut().unwrap().remove(key);
                    }
                    desk.client.create(&object);
                }
            }
        }
    }
}

#[track_caller]
fn assert_refused(node: &Node, desk: &Desk) {
    let held = desk.held();
    for (verb, container, expected) in
        [("ADD", "new", 11), ("ADD", "old", 11), ("STATUS", "", 50), ("ADD", "new", 11)]
    {
        let (code, text) = node.call(verb, container).failure();
        assert_eq!(code, expected, "{verb} {container}: {text}");
        for part in ["was restored from a backup", "ipam-delegated reassert --claim-only --yes"] {
            assert!(text.contains(part), "{verb}: {text}");
        }
        assert_eq!(desk.held(), held, "{verb} {container}");
    }
}

#[test]
fn restored_objects_give_nothing_until_they_are_accepted() {
    for way in WAYS {
        let desk = Desk::new(&v094());
        let node = Node::of(&desk);
        let old = node.add("old");
        way.restore(&desk, &node.world.path("state"));
        assert_refused(&node, &desk);
        // The verbs for people show the objects as they are.
        assert_eq!(node.listed().len(), usize::from(way != Way::Gone), "{way:?}");
        let told = node.told(&["accept"]);
        assert_eq!(told, "accepted: the store is trusted as it is\n");
        node.call("STATUS", "").success();
        if way != Way::Gone {
            assert_eq!(addresses(&node.add("old")), addresses(&old), "{way:?}");
        }
        node.add("new");
        ["old", "new"].into_iter().for_each(|container| node.del(container));
        assert_eq!(desk.held(), [""; 0], "{way:?}");
    }
}

#[test]
fn restored_objects_take_del_and_check() {
    for (way, by_record) in WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let desk = Desk::new(&v094());
        let node = Node::of(&desk);
        let old = node.add("old");
        way.restore(&desk, &node.world.path("state"));
        assert_refused(&node, &desk);
        match way {
            Way::Gone => assert_eq!(node.check("old", &old).failure().0, 104),
            _ => drop(node.check("old", &old).success()),
        }
        for _ in 0..2 {
            match by_record {
                true => drop(node.del_known("old", &old).success()),
                false => node.del("old"),
            }
            assert_eq!(desk.held(), [""; 0], "{way:?} {by_record}");
        }
        assert_eq!(node.call("ADD", "new").failure().0, 11, "{way:?}");
    }
}

#[test]
fn a_login_of_a_wrong_namespace_stops_calls_there_alone() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    node.add("old");
    let right = fs::read(desk.kubeconfig_path()).unwrap();
    let namespace =
        json!({"contexts": [{"context": {"namespace": desk.client.create_namespace()}}]});
    desk.kubeconfig_of(&desk.login).more(&namespace).write(&desk.kubeconfig_path());
    assert_refused(&node, &desk);
    fs::write(desk.kubeconfig_path(), right).unwrap();
    node.call("STATUS", "").success();
    ["new", "old"].into_iter().for_each(|container| drop(node.add(container)));
    ["new", "old"].into_iter().for_each(|container| node.del(container));
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_node_without_its_notes_uses_what_is_there() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    let old = node.add("old");
    Way::Again.restore(&desk, &node.world.path("state"));
    for text in ["", "{", "[]", "{\"uid\":7}", "\u{0}"] {
        fs::write(node.world.path(&format!("state/kube/net/pools/{POOL}.json")), text).unwrap();
        assert_eq!(addresses(&node.add("old")), addresses(&old), "{text:?}");
    }
    fs::remove_dir_all(node.world.path("state/kube")).unwrap();
    assert_eq!(addresses(&node.add("old")), addresses(&old));
    node.del_known("old", &old).success();
    assert_eq!(desk.held(), [""; 0]);
}

/// A chain with a desk as its store.
struct Chain {
    world: World,
    network: Value,
}

impl Chain {
    fn of(desk: &Desk) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-kube"));
        let mut network = world.network(json!(["ipam-ds-static", "ipam-da-kube"]));
        network["cniVersion"] = "1.1.0".into();
        network["ipam"]["pools"] = json!([{"ranges": [{"subnet": SUBNET}]}]);
        let chain = Self { world, network };
        chain.by(&desk.kubeconfig_path())
    }

    /// The same with another kubeconfig, also where `ipam-delegated` looks for the network.
    fn by(mut self, kubeconfig: &Path) -> Self {
        self.network["ipam"]["kube"] = json!({"kubeconfig": kubeconfig, "timeout": "2s"});
        self.world.conflist("10-net.conflist", &self.network);
        self
    }

    fn call(&self, verb: &str, container: &str) -> Outcome {
        self.world.call(verb, container, &self.network)
    }
}

#[test]
fn reassert_makes_lost_objects_right_again() {
    for way in WAYS {
        let desk = Desk::new(&v094());
        let chain = Chain::of(&desk);
        let old = chain.call("ADD", "old").success();
        way.restore(&desk, &chain.world.path("state"));
        let (code, text) = chain.call("ADD", "new").failure();
        assert_eq!(code, 11, "{way:?}: {text}");
        let reassert = |words: &[&str]| {
            let typed = chain.world.typed(&[&["reassert", "--json"], words].concat());
            typed.success().to_string()
        };
        let told = reassert(&["--claim-only", "--yes"]);
        assert!(told.contains("claimed"), "{way:?}: {told}");
        assert_eq!(desk.held(), [format!("{POOL} 2 old"), "10.1.2.2 old".to_owned()], "{way:?}");
        // A claim does not accept the store.
        assert_eq!(chain.call("ADD", "new").failure().0, 11, "{way:?}");
        let told = reassert(&["--yes"]);
        assert!(told.contains("accepted"), "{way:?}: {told}");
        let later = chain.call("ADD", "later").success();
        assert_ne!(addresses(&later), addresses(&old), "{way:?}");
        // The refused ADD may have left something.
        chain.call("DEL", "new").success();
        for container in ["later", "old"] {
            chain.call("DEL", container).success();
            assert_eq!(chain.world.state_of(container), "none", "{way:?} {container}");
        }
        assert_eq!(desk.held(), [""; 0], "{way:?}");
    }
}

#[test]
fn reassert_claims_the_leases_of_a_node_that_has_moved_in_its_new_cluster() {
    let desk = Desk::new(&v094());
    let chain = Chain::of(&desk);
    chain.call("ADD", "c1").success();
    let objects = There::Nothing.reach(&desk);
    let (code, text) = chain.call("DEL", "c1").failure();
    assert!(code == 11 && text.contains("of another cluster than the lease"), "{code}: {text}");
    for words in [&["reassert", "--claim-only", "--yes"][..], &["reassert", "--yes"]] {
        chain.world.typed(words).ended_well();
        assert_eq!(objects.allocations(POOL).len(), 1, "{words:?}");
    }
    chain.call("DEL", "c1").success();
    assert_eq!(chain.world.state_of("c1"), "none");
    assert_eq!(objects.allocations(POOL).len(), 0);
}

#[test]
fn a_del_uses_todays_kubeconfig_if_it_leads_to_the_recorded_objects() {
    let desk = Desk::new(&v094());
    let chain = Chain::of(&desk);
    ["c1", "c2"].into_iter().for_each(|container| drop(chain.call("ADD", container).success()));
    let moved = desk.folder.path().join("moved");
    fs::rename(desk.kubeconfig_path(), &moved).unwrap();
    assert_eq!(chain.call("DEL", "c1").failure().0, 7);
    let chain = chain.by(&moved);
    for container in ["c1", "c2"] {
        chain.call("DEL", container).success();
        assert_eq!(chain.world.state_of(container), "none", "{container}");
    }
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_del_never_uses_todays_kubeconfig_if_that_leads_to_another_cluster() {
    let desk = Desk::new(&v094());
    let chain = Chain::of(&desk);
    chain.call("ADD", "c1").success();
    let other = Crds::shipped().served();
    let objects = Objects::of(other, &desk.namespace);
    let allocations = desk.objects().pool(POOL).unwrap()["spec"]["allocations"].clone();
    objects.create_pool("", SUBNET, &allocations);
    let todays = desk.folder.path().join("todays");
    let more = json!({"contexts": [{"context": {"namespace": desk.namespace}}]});
    Kubeconfig::of(other, &other.admin()).more(&more).write(&todays);
    let own = desk.folder.path().join("own");
    fs::rename(desk.kubeconfig_path(), &own).unwrap();
    let chain = chain.by(&todays);
    let held = desk.held();
    chain.call("DEL", "c1").failure();
    assert_eq!((desk.held(), objects.allocations(POOL).len()), (held, 1));
    assert!(chain.world.record("c1").exists());
    // The recorded file still leads there.
    fs::rename(&own, desk.kubeconfig_path()).unwrap();
    chain.call("DEL", "c1").success();
    assert_eq!((desk.held().len(), objects.allocations(POOL).len()), (0, 1));
}

#[test]
fn a_del_without_leases_uses_another_login_to_the_same_server_alone() {
    let desk = Desk::new(&v094());
    let valid = desk.folder.path().join("valid");
    desk.kubeconfig_of(&desk.login).write(&valid);
    let mut rejected = desk.login.clone();
    rejected.credential = Credential::Token("rejected".to_owned());
    desk.log_in(&rejected);
    let chain = Chain::of(&desk);
    let (code, text) = chain.call("ADD", "c1").failure();
    assert!(code == 11 && text.contains("(401)"), "{code}: {text}");

    let other = Crds::shipped().served();
    let elsewhere = desk.folder.path().join("elsewhere");
    let more = json!({"contexts": [{"context": {"namespace": desk.namespace}}]});
    Kubeconfig::of(other, &other.admin()).more(&more).write(&elsewhere);
    let chain = chain.by(&elsewhere);
    assert_eq!(chain.call("DEL", "c1").failure().0, 11);
    let chain = chain.by(&valid);
    chain.call("DEL", "c1").success();
}
