//! Missing rights and kinds, objects that a person has edited, servers that fail: a clear error, and
//! no change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipam_testkit::kube::Node as NodeObject;
use ipam_testkit::node::given;
use ipam_testkit::whereabouts::{Crds, POOLS, RESERVATIONS};
use serde_json::{Value, json};

use crate::common::node::Node;
use crate::common::relay::Fate;
use crate::common::sticky::{StickySandbox, kubectl, sticky_desk};
use crate::common::{Desk, changing, v094};

const STICKY_VERBS: [&str; 5] = ["get", "list", "create", "patch", "delete"];

impl Desk {
    /// All that a call may change.
    fn all(&self) -> (Vec<String>, Vec<(String, Value)>) {
        let specs = self.sticky_objects().into_iter();
        (self.held(), specs.map(|(name, object)| (name, object["spec"].clone())).collect())
    }

    /// Logs in as a user with the rights that are shipped, without one.
    fn lack(&self, resource: &str, verb: &str) -> String {
        let login = self.kube.user();
        let told = kubectl(
            self.kube,
            &[
                "label",
                "--local",
                "-o",
                "json",
                "a=b",
                "-f",
                "deploy/rbac.yaml",
                "-f",
                "deploy/sticky.yaml",
            ],
        );
        let objects = serde_json::Deserializer::from_str(&told).into_iter::<Value>();
        for mut object in objects.map(Result::unwrap) {
            if let Some(rules) = object["rules"].as_array_mut() {
                for rule in rules.iter_mut().filter(|rule| rule["resources"] == json!([resource])) {
                    rule["verbs"].as_array_mut().unwrap().retain(|of| of != verb);
                }
                rules.retain(|rule| rule["verbs"] != json!([]));
            }
            // The rights end with the server.
            let rules = &object["rules"];
            match object["kind"].as_str().unwrap() {
                "Role" => drop(self.kube.allow_in(&self.namespace, &login, rules)),
                "ClusterRole" => drop(self.kube.allow(&login, rules)),
                _ => {}
            }
        }
        self.log_in(&login);
        let group = if ["pods", "nodes"].contains(&resource) { "" } else { "ipam-delegated.io" };
        format!(
            "{{\"apiGroups\": [\"{group}\"], \"resources\": [\"{resource}\"], \"verbs\": [\"{verb}\"]"
        )
    }
}

#[test]
fn a_call_that_lacks_a_right_names_the_rule_and_changes_nothing() {
    let rights = STICKY_VERBS.map(|verb| ("stickyleases", verb)).into_iter();
    for (resource, verb) in rights.chain([("pods", "get"), ("nodes", "get")]) {
        let desk = sticky_desk();
        let object = format!("n1.{}", desk.namespace);
        desk.client.create_node(&NodeObject::named(&object));
        let [one, two] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web", "0s"));
        let uid = desk.create_pod("a", &object);
        let first = StickySandbox::of_pod(&desk, &one, "c1", "a", &uid);
        let other = desk.create_pod("b", &object);
        let second = StickySandbox::of_pod(&desk, &two, "c2", "b", &other);
        let is_new = verb == "create";
        let plain = Node::of(&desk).named("node-3");
        let others = plain.add("c3");
        let held = if is_new { json!({}) } else { given(&first.add()) };
        let before = desk.all();
        let rule = desk.lack(resource, verb);
        let outcome = match (resource, verb) {
            ("stickyleases", "create") => first.call_with("ADD", &json!({})),
            ("stickyleases", "list") => one.gc(&[]),
            ("stickyleases", "delete") => first.call_with("DEL", &held),
            ("stickyleases", "patch") => first.call_with("ADD", &json!({})),
            _ => second.call_with("ADD", &json!({})),
        };
        let (code, text) = outcome.failure();
        assert!(code == 103 && text.contains(&rule), "{resource} {verb}: {code} {text}");
        let (code, text) = one.typed(&["lint", "--json"]).failure();
        assert!(code == 103 && text.contains(&rule), "{resource} {verb}: {code} {text}");
        assert_eq!(desk.all(), before, "{resource} {verb}");
        // Others need no right to names.
        plain.check("c3", &others).ended_well();
        plain.del_known("c3", &json!({})).ended_well();
        desk.log_in(&desk.login);
        first.call_with("DEL", &held).ended_well();
        assert_eq!(desk.all(), (Vec::new(), Vec::new()), "{resource} {verb}");
    }
}

#[test]
fn a_server_without_the_kind_or_with_another_definition_is_told() {
    let kube = changing();
    Crds::shipped().install_alone(&kube);
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let own = format!("{definition}/stickyleases.ipam-delegated.io");
    kube.delete(&own);
    ipam_testkit::world::until("the kind is gone", || kube.get(&own).is_none());
    let desk = Desk::on(&kube);
    let plain = Node::of(&desk);
    plain.add("c0");
    let before = desk.held();
    let web = Node::of(&desk).with_in_pools("sticky", "web");
    let (code, text) = web.call("ADD", "c1").failure();
    assert!(code == 103 && text.contains("deploy/sticky.yaml"), "{code} {text}");
    assert_eq!(desk.held(), before);
    // A definition that drops what it does not know.
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": {"name": {"type": "string"}},
    }}});
    kube.create(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "stickyleases.ipam-delegated.io"},
        "spec": {
            "group": "ipam-delegated.io", "scope": "Namespaced",
            "names": {
                "kind": "StickyLease", "listKind": "StickyLeaseList",
                "plural": "stickyleases", "singular": "stickylease",
            },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    }));
    let all = format!("/apis/{}/stickyleases", crate::common::sticky::STICKY_API);
    ipam_testkit::world::until("it is served", || kube.ask("GET", &all, b"").status == 200);
    let (code, text) = web.call("ADD", "c1").failure();
    assert!(
        code == 103 && text.contains("does not keep what this program writes"),
        "{code} {text}"
    );
    assert_eq!(desk.all(), (before, Vec::new()));
    kube.delete(&own);
    ipam_testkit::world::until("the kind is gone", || kube.get(&own).is_none());
    // What is left of an object holds its address, and no other call fails by it.
    let rest = json!({"id": "sticky:10.1.2.0-24.web:7c0e", "podref": "", "ifname": ""});
    desk.patch(POOLS, "10.1.2.0-24", &json!({"spec": {"allocations": {"9": rest}}}));
    let blank = Node::of(&desk);
    blank.check("c0", &json!({})).ended_well();
    blank.del("c0");
    assert!(plain.told(&["list"]).contains("10.1.2.9"));
    plain.told(&["release", "10.1.2.9", "--yes"]);
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn names_need_reservations() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk).with_in_pools("sticky", "web").with("overlapCheck", false);
    let (code, text) = node.call("ADD", "c1").failure();
    assert!(code == 7 && text.contains("ipam.kube.overlapCheck: "), "{code} {text}");
}

#[test]
fn an_object_that_a_person_has_edited_counts_as_taken_and_stays_as_it_is() {
    for (change, part) in [
        (json!({"address": "10.1.2.300"}), "spec cannot be read: "),
        (json!({"name": "db"}), "spec.name is \"db\": expected \"web\""),
        (json!({"pool": "other"}), "spec.pool is \"other\""),
        (json!({"range": "10.9.0.0/24"}), "is outside of spec.range"),
        (json!({"address": "10.1.2.9"}), "spec.address is 10.1.2.9, but its entry"),
    ] {
        let desk = sticky_desk();
        let web = desk.sticky_node("node-1", "web", "1h");
        assert_eq!(web.address("c1"), "10.1.2.2");
        web.del("c1");
        let path = desk.sticky_path("10.1.2.0-24.web");
        desk.client.patch(&path, &json!({"spec": change}));
        let before = desk.all();
        let (code, text) = web.call("ADD", "c2").failure();
        assert!(code == 103 && text.contains(part), "{code} {text}");
        assert_eq!(desk.all(), before);
        let plain = Node::of(&desk);
        assert_eq!(plain.address("c3"), "10.1.2.3");
        let listed = plain.typed(&["list"]);
        let warning = listed.stderr.matches("the StickyLease 10.1.2.0-24.web: spec").count();
        assert_eq!((listed.exit, warning), (Some(0), 1), "{part}: {listed:?}");
    }
}

#[test]
fn a_del_fails_where_a_person_has_edited_the_object_so_that_it_does_not_tell_the_holder() {
    for (change, part) in [
        (json!({"range": "all"}), "spec cannot be read: "),
        (json!({"address": "10.1.2.9"}), "spec.address is 10.1.2.9, but its entry"),
        (json!({"holder": null}), "spec has neither holder nor keptUntil"),
    ] {
        for (keep, has_record) in [("0s", true), ("1h", true), ("0s", false)] {
            let desk = sticky_desk();
            let web = desk.sticky_node("node-1", "web", keep);
            let uid = desk.create_pod("a", "n1");
            let pod = StickySandbox::of_pod(&desk, &web, "c1", "a", &uid);
            let known = given(&pod.add());
            let path = desk.sticky_path("10.1.2.0-24.web");
            let before = desk.client.get(&path).unwrap()["spec"].clone();
            desk.client.patch(&path, &json!({"spec": change}));
            let edited = desk.all();
            let sent = if has_record { known.clone() } else { json!({}) };
            let (code, text) = pod.call_with("DEL", &sent).failure();
            assert!(code == 103 && text.contains(part), "{keep} {has_record}: {code} {text}");
            // Nor does the next pod get the address, and its DEL has nothing to release.
            let other = desk.create_pod("b", "n1");
            let next = StickySandbox::of_pod(&desk, &web, "c2", "b", &other);
            assert!(next.refused(103).contains(part));
            assert_eq!(desk.all(), edited);
            next.del();
            // Corrected, it is released.
            desk.client.patch(&path, &json!({"spec": before}));
            pod.del_known(&pod.add());
            assert_eq!(desk.held().is_empty(), keep == "0s");
        }
    }
}

#[test]
fn a_del_keeps_an_address_for_100_years_where_a_person_has_written_more() {
    let desk = sticky_desk();
    let web = desk.sticky_node("node-1", "web", "1h");
    web.add("c1");
    let path = desk.sticky_path("10.1.2.0-24.web");
    desk.client.patch(&path, &json!({"spec": {"keepSeconds": i64::MAX}}));
    web.del("c1");
    let until = desk.sticky("web").unwrap()["spec"]["keptUntil"].as_str().unwrap().to_owned();
    assert!(until.starts_with("21"), "{until}");
}

#[test]
fn a_full_pool_ends_no_name_whose_object_a_person_has_edited() {
    for change in [json!({"name": "db"}), json!({"address": "10.1.2.1"})] {
        let desk = sticky_desk();
        let subnet = &["10.1.2.0/30"];
        let node = Node::of(&desk).with_subnets(subnet).with_in_pools("sticky", "web");
        let web = node.with_in_pools("keep", "1h");
        assert_eq!(web.address("c1"), "10.1.2.2");
        web.del("c1");
        let path = desk.sticky_path("10.1.2.0-30.web");
        let mut edited = change.clone();
        edited["keptUntil"] = "2026-01-01T00:00:00Z".into();
        desk.client.patch(&path, &json!({"spec": edited}));
        let before = desk.all();
        let full = Node::of(&desk).with_subnets(subnet).call("ADD", "c2");
        assert!(full.stderr.contains("the StickyLease 10.1.2.0-30.web: spec."), "{full:?}");
        assert_eq!(full.failure().0, 100, "{change}");
        assert_eq!(desk.all(), before, "{change}");
    }
}

#[test]
fn a_pod_or_node_that_cannot_be_read_is_neither_alive_nor_dead() {
    for (kind, status) in [("pods", 504), ("nodes", 504), ("pods", 403), ("pods", 0), ("pods", 429)]
    {
        let desk = sticky_desk();
        let object = format!("n1.{}", desk.namespace);
        desk.client.create_node(&NodeObject::named(&object));
        let one = desk.sticky_node("node-1", "web", "0s");
        let uid = desk.create_pod("a", &object);
        StickySandbox::of_pod(&desk, &one, "c1", "a", &uid).add();
        let before = desk.all();
        let relay = desk.relayed();
        let two = desk.sticky_node("node-2", "web", "0s").with("timeout", "300ms");
        let other = desk.create_pod("b", &object);
        let second = StickySandbox::of_pod(&desk, &two, "c2", "b", &other);
        relay.decide(move |ask| match ask.target.contains(&format!("/{kind}/")) {
            true if status == 0 => Fate::End,
            true => Fate::Answer(status, r#"{"kind": "Status", "message": "m"}"#.to_owned()),
            false => Fate::Pass,
        });
        let (code, text) = second.call_with("ADD", &json!({})).failure();
        assert_eq!(code, if status == 403 { 103 } else { 11 }, "{kind} {status}: {text}");
        assert!(!text.contains("is held by"), "{kind} {status}: {text}");
        assert_eq!(desk.all(), before, "{kind} {status}");
    }
}

#[test]
fn a_change_whose_answer_is_lost_is_looked_up() {
    // The first change of each kind is made, and answered with 504.
    for target in ["stickyleases", "ippools", RESERVATIONS] {
        let desk = sticky_desk();
        let relay = desk.relayed();
        let web = desk.sticky_node("node-1", "web", "1h");
        let client = desk.client.clone();
        let lose = move |wanted: &'static str| {
            let client = client.clone();
            let lost = std::sync::atomic::AtomicBool::new(false);
            move |ask: &crate::common::relay::Ask| {
                let is_it = ask.method != "GET" && ask.target.contains(wanted);
                if is_it && !lost.swap(true, std::sync::atomic::Ordering::SeqCst) {
                    client.ask(&ask.method, &ask.target, ask.body.as_bytes());
                    return Fate::Answer(
                        504,
                        r#"{"kind": "Status", "message": "late"}"#.to_owned(),
                    );
                }
                Fate::Pass
            }
        };
        relay.decide(lose(target));
        assert_eq!(web.address("c1"), "10.1.2.2", "{target}");
        relay.decide(lose(target));
        web.del("c1");
        assert!(desk.sticky("web").unwrap()["spec"]["keptUntil"].is_string(), "{target}");
        relay.decide(lose(target));
        assert_eq!(web.address("c2"), "10.1.2.2", "{target}");
        desk.objects().assert_consistent();
        assert_eq!(desk.held().len(), 2, "{target}");
    }
}

#[test]
fn a_change_that_did_not_arrive_is_sent_again() {
    let desk = sticky_desk();
    let relay = desk.relayed();
    let web = desk.sticky_node("node-1", "web", "1h");
    web.add("c1");
    web.del("c1");
    let lost = std::sync::atomic::AtomicBool::new(false);
    relay.decide(move |ask| match ask.method == "DELETE" && ask.target.contains("stickyleases") {
        true if !lost.swap(true, std::sync::atomic::Ordering::SeqCst) => {
            Fate::Answer(504, r#"{"kind": "Status", "message": "late"}"#.to_owned())
        }
        _ => Fate::Pass,
    });
    assert!(web.told(&["release", "10.1.2.2", "--yes"]).contains("10.1.2.2"));
    assert_eq!(desk.all(), (Vec::new(), Vec::new()));
}

#[test]
fn an_add_that_fails_after_its_claims_gives_a_name_back_as_it_was() {
    add_that_fails_after_its_claims(false);
}

#[test]
fn a_del_keeps_the_address_of_a_name_that_a_failed_add_took_by_an_unanswered_request() {
    add_that_fails_after_its_claims(true);
}

/// An ADD fails after it took a name that was kept. `is_unanswered` says that its first change of the
/// object is made, and gets no answer.
fn add_that_fails_after_its_claims(is_unanswered: bool) {
    let desk = sticky_desk();
    let kept = desk.sticky_node("node-1", "web", "1h");
    let web = desk.sticky_node("node-1", "web", if is_unanswered { "1h" } else { "0s" });
    kept.add("c0");
    kept.del("c0");
    let plain = Node::of(&desk).with_subnets(&["10.1.3.0/24"]);
    let mut pools = plain.pools.as_array().unwrap().clone();
    plain.add("c1");
    let state = || {
        let spec = desk.sticky("web").unwrap()["spec"].clone();
        (desk.held(), spec["keptUntil"].clone(), spec["holder"].clone())
    };
    let before = state();
    pools.extend(web.pools.as_array().unwrap().clone());
    let both = Node { pools: pools.into(), ..plain };
    let relay = desk.relayed();
    let unanswered = Arc::new(AtomicBool::new(is_unanswered));
    let left = unanswered.clone();
    relay.decide(move |ask| {
        if ask.method != "PATCH" {
            return Fate::Pass;
        }
        if ask.target.contains("stickyleases") && left.swap(false, Ordering::SeqCst) {
            return Fate::Lose(Box::new(|| {}));
        }
        // The lease that is to stay is always changed by another call.
        match ask.target.contains(&format!("{RESERVATIONS}/10.1.3.")) {
            true => Fate::Answer(
                409,
                r#"{"kind": "Status", "reason": "Conflict", "message": "m", "code": 409}"#
                    .to_owned(),
            ),
            false => Fate::Pass,
        }
    });
    let (code, text) = both.call("ADD", "c1").failure();
    assert_eq!(code, 11, "{text}");
    assert!(!unanswered.load(Ordering::SeqCst));
    relay.pass();
    if is_unanswered {
        // The chain sends it after code 11.
        both.del("c1");
        assert!(desk.sticky("web").unwrap()["spec"]["keptUntil"].is_string());
        assert_eq!(web.address("c2"), "10.1.2.2");
    } else {
        assert_eq!(state(), before);
    }
}

#[test]
fn a_name_is_given_back_where_another_lease_of_the_add_cannot_be_released() {
    let desk = sticky_desk();
    let web = desk.sticky_node("node-1", "web", "1h");
    web.add("c0");
    web.del("c0");
    let before = desk.sticky("web").unwrap()["spec"].clone();
    let plain = Node::of(&desk).named("node-1").with_subnets(&["10.1.4.0/24"]);
    plain.add("c1");
    let mut pools = web.pools.as_array().unwrap().clone();
    pools.extend(plain.pools.as_array().unwrap().clone());
    let both = Node { pools: pools.into(), ..plain };
    let relay = desk.relayed();
    relay.decide(|ask| {
        let is_claim = ask.method == "POST" && ask.target.contains(RESERVATIONS);
        let is_release = ask.target.contains("10.1.4.0-24") && ask.body.contains(r#""remove""#);
        match is_claim || is_release {
            true => Fate::Answer(403, r#"{"kind": "Status", "message": "m"}"#.to_owned()),
            false => Fate::Pass,
        }
    });
    let (code, text) = both.call("ADD", "c2").failure();
    assert_eq!(code, 103, "{text}");
    assert_eq!(desk.sticky("web").unwrap()["spec"], before);
    relay.pass();
    both.del("c2");
    assert_eq!(desk.objects().held().len(), 2);
}
