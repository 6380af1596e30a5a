//! `repair`: entries without a reservation get one.

use std::process::{Command, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

use ipam_testkit::kube::Client;
use ipam_testkit::node::at_once;
use ipam_testkit::whereabouts::{Crds, Objects, POOLS, RESERVATIONS};
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use crate::common::node::{Node, POOL, SUBNET};
use crate::common::relay::{Ask, Fate};
use crate::common::site::{On, Plan, Site};
use crate::common::{Desk, v094};

/// The rows of a call: address, pool, container and state.
#[track_caller]
fn rows(node: &Node, words: &[&str]) -> Vec<String> {
    let words = [&["repair", "--json"], words].concat();
    let rows = node.typed(&words).success();
    let text = |row: &Value| {
        let members = ["address", "pool", "containerID", "reservation"];
        members.map(|member| row[member].as_str().unwrap_or("-").to_owned()).join(" ")
    };
    rows.as_array().unwrap().iter().map(text).collect()
}

fn in_each_world(run: impl Fn(&Desk) + Sync) {
    let worlds: [fn() -> Crds; 2] = [v094, Crds::shipped];
    at_once(worlds.len(), |world| run(&Desk::new(&worlds[world]())));
}

#[test]
fn entries_without_reservations_get_them() {
    in_each_world(|desk| {
        let node = Node::of(desk);
        let held = node.add("c1");
        desk.client.delete(&desk.objects().path(RESERVATIONS, "10.1.2.2"));
        let others = json!({
            "5": {"id": "c5", "podref": "ns/p5", "ifname": "net1"},
            "6": {"id": "c6", "podref": ""},
        });
        desk.patch("ippools", POOL, &json!({"spec": {"allocations": others}}));
        let before = desk.held();
        let found = |state: &str| {
            [("2", "c1"), ("5", "c5"), ("6", "c6")]
                .map(|(key, id)| format!("10.1.2.{key} {POOL} {id} {state}"))
        };
        assert_eq!(rows(&node, &[]), found("missing"));
        assert!(node.told(&["repair"]).ends_with("nothing was repaired; add --yes to do it\n"));
        assert_eq!(desk.held(), before);
        assert_eq!(rows(&node, &[POOL, "--yes"]), found("made"));
        desk.objects().assert_consistent();
        assert_eq!(node.told(&["repair", "--yes"]).lines().last(), Some("nothing to repair"));
        // The owner finds its reservation, and deletes it.
        node.del_known("c1", &held).success();
        assert!(!desk.held().contains(&"10.1.2.2 c1".to_owned()), "{:?}", desk.held());
    });
}

#[test]
fn an_entry_of_0_4_without_podref_gets_a_reservation() {
    let desk = Desk::new(&Crds::shipped());
    desk.objects().create_pool("", SUBNET, &json!({"5": {"id": "c5"}}));
    assert_eq!(rows(&Node::of(&desk), &["--yes"]), [format!("10.1.2.5 {POOL} c5 made")]);
}

#[test]
fn an_address_of_two_entries_or_of_another_holder_is_left_alone() {
    in_each_world(|desk| {
        let node = Node::of(desk);
        node.add("c1");
        let narrow = json!({"5": entry("n5"), "6": entry("n6"), "0": entry("n0")});
        desk.patch("ippools", POOL, &json!({"spec": {"allocations": narrow}}));
        // 10.1.2.5 in the pool that overlaps.
        desk.objects().create_pool("", "10.1.0.0/16", &json!({"517": entry("w5")}));
        desk.objects().create_pool("red", SUBNET, &json!({"6": entry("r6"), "7": entry("r7")}));
        desk.client.create(&json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
            "kind": "OverlappingRangeIPReservation",
            "metadata": {"namespace": desk.namespace, "name": "10.1.2.6"},
            "spec": {"podref": "ns/other", "containerid": "other", "ifname": "eth0"},
        }));
        let before = desk.held();
        let doubtful = ["0 n0", "5 n5", "6 n6"].map(|held| {
            let (key, id) = held.split_once(' ').unwrap();
            format!("10.1.2.{key} {POOL} {id} doubtful")
        });
        assert_eq!(rows(&node, &["--yes"]), doubtful);
        let told = node.told(&["repair", "10.1.0.0-16", "--yes"]);
        assert!(told.contains("10.1.2.0-24 has an entry of it, too: n5"), "{told}");
        assert!(told.ends_with("\nleft alone, because doubtful: 1\nnothing to repair\n"), "{told}");
        assert_eq!(desk.held(), before);
        let red = Node::of(desk).with("networkName", "red");
        let made = ["6 red-10.1.2.0-24 r6 made", "7 red-10.1.2.0-24 r7 made"];
        assert_eq!(rows(&red, &["--yes"]), made.map(|row| format!("10.1.2.{row}")));
    });
}

#[test]
fn a_call_that_cannot_repair_says_why() {
    let desk = Desk::new(&v094());
    let fails = |node: Node, words: &[&str], reason: &str| {
        let outcome = node.typed(words);
        assert_eq!(outcome.exit, Some(1), "{outcome:?}");
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    };
    fails(Node::of(&desk), &["repair", "no-pool"], "no IPPool \"no-pool\" of the network");
    // As a configuration of whereabouts, whose ranges and network name its selector reads.
    let mut unchosen = Node::of(&desk).with("networkName", "blue");
    unchosen.pools = json!([]);
    fails(unchosen, &["repair", "--yes"], "ipam-delegated explain NETWORK --json | jq");
    let unchecked = Node::of(&desk).with("overlapCheck", false);
    fails(unchecked, &["repair", "--yes"], "ipam.kube.overlapCheck: false");
}

/// Repairs the entries 5 and 6 of a pool, while this is done before each reservation is made.
fn repair_while(
    meanwhile: impl Fn(&Client, &Objects, &Ask) -> Fate + Send + Sync + 'static,
) -> (Site, Outcome) {
    let plan = Plan { crds: v094, overlap_check: true, ranges: &[SUBNET], is_chain: false };
    let site = Site::new(plan);
    let (client, objects) = (site.desk.client.clone(), site.desk.objects());
    objects.create_pool("", SUBNET, &json!({"5": entry("c5"), "6": entry("c6")}));
    site.relay.decide(move |ask| match ask.method.as_str() {
        "POST" => meanwhile(&client, &objects, ask),
        _ => Fate::Pass,
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipam-da-kube"));
    command.args(["repair", "--config", "-", "--yes"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = wait(start(command, &site.network(On::First)));
    (site, outcome)
}

/// The entry of a container, whose pod has the same name.
fn entry(id: &str) -> Value {
    json!({"id": id, "podref": format!("ns/{id}"), "ifname": "net1"})
}

/// Sets an entry of the pool, as another program does; null releases it.
fn set_entry(client: &Client, objects: &Objects, key: &str, entry: &Value) {
    client.patch(&objects.path(POOLS, POOL), &json!({"spec": {"allocations": {key: entry}}}));
}

#[test]
fn an_entry_that_a_del_in_between_releases_later_gets_no_reservation() {
    let (site, outcome) = repair_while(|client, objects, ask| {
        if ask.body.contains("10.1.2.5") {
            let (client, objects) = (client.clone(), objects.clone());
            thread::spawn(move || {
                sleep(Duration::from_secs(2));
                set_entry(&client, &objects, "5", &Value::Null);
            });
        }
        Fate::Pass
    });
    assert!(outcome.stdout.ends_with("repaired\n"), "{outcome:?}");
    assert_eq!(site.desk.held(), [format!("{POOL} 6 c6"), "10.1.2.6 c6".to_owned()]);
}

#[test]
fn an_entry_that_is_released_meanwhile_gets_no_reservation_even_if_another_one_fails() {
    let (site, outcome) = repair_while(|client, objects, ask| {
        if ask.body.contains("10.1.2.5") {
            return Fate::Answer(403, json!({"kind": "Status", "code": 403}).to_string());
        }
        set_entry(client, objects, "6", &Value::Null);
        Fate::Pass
    });
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert_eq!(site.desk.held(), [format!("{POOL} 5 c5")]);
}

#[test]
fn an_entry_whose_pod_gets_another_sandbox_meanwhile_keeps_its_reservation() {
    let (site, outcome) = repair_while(|client, objects, _| {
        set_entry(
            client,
            objects,
            "5",
            &json!({"id": "later", "podref": "ns/c5", "ifname": "net1"}),
        );
        Fate::Pass
    });
    assert!(outcome.stdout.ends_with("repaired\n"), "{outcome:?}");
    site.desk.objects().assert_consistent();
}

#[test]
fn a_reservation_that_another_program_makes_meanwhile_is_left_to_it() {
    let (site, outcome) = repair_while(|client, objects, ask| {
        if ask.body.contains("10.1.2.5") {
            client.create(&serde_json::from_str(&ask.body).unwrap());
            set_entry(client, objects, "5", &Value::Null);
        }
        Fate::Pass
    });
    assert!(outcome.stdout.ends_with("repaired\n"), "{outcome:?}");
    let reserved: Vec<String> = site.desk.objects().reservations().into_keys().collect();
    assert_eq!(reserved, ["10.1.2.5", "10.1.2.6"]);
}
