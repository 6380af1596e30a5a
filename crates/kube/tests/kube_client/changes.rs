//! Changes.

use std::sync::Once;

use super::*;
use ipam_kube::{ApiChange, ApiOutcome, ApiRefusal, RefusalReason};
use ipam_testkit::world::until;

#[test]
fn objects_are_made_changed_and_removed() {
    let (_folder, mut client) = admin();
    let all = Resource {
        group: "",
        version: "v1",
        plural: "configmaps",
        namespace: Some("written"),
        name: None,
    };
    let one = Resource { name: Some("a"), ..all };
    let object = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}}).to_string()
    };
    let why = |outcome| refusal(outcome).reason;
    let mut ask = |change: ApiChange<'_>| client.ask::<Value>(&change).unwrap();
    let made = done(ask(ApiChange::post(all, &object("a"))));
    assert_eq!(made["data"], json!({"k": "v"}));
    assert_eq!(why(ask(ApiChange::post(all, &object("a")))), RefusalReason::AlreadyExists);
    assert_eq!(why(ask(ApiChange::post(all, &object("A!")))), RefusalReason::Invalid);
    let patch = |test: &str| {
        json!([{"op": "test", "path": "/data/k", "value": test}, {"op": "add", "path": "/data/k", "value": "w"}])
            .to_string()
    };
    let patched = done(ask(ApiChange::patch(one, &patch("v"))));
    assert_eq!(patched["data"], json!({"k": "w"}));
    assert_eq!(why(ask(ApiChange::patch(one, &patch("v")))), RefusalReason::TestFailed);
    assert_eq!(
        why(ask(ApiChange::patch(Resource { name: Some("b"), ..one }, &patch("v")))),
        RefusalReason::NotFound
    );
    // What is replaced must be what was seen.
    assert_eq!(why(ask(ApiChange::put(one, &made.to_string()))), RefusalReason::Conflict);
    done(ask(ApiChange::put(one, &patched.to_string())));
    let other =
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "other"}});
    assert_eq!(why(ask(ApiChange::delete(one, &other.to_string()))), RefusalReason::Conflict);
    done(ask(ApiChange::delete(one, "")));
    assert_eq!(why(ask(ApiChange::delete(one, ""))), RefusalReason::NotFound);
    assert_eq!(client.get::<Value>(&one).unwrap(), None);
}

/// A kind of custom resources, whose objects have a number and entries.
fn pools() -> Resource<'static> {
    static DEFINED: Once = Once::new();
    DEFINED.call_once(|| define_pools(ipam_testkit::kube::Kube::shared()));
    let group = "patched.example.org";
    Resource { group, version: "v1", plural: "pools", namespace: None, name: None }
}

fn define_pools(server: &ipam_testkit::kube::Kube) {
    let text = json!({"type": "string"});
    let members = json!({"id": text, "podref": text, "ifname": text});
    let entry = json!({"type": "object", "properties": members});
    let number = json!({"type": "object", "properties": {
        "number": {"type": "integer"},
        "entries": {"type": "object", "additionalProperties": entry},
    }});
    let schema = json!({"type": "object", "properties": {"spec": number}});
    server.create(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pools.patched.example.org"},
        "spec": {
            "group": "patched.example.org", "scope": "Cluster",
            "names": {"plural": "pools", "singular": "pool", "kind": "Pool"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": schema}}],
        },
    }));
    let known = "/apis/patched.example.org/v1/pools";
    until("the kind of object is known", || server.ask("GET", known, b"").status == 200);
}

fn pool(name: &str, entries: &Value) -> String {
    json!({"apiVersion": "patched.example.org/v1", "kind": "Pool", "metadata": {"name": name},
           "spec": {"number": 1, "entries": entries}})
    .to_string()
}

fn admin() -> (TempDir, Kube) {
    let server = ipam_testkit::kube::Kube::shared();
    let (folder, client) = with_config(&Kubeconfig::of(server, &server.admin()));
    (folder, client.unwrap())
}

#[track_caller]
fn done(outcome: ApiOutcome<Value>) -> Value {
    match outcome {
        ApiOutcome::Done(object) => object,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refusal(outcome: ApiOutcome<Value>) -> ApiRefusal {
    match outcome {
        ApiOutcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Entries of so many times 100 kB.
fn heavy(count: usize) -> Value {
    (0..count).map(|key| (key.to_string(), json!({"id": "x".repeat(100_000)}))).collect()
}

#[test]
fn an_object_that_is_too_large_is_refused() {
    let (_folder, mut client) = admin();
    let all = pools();
    let small = Resource { name: Some("small"), ..all };
    let made = done(client.ask(&ApiChange::post(all, &pool("small", &json!({})))).unwrap());
    for (count, words) in [
        (16, "etcdserver: request is too large"),
        (25, "trying to send message larger than max"),
        (32, "limit is 3145728"),
    ] {
        let object = pool("large", &heavy(count));
        let mut replacing = made.clone();
        replacing["spec"]["entries"] = heavy(count);
        let replacing = replacing.to_string();
        let patch = json!([{"op": "replace", "path": "/spec/entries", "value": heavy(count)}]);
        let patch = patch.to_string();
        for change in [
            ApiChange::post(all, &object),
            ApiChange::put(small, &replacing),
            ApiChange::patch(small, &patch),
        ] {
            for metadata_only in [false, true] {
                let refused = refusal(client.ask(&ApiChange { metadata_only, ..change }).unwrap());
                assert_eq!(refused.reason, RefusalReason::TooLarge);
                assert!(refused.message.contains(words), "{refused:?}");
            }
        }
        assert_eq!(client.get::<Value>(&small).unwrap(), Some(made.clone()));
        assert_eq!(client.get::<Value>(&Resource { name: Some("large"), ..all }).unwrap(), None);
    }
    let patch = json!(vec![json!({"op": "test", "path": "/spec/number", "value": 1}); 10_001]);
    let refused = refusal(client.ask(&ApiChange::patch(small, &patch.to_string())).unwrap());
    assert_eq!(refused.reason, RefusalReason::TooLarge);
}

#[test]
fn objects_of_the_largest_size_are_listed_one_after_another() {
    let (_folder, mut client) = admin();
    let all = pools();
    for name in ["heavy-a", "heavy-b"] {
        let mut object: Value = serde_json::from_str(&pool(name, &heavy(15))).unwrap();
        object["metadata"]["labels"] = json!({"weight": "heavy"});
        done(client.ask(&ApiChange::post(all, &object.to_string())).unwrap());
    }
    for page in [1, 2, 100] {
        let mut found = Vec::new();
        let take = &mut |pool: Value| {
            assert_eq!(pool["spec"]["entries"], heavy(15));
            found.push(pool["metadata"]["name"].as_str().unwrap().to_owned());
            ControlFlow::Continue(())
        };
        client.list(&List { labels: "weight=heavy", page, ..List::all(all) }, take).unwrap();
        assert_eq!(found, ["heavy-a", "heavy-b"]);
    }
}

#[test]
fn an_object_of_as_many_values_as_are_stored_is_read() {
    let (_folder, mut client) = admin();
    let all = pools();
    let entry = json!({"id": "0123456789abcdef".repeat(4), "podref": "a/b", "ifname": "eth0"});
    let entries = |count: usize| (0..count).map(|key| (key.to_string(), entry.clone())).collect();
    // The server notes each member of each entry in managedFields.
    let most = 9_000;
    let object = pool("many", &entries(most));
    done(client.ask(&ApiChange::post(all, &object)).unwrap());
    let object: Value = client.get(&Resource { name: Some("many"), ..all }).unwrap().unwrap();
    assert_eq!(object["spec"]["entries"].as_object().unwrap().len(), most);
    assert!(object["metadata"]["managedFields"].to_string().len() > most * 50);
}

#[test]
fn the_answer_to_a_change_may_be_the_metadata_alone() {
    let (_folder, mut client) = admin();
    let all = pools();
    let one = Resource { name: Some("brief"), ..all };
    let object = pool("brief", &json!({"1": {"id": "a"}}));
    let patch = json!([{"op": "add", "path": "/spec/entries/2", "value": {"id": "b"}}]).to_string();
    let failed = json!([{"op": "test", "path": "/spec/number", "value": 7}]).to_string();
    let invalid = json!([{"op": "replace", "path": "/spec/number", "value": "b"}]).to_string();
    let absent = Resource { name: Some("absent"), ..all };
    let mut ask = |change: ApiChange<'_>| {
        client.ask::<Value>(&ApiChange { metadata_only: true, ..change }).unwrap()
    };
    for change in [ApiChange::post(all, &object), ApiChange::patch(one, &patch)] {
        let answer = done(ask(change));
        assert_eq!(answer["kind"], "PartialObjectMetadata");
        assert_eq!(answer["metadata"]["name"], "brief");
        assert!(answer["metadata"]["resourceVersion"].is_string() && answer["spec"].is_null());
    }
    for (change, reason) in [
        (ApiChange::post(all, &object), RefusalReason::AlreadyExists),
        (ApiChange::patch(one, &failed), RefusalReason::TestFailed),
        (ApiChange::patch(one, &invalid), RefusalReason::Invalid),
        (ApiChange::patch(absent, &patch), RefusalReason::NotFound),
        (ApiChange::delete(one, r#"{"preconditions": {"uid": "a"}}"#), RefusalReason::Conflict),
    ] {
        assert_eq!(refusal(ask(change)).reason, reason, "{change:?}");
    }
    assert_eq!(done(ask(ApiChange::delete(one, "")))["status"], "Success");
}

#[test]
fn a_removal_may_name_the_very_object_that_was_seen() {
    let (_folder, mut client) = admin();
    let all = pools();
    let one = Resource { name: Some("seen"), ..all };
    let object = pool("seen", &json!({}));
    let mut ask = |change: ApiChange<'_>| client.ask::<Value>(&change).unwrap();
    let made = done(ask(ApiChange::post(all, &object)));
    let touch = json!([{"op": "replace", "path": "/spec/number", "value": 2}]).to_string();
    let seen = done(ask(ApiChange::patch(one, &touch)));
    let options = |uid: &Value, version: &Value| {
        json!({"preconditions": {"uid": uid, "resourceVersion": version}}).to_string()
    };
    let text = |object: &Value, key: &str| object["metadata"][key].clone();
    let (uid, version) = (text(&seen, "uid"), text(&seen, "resourceVersion"));
    for (uid, version) in [(&json!("other"), &version), (&uid, &text(&made, "resourceVersion"))] {
        let refused = refusal(ask(ApiChange::delete(one, &options(uid, version))));
        assert_eq!(refused.reason, RefusalReason::Conflict, "{refused:?}");
    }
    done(ask(ApiChange::delete(one, &options(&uid, &version))));
    let gone = refusal(ask(ApiChange::delete(one, &options(&uid, &version))));
    assert_eq!(gone.reason, RefusalReason::NotFound);
}

#[test]
fn a_patch_may_ask_that_a_member_is_absent() {
    let (_folder, mut client) = admin();
    let all = pools();
    let one = Resource { name: Some("guarded"), ..all };
    let mut ask = |change: ApiChange<'_>| client.ask::<Value>(&change).unwrap();
    let entries = json!({"2": {"id": "b"}});
    done(ask(ApiChange::post(all, &pool("guarded", &entries))));
    let take = json!([
        {"op": "test", "path": "/spec/entries/1", "value": null},
        {"op": "add", "path": "/spec/entries/1", "value": {"id": "a"}},
    ])
    .to_string();
    let taken = done(ask(ApiChange::patch(one, &take)));
    assert_eq!(taken["spec"]["entries"], json!({"1": {"id": "a"}, "2": {"id": "b"}}));
    let refused = refusal(ask(ApiChange::patch(one, &take)));
    assert_eq!(refused.reason, RefusalReason::TestFailed);
    // Without the parent there is nothing to test.
    let gone = json!([{"op": "remove", "path": "/spec/entries"}]).to_string();
    done(ask(ApiChange::patch(one, &gone)));
    let refused = refusal(ask(ApiChange::patch(one, &take)));
    assert_eq!(refused.reason, RefusalReason::TestFailed);
}

#[test]
fn a_failed_test_of_a_patch_is_told_from_a_refused_object() {
    let server = ipam_testkit::kube::Kube::shared();
    let (_folder, mut client) = admin();
    let mut refused = |resource: Resource<'_>, patch: Value| {
        refusal(client.ask(&ApiChange::patch(resource, &patch.to_string())).unwrap()).reason
    };
    let node = Resource::node("patched");
    server.create_node(&Node::named("patched").label("number", "1"));
    let pool = Resource { name: Some("a"), ..pools() };
    server.create(&json!({"apiVersion": "patched.example.org/v1", "kind": "Pool",
                          "metadata": {"name": "a"}, "spec": {"number": 1}}));
    for (resource, path) in [(node, "/metadata/labels/number"), (pool, "/spec/number")] {
        let test = |path: &str, value: Value| json!([{"op": "test", "path": path, "value": value}]);
        for failed in [
            test(path, json!("another")),
            test(&format!("{path}/further"), json!("1")),
            test("/metadata/resourceVersion", json!("1")),
            json!([{"op": "remove", "path": "/metadata/absent"}]),
        ] {
            assert_eq!(
                refused(resource, failed.clone()),
                RefusalReason::TestFailed,
                "{resource}: {failed}"
            );
        }
        for value in [json!([7]), json!("a b")] {
            let invalid = json!([{"op": "replace", "path": path, "value": value}]);
            assert_eq!(
                refused(resource, invalid.clone()),
                RefusalReason::Invalid,
                "{resource}: {invalid}"
            );
        }
    }
}

#[test]
fn an_answer_that_is_lost_leaves_a_change_open() {
    let server = ipam_testkit::kube::Kube::shared();
    let certificates = Certificates::make();
    let speaker = Speaker::saying(&certificates, "", End::Cut);
    let config = Kubeconfig::of(server, &server.admin())
        .server(&speaker.url())
        .authority(Some(&certificates.authority()));
    let (_folder, client) = with_config(&config);
    let change = ApiChange::delete(Resource::node("x"), "");
    assert_eq!(client.unwrap().ask::<Value>(&change).unwrap(), ApiOutcome::Unknown);
    assert_eq!(speaker.requests().len(), 1);
}
