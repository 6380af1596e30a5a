//! Pods that move, and nodes that are drained or lost.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use ipam_testkit::node::at_once;
use ipam_testkit::whereabouts::Release;
use ipam_testkit::world::{Outcome, binary, full_size, wait};
use serde_json::Value;

use super::{Interface, Node, assert_empty, desk, holders, ip};
use crate::common::Desk;

#[test]
fn a_pod_that_moves_keeps_its_addresses_and_the_late_del_of_its_node_frees_nothing() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let networks = nodes.each_ref().map(|node| node.network(&["10.1.0.0/24", "fd00:1::/64"]));
    let [before, after] = ["c1", "c2"].map(|container| Interface::of(container, "eth0"));
    let given = nodes[0].add(before, &networks[0]);
    assert_eq!(nodes[1].add(after, &networks[1]), given);
    desk.objects().assert_consistent();
    let state = || (desk.objects().pools(), desk.objects().reservations());
    let moved = state();
    let annotations = &moved.1["10.1.0.2"]["metadata"]["annotations"];
    assert_eq!(annotations["ipam-delegated/node"], nodes[1].id());
    assert_eq!(annotations["ipam-delegated/container"], "c2");

    for _ in 0..2 {
        nodes[0].call("DEL", before, &networks[0]).success();
    }
    nodes[0].collect(&networks[0]);
    assert_eq!(state(), moved);
    assert_eq!(nodes[0].world.state_of("c1"), "none");
    // A pod of the same name that was made anew is another one.
    let anew = Interface { pod: ["web-0", "uid-1"], ..Interface::of("c3", "eth0") };
    assert_ne!(nodes[0].add(anew, &networks[0]), given);
    assert_eq!(nodes[1].add(after, &networks[1]), given);
    nodes[0].call("DEL", anew, &networks[0]).success();
    nodes[1].call("DEL", after, &networks[1]).success();
    assert_empty(&desk);
}

#[test]
fn many_attachments_of_a_node_end_at_once() {
    const WORKERS: usize = 16;
    let attachments = if full_size() { 250 } else { 50 };
    let desk = desk(Release::V094);
    let node = Node::new(&desk);
    let mut network = node.network(&["10.1.0.0/23"]);
    // The server shares the processors with all calls, and with other tests.
    network["ipam"]["kube"]["timeout"] = "40s".into();
    network["ipam"]["timeout"] = "150s".into();
    let numbers = Mutex::new(0..attachments);
    let call = |verb: &str, number: usize| {
        let (container, pod) = (format!("c{number}"), format!("web-{number}"));
        let interface = Interface { pod: [&pod, &container], ..Interface::of(&container, "eth0") };
        node.call(verb, interface, &network).success()
    };
    let began = Instant::now();
    at_once(WORKERS, |_| {
        loop {
            let Some(number) = numbers.lock().unwrap().next() else { return };
            call("ADD", number);
        }
    });
    let added = began.elapsed();
    assert_eq!(holders(&desk).len(), attachments);
    desk.objects().assert_consistent();
    let began = Instant::now();
    at_once(attachments, |number| drop(call("DEL", number)));
    let deleted = began.elapsed();
    let _ = writeln!(
        std::io::stderr(),
        "{attachments} ADDs, {WORKERS} at a time: {added:?}; as many DELs at once: {deleted:?}"
    );
    assert_empty(&desk);
}

#[test]
fn a_person_on_another_node_releases_the_leases_of_a_lost_node_and_no_others() {
    assert_lost_nodes_are_released(Release::V094);
}

/// The leases of a lost node are released from another node, and no others.
#[track_caller]
pub(crate) fn assert_lost_nodes_are_released(release: Release) {
    let desk = desk(release);
    let nodes = [(); 3].map(|()| Node::new(&desk));
    let pods = ["c0", "c1", "c2"].map(|container| Interface {
        pod: [container, container],
        ..Interface::of(container, "eth0")
    });
    let network = |node: &Node<'_>| node.network(&["10.1.0.0/24", "fd00:1::/64"]);
    for (node, pod) in nodes.iter().zip(pods) {
        node.add(pod, &network(node));
    }
    let [here, returning, gone] = &nodes;
    let lost = gone.id();
    fs::remove_dir_all(gone.world.path("state")).unwrap();
    let file = here.world.conflist("10-net.conflist", &network(here));

    // By `ipam-delegated` with the network's name, and by the allocator itself.
    let by_name = |words: &[&str]| {
        here.world.typed(&[&["release", "net", "--node", &returning.id()], words].concat())
    };
    let by_allocator = |words: &[&str]| {
        let mut command = Command::new(binary("ipam-da-kube"));
        command.args(["release", "--node", &lost, "--config"]).arg(&file).args(words);
        command.env_clear().stdin(Stdio::null());
        wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let left = assert_dry_run_then(&desk, by_name);
    assert_eq!(left, ["c0", "c2", "c0", "c2"]);
    let left = assert_dry_run_then(&desk, by_allocator);
    assert_eq!(left, ["c0", "c0"]);
    desk.objects().assert_consistent();

    // The node returns after its address was given to another pod.
    let next = Interface { pod: ["next", "next"], ..Interface::of("c3", "eth0") };
    assert_eq!(here.add(next, &network(here)), ["10.1.0.3", "fd00:1::3"].map(ip));
    let before = holders(&desk);
    returning.call("DEL", pods[1], &network(returning)).success();
    assert_eq!(holders(&desk), before);
    for pod in [pods[0], next] {
        here.call("DEL", pod, &network(here)).success();
    }
    assert_empty(&desk);
}

/// A dry run of a release changes no object, and the release all that it has shown: the containers
/// that hold an address then.
#[track_caller]
fn assert_dry_run_then(desk: &Desk, release: impl Fn(&[&str]) -> Outcome) -> Vec<String> {
    let state = || (desk.objects().pools(), desk.objects().reservations());
    let before = state();
    let dry = release(&[]);
    let told = format!("{}{}", dry.stdout, dry.stderr);
    assert!(told.contains("nothing was released; add --yes to do it"), "{dry:?}");
    let shown = dry.stdout.lines().filter(|line| line.contains("eth0")).count();
    assert_eq!((dry.exit, shown, state()), (Some(0), 2, before), "{}", dry.stdout);
    release(&["--yes"]).ended_well();
    let held = desk.objects().held();
    held.iter().map(|held| held.entry.id.clone()).collect()
}

#[test]
fn reap_releases_what_lost_its_namespace_and_leaves_the_leases_of_other_nodes() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let of =
        |container| Interface { pod: [container, container], ..Interface::of(container, "eth0") };
    for (node, container) in nodes.iter().zip(["c1", "c2"]) {
        node.add(of(container), &node.network(&["10.1.0.0/24"]));
        // Older than `gcGrace`.
        node.world.edit_record(container, |line| {
            if line["event"] == "attempt" {
                line["time"] = (line["time"].as_u64().unwrap() - 600_000).into();
            }
        });
    }
    let reap = |words: &[&str]| -> Value {
        nodes[0].world.typed(&[&["reap", "--json", "--no-cache"], words].concat()).success()
    };
    assert_eq!(reap(&[])[0]["outcome"], "would release");
    assert_eq!(holders(&desk).len(), 2);
    assert_eq!(reap(&["--yes"])[0]["outcome"], "released");
    let left = BTreeMap::from([("10.1.0.3".to_owned(), "c2/eth0".to_owned())]);
    assert_eq!(holders(&desk), left);
    assert_eq!(desk.objects().reservations().len(), 1);
    assert_eq!(nodes[0].world.state_of("c1"), "none");
}

#[test]
fn a_failed_add_of_a_pod_that_moves_leaves_nothing_after_its_del() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let networks = nodes.each_ref().map(|node| node.network(&["10.1.0.0/24", "fd00:1::/64"]));
    let [before, after] = ["c1", "c2"].map(|container| Interface::of(container, "eth0"));
    nodes[0].add(before, &networks[0]);
    nodes[1].world.full("ipam-da-full");
    let mut failing = networks[1].clone();
    failing["ipam"]["delegates"].as_array_mut().unwrap().push("ipam-da-full".into());
    assert_eq!(nodes[1].call("ADD", after, &failing).failure().0, 100);
    desk.objects().assert_consistent();
    nodes[1].call("DEL", after, &failing).success();
    nodes[0].call("DEL", before, &networks[0]).success();
    assert_empty(&desk);
}
