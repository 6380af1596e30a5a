//! The verbs for people, and kubectl.

use std::process::Command;

use ipam_testkit::kube::kubectl;
use ipam_testkit::whereabouts::{POOLS, Release};
use ipam_testkit::world::with;
use serde_json::{Value, json};

use super::{Interface, Node, desk};
use crate::common::Desk;

/// The words of each line that a program prints for people.
fn table(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

/// What kubectl prints about the objects of a desk.
#[track_caller]
fn get(desk: &Desk, words: &[&str]) -> String {
    let mut command = Command::new(kubectl());
    command.env("HOME", desk.folder.path());
    command.arg("--kubeconfig").arg(desk.folder.path().join("kubeconfig"));
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_verbs_and_kubectl_show_what_nodes_hold() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let networks = nodes.each_ref().map(|node| node.network(&["10.1.0.0/24", "fd00:1::/64"]));
    nodes[0].add(Interface::of("c1", "eth0"), &networks[0]);
    nodes[0].add(Interface::of("c1", "net1"), &networks[0]);
    let db = Interface { pod: ["db-0", "uid-1"], ..Interface::of("c2", "eth0") };
    nodes[1].add(db, &networks[1]);
    let world = &nodes[0].world;
    world.conflist("10-net.conflist", &networks[0]);
    let [here, other] = nodes.each_ref().map(Node::id);
    let state = || (desk.objects().pools(), desk.objects().reservations());
    let before = state();

    let held = [
        (["10.1.0.2", "fd00:1::2"], ["c1", "eth0"], &here, json!("held")),
        (["10.1.0.3", "fd00:1::3"], ["c1", "net1"], &here, json!("held")),
        (["10.1.0.4", "fd00:1::4"], ["c2", "eth0"], &other, Value::Null),
    ];
    let listed = world.typed(&["list", "net", "--json"]).success();
    for (addresses, [container, ifname], node, record) in held {
        for address in addresses {
            let rows = listed.as_array().unwrap();
            let row = rows.iter().find(|row| row["address"] == address).unwrap();
            let keys = ["containerID", "ifname", "node", "state", "record"];
            let expected = json!([container, ifname, node, "held", record]);
            assert_eq!(Value::from(keys.map(|key| row[key].clone()).to_vec()), expected);
            let who = world.typed(&["who", "net", address]);
            let told = table(&who.stdout)[1].join(" ");
            assert!(told.starts_with(&format!("{address} - {container} {ifname} {node} ")));
            assert_eq!(who.stdout.contains("pod shop/web-0"), *node == here);
        }
    }
    assert_eq!(listed.as_array().unwrap().len(), 6);
    for (address, told) in [("10.1.0.1", "is the gateway of pool"), ("10.1.0.5", "is free")] {
        let outcome = world.typed(&["who", "net", address]);
        assert!(outcome.exit == Some(1) && outcome.stderr.contains(told), "{outcome:?}");
    }
    let attachments = world.typed(&["attachments", "--json"]).success();
    assert_eq!(attachments.as_array().unwrap().len(), 2);
    assert_eq!(attachments[1]["addresses"], json!(["10.1.0.3/24", "fd00:1::3/64"]));

    let lint = world.typed(&["lint", "net"]);
    let warnings = lint.stdout.lines().filter(|line| line.starts_with("warning: "));
    let warnings: Vec<&str> = warnings.filter(|line| !line.contains("stateDir")).collect();
    assert!(lint.exit == Some(0) && warnings.is_empty(), "{lint:?}");
    let explain = world.typed(&["explain", "net"]);
    assert!(explain.stdout.contains("is not run now; ADD would give it"), "{explain:?}");
    // It needs no server.
    let away = with(&networks[0], "kube", json!({"kubeconfig": "/none"}));
    world.conflist("20-away.conflist", &with_name(&away, "away"));
    world.typed(&["explain", "away"]).ended_well();

    let selector = format!("ipam-delegated/node={other},ipam-delegated/network=net");
    let names =
        get(&desk, &["get", "overlappingrangeipreservations", "-l", &selector, "--no-headers"]);
    let names: Vec<&str> = table(&names).iter().map(|words| words[0]).collect();
    assert_eq!(names, ["10.1.0.4", "fd00-1--4"]);
    let pools = get(&desk, &["get", "ippools", "--no-headers"]);
    let pools: Vec<&str> = table(&pools).iter().map(|words| words[0]).collect();
    assert_eq!(pools, ["10.1.0.0-24", "fd00-1---64"]);
    let described = get(&desk, &["describe", "ippools", "10.1.0.0-24"]);
    assert_eq!(described.matches("Podref:  shop/web-0").count(), 2, "{described}");
    let described = get(&desk, &["describe", "overlappingrangeipreservations", "10.1.0.4"]);
    for line in ["ipam-delegated/pod-uid: uid-1", "ipam-delegated/container: c2"] {
        assert!(described.contains(line), "{described}");
    }
    assert_eq!(state(), before);
}

#[test]
fn the_lint_of_the_chain_shows_what_the_allocator_cannot_read() {
    let desk = desk(Release::V094);
    let node = Node::new(&desk);
    let network = node.network(&["10.1.0.0/24"]);
    node.world.conflist("10-net.conflist", &network);
    desk.objects().create_pool("", "10.1.0.0/24", &json!({}));
    desk.patch(POOLS, "10.1.0.0-24", &json!({"spec": {"range": "nonsense"}}));
    let lint = node.world.typed(&["lint", "net"]).stdout;
    assert!(lint.contains("warning: ipam-da-kube: ippools.whereabouts.cni.cncf.io/10.1.0.0-24"));
    assert!(lint.contains("spec.range is \"nonsense\": expected 10.1.0.0/24"), "{lint}");
}

fn with_name(network: &Value, name: &str) -> Value {
    let mut network = network.clone();
    network["name"] = name.into();
    network
}
