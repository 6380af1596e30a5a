//! A login that lacks one verb of RBAC: the error names the rule, and no change stays.

use ipam_testkit::node::{addresses, given};
use ipam_testkit::whereabouts::{API, RESERVATIONS, collection};
use serde_json::{Value, json};

use super::Site;
use crate::common::node::{Node, SUBNET};

const POOL_VERBS: [&str; 4] = ["get", "list", "create", "patch"];
const RESERVATION_VERBS: [&str; 5] = ["get", "list", "create", "patch", "delete"];

/// A site whose login has all rights but one, and the rule that an error names.
fn lacking(resource: &str, verb: &str) -> (Site, String) {
    lacking_except(resource, verb, &[])
}

/// The same, with the lacking right to objects of these names.
fn lacking_except(resource: &str, verb: &str, names: &[&str]) -> (Site, String) {
    let site = Site::new();
    let rule = |own: &str, verbs: &[&str]| {
        let verbs: Vec<&&str> = verbs.iter().filter(|of| own != resource || **of != verb).collect();
        json!({"apiGroups": ["whereabouts.cni.cncf.io"], "resources": [own], "verbs": verbs})
    };
    let login = site.desk.kube.user();
    let mut rules = json!([rule("ippools", &POOL_VERBS), rule(RESERVATIONS, &RESERVATION_VERBS)]);
    if !names.is_empty() {
        let mut except = rule(resource, &[]);
        except["resourceNames"] = json!(names);
        except["verbs"] = json!([verb]);
        rules.as_array_mut().unwrap().push(except);
    }
    // The right ends with the server.
    let _ = site.desk.kube.allow_in(&site.desk.namespace, &login, &rules);
    site.desk.log_in(&login);
    let rule = format!(
        "give {} a Role in the namespace {} with the rule {{\"apiGroups\": [\"whereabouts.cni.cncf.io\"], \"resources\": [\"{resource}\"], \"verbs\": [\"{verb}\"]}}",
        login.user, site.desk.namespace
    );
    (site, rule)
}

/// Takes verbs of the rules away.
fn without(site: &Site, pools: &str, reservations: &str) {
    let rule = |own: &str, verbs: &[&str], lacks: &str| {
        let verbs: Vec<&&str> = verbs.iter().filter(|verb| **verb != lacks).collect();
        json!({"apiGroups": ["whereabouts.cni.cncf.io"], "resources": [own], "verbs": verbs})
    };
    let login = site.desk.kube.user();
    let rules = json!([
        rule("ippools", &POOL_VERBS, pools),
        rule(RESERVATIONS, &RESERVATION_VERBS, reservations),
    ]);
    // The right ends with the server.
    let _ = site.desk.kube.allow_in(&site.desk.namespace, &login, &rules);
    site.desk.log_in(&login);
}

fn as_admin<T>(site: &Site, work: impl FnOnce() -> T) -> T {
    let own = std::fs::read(site.desk.kubeconfig_path()).unwrap();
    site.desk.log_in(&site.desk.login);
    let result = work();
    std::fs::write(site.desk.kubeconfig_path(), own).unwrap();
    result
}

fn create_empty_pool(site: &Site) {
    site.desk.objects().create_pool("", SUBNET, &json!({}));
}

#[test]
fn an_add_that_lacks_a_right_to_pools_names_the_rule() {
    for verb in POOL_VERBS {
        let (site, rule) = lacking("ippools", verb);
        if verb != "create" {
            create_empty_pool(&site);
        }
        site.fails("ADD", "c1", 103, &["denied the request (403)", &rule]);
        assert_eq!(site.desk.held(), [""; 0], "{verb}");
    }
}

#[test]
fn a_takeover_that_ended_between_both_objects_is_released_or_completed() {
    for is_repeated in [false, true] {
        let site = Site::new();
        let node = Node::of(&site.desk).with_in_pools("requested-ip", "10.1.2.5").taking_over(true);
        node.address("c1");
        // The entry cannot be written after the reservation, which cannot be deleted either.
        without(&site, "patch", "delete");
        assert_eq!(node.call("ADD", "c2").failure().0, 103);
        site.desk.log_in(&site.desk.login);
        assert_eq!(site.desk.held(), ["10.1.2.0-24 5 c1", "10.1.2.5 c2"]);
        if is_repeated {
            assert_eq!(node.address("c2"), "10.1.2.5");
            assert_eq!(site.desk.held(), ["10.1.2.0-24 5 c2", "10.1.2.5 c2"]);
        }
        node.del("c2");
        node.del("c1");
        assert_eq!(site.desk.held(), [""; 0], "{is_repeated}");
    }
}

#[test]
fn a_takeover_that_lacks_the_right_to_pools_leaves_no_reservation() {
    let site = Site::new();
    let node = Node::of(&site.desk).with_in_pools("requested-ip", "10.1.2.5").taking_over(true);
    node.address("c1");
    without(&site, "patch", "");
    assert_eq!(node.call("ADD", "c2").failure().0, 103);
    assert_eq!(site.desk.held(), ["10.1.2.0-24 5 c1"]);
}

#[test]
fn a_status_that_lacks_the_right_to_change_pools_names_the_rule() {
    let (site, rule) = lacking("ippools", "patch");
    site.fails("STATUS", "", 50, &[&rule]);
}

#[test]
fn a_del_that_lacks_a_right_to_pools_names_the_rule_and_succeeds_later() {
    for verb in ["get", "patch"] {
        let (site, rule) = lacking("ippools", verb);
        let held = as_admin(&site, || site.add("c1"));
        // A release is one request to the pool, which needs no look if nothing has changed.
        let prev_result = if verb == "get" { json!({}) } else { given(&held) };
        let (code, text) = site.call_with("DEL", "c1", &prev_result).failure();
        assert!(code == 103 && text.contains(&rule), "{code}: {text}");
        assert_eq!(site.desk.objects().allocations("10.1.2.0-24").len(), 1, "{verb}");
        as_admin(&site, || site.del_known("c1", &held).success());
        assert_eq!(site.desk.held(), [""; 0], "{verb}");
    }
}

#[test]
fn a_call_that_lacks_a_right_to_reservations_names_the_rule() {
    // The call that prepares, which needs the right, and the call that lacks it.
    let holder = json!({
        "apiVersion": API, "kind": "OverlappingRangeIPReservation",
        "metadata": {"name": "10.1.2.2"},
        "spec": {"podref": "ns/other", "containerid": "other"},
    });
    for verb in RESERVATION_VERBS {
        let (site, rule) = lacking(RESERVATIONS, verb);
        match verb {
            "get" => {
                let path = collection(&site.desk.namespace, RESERVATIONS);
                site.desk.client.post(&path, &holder);
                site.fails("ADD", "c1", 103, &[&rule]);
                assert_eq!(site.desk.held(), ["10.1.2.2 other"]);
            }
            "create" => {
                site.fails("ADD", "c1", 103, &[&rule]);
                assert_eq!(site.desk.held(), [""; 0]);
            }
            "list" => {
                let held = site.add("c1");
                let outcome = site.gc(&[]);
                site.assert_failure(outcome, 103, &[&rule]);
                site.check("c1", &held).success();
            }
            "patch" => {
                site.add("c1");
                site.fails("ADD", "c1", 103, &[&rule]);
                site.del("c1");
                assert_eq!(site.desk.held(), [""; 0]);
            }
            _ => {
                let held = site.add("c1");
                site.fails_with("DEL", "c1", &given(&held), 103, &[&rule]);
                site.fails("DEL", "c1", 103, &[&rule]);
                site.check("c1", &held).success();
                as_admin(&site, || site.del_known("c1", &held).success());
                assert_eq!(site.desk.held(), [""; 0]);
            }
        }
    }
}

#[test]
fn an_add_that_cannot_confirm_a_lease_takes_no_other() {
    let (site, rule) = lacking(RESERVATIONS, "patch");
    site.add("c1");
    let pools = json!([
        {"ranges": [{"subnet": SUBNET}]},
        {"ranges": [{"subnet": "10.1.3.0/24"}]},
    ]);
    site.fails_with("ADD", "c1", &json!({"pools": pools}), 103, &[&rule]);
}

#[test]
fn a_gc_that_may_not_release_all_leases_releases_the_others_and_names_them() {
    let (site, rule) = lacking_except(RESERVATIONS, "delete", &["10.1.2.3"]);
    for container in ["c1", "c2", "c3"] {
        site.add(container);
    }
    site.desk.age(std::time::Duration::from_secs(7200));
    let outcome = site.gc(&[]);
    site.assert_failure(outcome, 103, &["released only 10.1.2.3: ", &rule]);
    let held = ["10.1.2.0-24 2 c1", "10.1.2.0-24 4 c3", "10.1.2.2 c1", "10.1.2.4 c3"];
    assert_eq!(site.desk.held(), held);
    as_admin(&site, || site.gc(&[]).ended_well());
    assert_eq!(site.desk.held(), [""; 0]);
}

#[test]
fn lint_names_the_rule_of_each_missing_right_and_changes_nothing() {
    let pools = POOL_VERBS.map(|verb| ("ippools", verb));
    let reservations = RESERVATION_VERBS.map(|verb| (RESERVATIONS, verb));
    for (resource, verb) in pools.into_iter().chain(reservations) {
        let (site, rule) = lacking(resource, verb);
        create_empty_pool(&site);
        let outcome = site.typed(&["lint", "--json"]);
        site.assert_failure(outcome, 103, &["denied the request (403)", &rule]);
        assert_eq!(site.desk.objects().pools().len(), 1, "{resource} {verb}");
        assert_eq!(site.desk.held(), [""; 0], "{resource} {verb}");
    }
}

#[test]
fn the_shipped_rules_are_enough_for_every_verb() {
    let (site, _) = lacking("", "");
    let held = site.add("c1");
    let again: Value = site.add("c1");
    assert_eq!(addresses(&held), addresses(&again));
    site.check("c1", &again).success();
    site.call("STATUS", "").success();
    site.told(&["lint"]);
    site.add("c2");
    site.desk.age(std::time::Duration::from_secs(7200));
    site.gc(&["c1"]).ended_well();
    assert_eq!(site.listed(), [("10.1.2.2".to_owned(), "c1".to_owned())]);
    site.del_known("c1", &again).success();
    assert_eq!(site.desk.held(), [""; 0]);
}
