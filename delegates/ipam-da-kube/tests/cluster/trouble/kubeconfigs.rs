//! Credentials that are missing, unreadable, expired or renewed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;

use ipam_testkit::kube::{End, Kubeconfig, Material, Speaker};
use ipam_testkit::node_site::{by, without_override};
use ipam_testkit::world::{Host, World, binary, start, wait};
use serde_json::{Value, json};

use super::Site;
use crate::common::node::SUBNET;
use crate::common::{Desk, v094};

const PATH: &str = "ipam.kube.kubeconfig";

#[test]
fn without_credentials_the_error_names_the_key_and_what_was_looked_for() {
    let mut site = Site::new();
    site.node.store = json!({"kube": {}});
    for (verb, code) in [("ADD", 7), ("CHECK", 7), ("DEL", 7), ("STATUS", 7)] {
        let parts = [
            "ipam.kube.kubeconfig: missing, and no other Kubernetes credentials found",
            "KUBECONFIG is empty or not set",
            "\"kubeconfig\": \"/etc/",
        ];
        site.fails(verb, "c1", code, &parts);
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named() {
    let site = Site::new();
    let file = site.desk.kubeconfig_path();
    let name = file.display().to_string();
    let token = site.desk.login.token().unwrap();
    for (text, part) in [
        ("", "is empty"),
        ("<html>Log in</html>", ""),
        ("clusters: {a: [\n", ""),
        ("apiVersion: v1\nkind: Config\n", "current-context"),
        (&format!("{token}: [{token}"), ""),
    ] {
        fs::write(&file, text).unwrap();
        site.fails("ADD", "c1", 7, &[PATH, &name, part]);
    }
    fs::set_permissions(&file, PermissionsExt::from_mode(0o000)).unwrap();
    let command = by(without_override(), &site.command("ADD", "c1"));
    let outcome = wait(start(command, &site.network()));
    site.assert_failure(outcome, 7, &[PATH, &name, "Permission denied"]);
    fs::remove_file(&file).unwrap();
    for verb in ["ADD", "DEL"] {
        site.fails(verb, "c1", 7, &[PATH, &name, "No such file"]);
    }
}

#[test]
fn a_wrong_namespace_of_the_context_is_named_with_its_place() {
    let site = Site::new();
    let file = site.desk.kubeconfig_path();
    let named = |namespace: &str| {
        let more = json!({"contexts": [{"context": {"namespace": namespace}}]});
        Kubeconfig::of(site.desk.kube, &site.desk.login).more(&more)
    };
    let place = ".context.namespace";
    named("../../x").write(&file);
    for verb in ["ADD", "DEL", "STATUS"] {
        let parts = [PATH, place, "\"../../x\" cannot be the name of a namespace"];
        site.fails(verb, "c1", 7, &parts);
    }
    // The servers of tests let objects be in a namespace that does not exist.
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
        "code": 404, "details": {"name": "nowhere", "kind": "namespaces"},
    });
    let speaker =
        Speaker::deciding(&site.desk.kube.certificates().server(), move |head| {
            match head.starts_with("GET ") && head.contains('?') {
                true => (Speaker::answer("200 OK", "", &list.to_string()), End::Next),
                false => (Speaker::answer("404 Not Found", "", &status.to_string()), End::Next),
            }
        });
    named("nowhere").server(&speaker.url()).write(&file);
    let parts =
        ["the namespace nowhere does not exist", "create the namespace, or correct ", PATH, place];
    site.fails("ADD", "c1", 103, &parts);
    let outcome = site.typed(&["lint", "--json"]);
    site.assert_failure(outcome, 103, &parts);
}

#[test]
fn a_token_that_expired_is_an_error_to_try_again_until_it_is_renewed() {
    let site = Site::new();
    let file = site.desk.kubeconfig_path();
    site.desk.kubeconfig_of(&site.desk.login).material(Material::Files).write(&file);
    let held = site.add("c1");
    let token = file.with_file_name("test.token");
    let valid = fs::read_to_string(&token).unwrap();
    fs::write(&token, "expired\n").unwrap();
    for (verb, container) in [("ADD", "c2"), ("ADD", "c1"), ("DEL", "c1")] {
        let parts = ["(401)", "renew them", PATH, "tokenFile"];
        site.fails(verb, container, 11, &parts);
    }
    let given = ipam_testkit::node::given(&held);
    for (verb, code) in [("CHECK", 11), ("DEL", 11), ("STATUS", 50)] {
        site.fails_with(verb, "c1", &given, code, &["(401)"]);
    }
    fs::write(&token, valid).unwrap();
    site.check("c1", &held).success();
    site.del_known("c1", &held).success();
    assert_eq!(site.desk.held(), [""; 0]);
}

#[test]
fn a_token_that_is_replaced_during_a_call_is_read_again() {
    let site = Site::new();
    let file = site.desk.kubeconfig_path();
    let token = file.with_file_name("test.token");
    let certificates = site.desk.kube.certificates();
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized",
        "message": "Unauthorized", "code": 401,
    });
    let answers = Mutex::new(vec![Speaker::answer("403 Forbidden", "", "{}")]);
    let renewed = token.clone();
    let speaker = Speaker::deciding(&certificates.server(), move |_| {
        // The kubelet writes the new token while the server rejects the old one.
        fs::write(&renewed, "the-next-one").unwrap();
        let rejected = Speaker::answer("401 Unauthorized", "", &status.to_string());
        let mut answers = answers.lock().unwrap();
        let is_first = answers.len() == 1;
        answers.push(Vec::new());
        match is_first {
            true => (rejected, End::Next),
            false => (answers[0].clone(), End::Next),
        }
    });
    Kubeconfig::of(site.desk.kube, &site.desk.login)
        .material(Material::Files)
        .server(&speaker.url())
        .write(&file);
    site.fails("ADD", "c1", 103, &["403"]);
    let requests = speaker.requests();
    assert!(requests.len() == 2 && requests[1].contains("Bearer the-next-one"), "{requests:?}");
}

#[test]
fn a_kubeconfig_lies_where_the_host_allows_it_but_a_recorded_one_releases() {
    let (desk, host, world) = (Desk::new(&v094()), Host::new(), World::new());
    for selector in ["ipam-ds-static", "ipam-ds-kube-node"] {
        world.install(&binary(selector));
    }
    world.install(Path::new(env!("CARGO_BIN_EXE_ipam-da-kube")));
    let file = desk.kubeconfig_path();
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-kube"]));
    network["ipam"]["ranges"] = json!([[{"subnet": SUBNET}]]);
    network["ipam"]["kube"] = json!({"kubeconfig": file});
    let allow = |folders: Value| host.settings(&json!({"kubeconfigDirs": folders}));
    let refused = |verb: &str, container: &str, network: &Value, key: &str| {
        let (code, text) = host.call(&world, verb, container, network).failure();
        let part = format!("{key}: {file:?} is not a regular file inside one of kubeconfigDirs");
        assert!(code == 7 && text.contains(&part), "{code}: {text}");
    };
    allow(json!([]));
    for verb in ["ADD", "DEL"] {
        refused(verb, "c1", &network, PATH);
    }
    let mut of_selector = world.network(json!(["ipam-ds-kube-node", "ipam-da-kube"]));
    of_selector["ipam"]["kubeconfig"] = json!(file);
    refused("ADD", "c1", &of_selector, "ipam.kubeconfig");

    allow(json!([desk.folder.path()]));
    host.call(&world, "ADD", "c1", &network).success();
    allow(json!(["/etc/kubernetes"]));
    refused("ADD", "c2", &network, PATH);
    // Without a record of leases, the configuration alone names it.
    refused("DEL", "c3", &network, PATH);
    host.call(&world, "CHECK", "c1", &network).success();
    host.call(&world, "DEL", "c1", &network).success();
    assert_eq!(desk.held(), [""; 0]);
}
