//! What is wrong is told in time, with its code and its place, and nothing is changed.

use std::fs;
use std::time::{Duration, Instant};

use ipam_testkit::kube::{End, Kube, Node, Speaker};
use ipam_testkit::world::{with, without};
use serde_json::{Value, json};

use crate::common::Site;

/// An ADD that has three seconds, and needs little more, fails with this code, tells all of this, and
/// leaves nothing.
#[track_caller]
fn fails(site: &Site, network: &Value, code: u64, parts: &[&str]) -> String {
    let begin = Instant::now();
    let outcome = site.call("ADD", "c1", &with(network, "timeout", "3s"));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(12), "it took {took:?}");
    let (found, text) = outcome.failure();
    assert_eq!(found, code, "{text}");
    for part in [&["ipam-ds-kube-node"], parts].concat() {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    site.is_untouched();
    text
}

#[test]
fn a_login_that_is_nowhere_is_told_with_all_places() {
    let site = Site::new("no-login", &["11.0.1.0/24"]);
    for network in
        [without(&site.network(), &["kubeconfig"]), with(&site.network(), "kubeconfig", "")]
    {
        let parts = ["ipam.kubeconfig", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HOME"];
        fails(&site, &network, 7, &parts);
    }
    let (code, text) =
        site.call("ADD", "c1", &with(&site.network(), "kubeconfig", json!(["a"]))).failure();
    assert!(code == 7 && text.contains("ipam.kubeconfig"), "{code}: {text}");
    assert!(site.requests().is_empty());
}

#[test]
fn a_node_without_subnets_is_told_what_assigns_them() {
    let site = Site::of(Kube::shared(), &Node::named("no-cidrs"));
    let parts = ["spec.podCIDRs of node no-cidrs", "no subnet", "--allocate-node-cidrs=true"];
    fails(&site, &site.network(), 7, &parts);
}

#[test]
fn a_bad_annotation_error_says_what_was_expected() {
    const NAME: &str = "kube-node.nordix.org/net1";
    let site = Site::new("annotations", &["11.0.1.0/24"]);
    let network = with(&site.network(), "annotation", NAME);
    let text = fails(&site, &network, 7, &["missing", "kubectl annotate node annotations"]);
    assert!(text.contains(NAME), "{text}");
    for (text, part) in [
        ("", "no subnet"),
        (" ", "no subnet"),
        ("blah", "invalid CIDR \"blah\""),
        ("10.0.0.0", "invalid CIDR \"10.0.0.0\""),
        ("10.0.0.0/33", "invalid CIDR \"10.0.0.0/33\""),
        ("10.0.0.0/24,", "invalid CIDR \"\""),
        ("10.0.0.0/24 fd00::/96", "invalid CIDR"),
        (r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#, "invalid CIDR"),
        ("$(touch /tmp/x)", "invalid CIDR"),
        ("10.0.0.0/24,fd00::/96,10.1.0.0/24", "found 3 subnets"),
        ("10.0.0.0/24,10.1.0.0/24", "have the same family"),
        ("fd00::/96,fd01::/96", "have the same family"),
        ("10.0.0.5/24", "host bits"),
        ("10.9.0.0/31", "too small"),
        ("10.9.0.1/32", "too small"),
        ("fd00::/127", "too small"),
        ("::ffff:10.0.0.0/120", "::ffff:10.0.0.0/120"),
        ("0.0.0.0/0,::/0/0", "invalid CIDR"),
    ] {
        site.kube.annotate_node("annotations", NAME, Some(text));
        // What was read last has been right as far as the node goes.
        let _ = fs::remove_dir_all(site.world.path("state/kubernetes"));
        let _ = fs::remove_file(site.world.path("data/kube-node.json"));
        let (code, found) = site.call("ADD", "c1", &network).failure();
        assert_eq!(code, 7, "{text:?}: {found}");
        for part in [part, NAME, "node annotations"] {
            assert!(found.contains(part), "{text:?}: {part:?}: {found}");
        }
        assert!(site.held("k8snet").is_empty(), "{text:?}");
    }
}

#[test]
fn a_server_that_is_away_is_told_with_its_address() {
    let site = Site::new("away", &["11.0.1.0/24"]);
    site.calls_nobody();
    fails(&site, &site.network(), 105, &["https://127.0.0.1:1", "Connection refused"]);
}

#[test]
fn a_node_that_is_strangely_written_is_told_by_its_place() {
    let site = Site::new("strange", &["11.0.1.0/24"]);
    for (spec, part) in [
        (json!({"podCIDRs": "10.0.0.0/24"}), "no subnet"),
        (json!({"podCIDRs": [7, null]}), "no subnet"),
        (json!({"podCIDRs": ["10.0.0.0/24", "10.1.0.0/24"]}), "have the same family"),
        (json!({"podCIDRs": ["10.0.0.0/24\u{0}"]}), "invalid CIDR"),
        (json!({"podCIDRs": [""]}), "invalid CIDR"),
        (Value::Null, "no subnet"),
    ] {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "strange"}, "spec": spec});
        let answer = Speaker::answer("200 OK", "", &node.to_string());
        let speaker = Speaker::saying(site.kube.certificates(), answer, End::Next);
        site.calls(&speaker.url());
        fails(&site, &site.network(), 7, &["spec.podCIDRs of node strange", part]);
    }
}
