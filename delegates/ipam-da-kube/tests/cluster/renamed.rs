//! A pool under the name that whereabouts 0.3 gave it.

use std::process::Command;

use ipam_testkit::kube::kubectl;
use ipam_testkit::whereabouts::API;
use serde_json::json;

use crate::common::node::Node;
use crate::common::{Desk, v094};

#[test]
fn the_error_about_a_pool_of_whereabouts_0_3_has_a_command_that_renames_it() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk).with_subnets(&["2001:db8:1:2::/64"]);
    let (old, new) = ("2001-db8-1-2--64", "2001-db8-1-2---64");
    let allocations = json!({
        "1": {"id": "c1", "podref": "ns/p1"}, "7": {"id": "c7", "podref": "ns/name"},
    });
    desk.client.create(&json!({
        "apiVersion": API, "kind": "IPPool",
        "metadata": {"name": old, "namespace": desk.namespace},
        "spec": {"range": "2001:db8:1:2::/64", "allocations": allocations},
    }));
    let (code, text) = node.call("ADD", "c2").failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.contains(old) && text.contains("whereabouts 0.3"), "{text}");
    assert!(desk.objects().pool(new).is_none());
    let commands: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    assert_eq!(commands.len(), 2, "{text}");
    for command in commands {
        let mut shell = Command::new("sh");
        shell.args(["-ec", command]).env_clear();
        let folder = kubectl().parent().unwrap().display().to_string();
        shell.env("PATH", format!("{folder}:/usr/bin:/bin")).env("HOME", desk.folder.path());
        let output = shell.env("KUBECONFIG", desk.kubeconfig_path()).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    assert!(desk.objects().pool(old).is_none());
    assert_eq!(desk.objects().pool(new).unwrap()["spec"]["allocations"], allocations);
    assert_eq!(node.address("c2"), "2001:db8:1:2::2");
}
