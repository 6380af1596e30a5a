//! Which pod a call is for.

use ipam_testkit::world::with;
use serde_json::{Value, json};

use crate::site::{Site, lines};

#[test]
fn a_pod_of_a_stateful_set_is_known_by_its_controller_and_its_name() {
    let site = Site::new();
    let owner = |kind: &str, name: &str, controller: bool| {
        json!({"ownerReferences": [{
            "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": controller,
        }], "annotations": {"podname": "ignored"}})
    };
    let stateful = json!({"sticky": "statefulset", "keep": "30m"});
    for (pod, metadata, is_sticky) in [
        ("web-0", owner("StatefulSet", "web", true), true),
        ("web-1", owner("StatefulSet", "web", false), false),
        ("web-2", owner("ReplicaSet", "web", true), false),
        ("db-0", owner("StatefulSet", "web", true), false),
        ("web-3", json!({}), false),
    ] {
        let args = site.args(pod, &site.pod(pod, &metadata));
        // What the runtime passes is not enough.
        let mut network = site.network(&stateful);
        network["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": null});
        let pools = lines(&site.add(&args, &network).success());
        let name = format!("blue {}/{pod} 30m", site.namespace);
        assert_eq!(pools[0], if is_sticky { &*name } else { "blue" }, "{pod}");
    }
    assert_eq!(site.requests().len(), 5);
}

#[test]
fn a_pod_that_is_gone_or_another_is_told_to_the_runtime_to_call_again() {
    let site = Site::new();
    let network = site.network(&json!({"sticky": "name"}));
    let args = site.annotated("a", &json!({"podname": "db"}));
    site.delete_pod("a");
    let (code, text) = site.add(&args, &network).failure();
    assert!(
        code == 11 && text.contains(&format!("pod {}/a does not exist", site.namespace)),
        "{text}"
    );
    let next = site.pod("a", &json!({}));
    let (code, text) = site.add(&args, &network).failure();
    assert!(code == 11 && text.contains(&format!("has the uid {next:?}, and the call")), "{text}");
    // Without a uid, the name counts.
    let unnamed = args.split_once(';').unwrap().1;
    site.add(unnamed, &network).success();
}

#[test]
fn a_static_pod_is_known_by_the_uid_of_its_mirror() {
    let site = Site::new();
    let network = site.network(&json!({"sticky": "name"}));
    for key in ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"] {
        let name = key.replace(['/', '.'], "-");
        site.annotated(&name, &json!({key: "0123abc", "podname": "db"}));
        let pools = lines(&site.add(&site.args(&name, "0123abc"), &network).success());
        assert_eq!(pools[0], format!("blue {}/db", site.namespace));
        assert_eq!(site.add(&site.args(&name, "0123abd"), &network).failure().0, 11);
    }
}

#[test]
fn annotations_that_the_runtime_passes_save_the_request() {
    let site = Site::new();
    let args = site.args("never-made", "1");
    let section = json!({"sticky": "name", "nameScope": "cluster", "pools": ["blue", "red"]});
    let with_annotations = |passed: Value| {
        let mut network = with(&site.network(&section), "kubeconfig", "/nowhere");
        network["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": passed});
        site.add(&args, &network)
    };
    let passed = json!({"podname": "db", "ipam-delegated/pool": "red"});
    assert_eq!(lines(&with_annotations(passed).success()), ["red db", "blue6 db", "db"]);
    assert_eq!(lines(&with_annotations(Value::Null).success())[0], "blue");
    let (code, text) = with_annotations(json!({"podname": 5})).failure();
    assert!(
        code == 7 && text.contains("runtimeConfig.io.kubernetes.cri.pod-annotations"),
        "{text}"
    );
    assert_eq!(site.requests(), [""; 0]);
}

#[test]
fn a_call_that_names_no_pod_fails() {
    let site = Site::new();
    let network = site.network(&json!({"addresses": true}));
    for args in ["", "K8S_POD_NAME=ctr", "K8S_POD_NAMESPACE=a/../b;K8S_POD_NAME=c"] {
        let (code, text) = site.add(args, &network).failure();
        assert!(code == 4 && text.contains("CNI_ARGS K8S_POD_NAMESPACE"), "{args}: {text}");
    }
    assert_eq!(site.requests(), [""; 0]);
}
