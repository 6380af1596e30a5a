//! Pods of a few names on nodes that are lost, at random: each name has one holder and one address.

use std::collections::BTreeMap;

use ipam_testkit::history::workload::{Random, seed};
use ipam_testkit::world::full_size;
use serde_json::json;

use crate::common::node::Node;
use crate::common::sticky::{StickySandbox, sticky_desk};

const NAMES: [&str; 3] = ["web-0", "web-1", "web-2"];
const NODES: usize = 3;

/// A sandbox that its runtime may still end.
#[derive(Clone)]
struct Sandbox {
    name: usize,
    node: usize,
    container: String,
    pod: String,
    uid: String,
}

#[test]
fn a_name_has_one_holder_and_one_address_whatever_node_is_lost() {
    let desk = sticky_desk();
    let nodes: Vec<Vec<Node>> = (0..NODES)
        .map(|node| {
            let of_name = |name: &&str| desk.sticky_node(&format!("node-{node}"), name, "1h");
            NAMES.iter().map(of_name).collect()
        })
        .collect();
    let plain = Node::of(&desk).named("node-9");
    let mut random = Random(seed());
    let mut alive: BTreeMap<usize, Sandbox> = BTreeMap::new();
    let mut lost: Vec<Sandbox> = Vec::new();
    let mut given: BTreeMap<usize, String> = BTreeMap::new();
    let mut others = Vec::new();
    let sandbox = |of: &Sandbox| -> Vec<String> {
        vec![of.container.clone(), of.pod.clone(), of.uid.clone()]
    };
    let call = |of: &Sandbox, verb: &str| {
        let parts = sandbox(of);
        let node = &nodes[of.node][of.name];
        let pod = StickySandbox::of_pod(&desk, node, &parts[0], &parts[1], &parts[2]);
        pod.call_with(verb, &json!({}))
    };
    for step in 0..if full_size() { 1000 } else { 80 } {
        let (name, node) = (random.below(3) as usize, random.below(NODES as u64) as usize);
        match random.below(10) {
            // A pod comes, beside one that may be alive.
            0..=3 => {
                let pod = format!("{}-{step}", NAMES[name]);
                let uid = desk.create_pod(&pod, "");
                let new = Sandbox { name, node, container: format!("c{step}"), pod, uid };
                let outcome = call(&new, "ADD");
                if alive.contains_key(&name) {
                    assert_eq!(outcome.failure().0, 11, "step {step}");
                    assert_eq!(call(&new, "DEL").exit, Some(0), "step {step}");
                    desk.force_delete_pod(&new.pod);
                    continue;
                }
                let address = outcome.ips().swap_remove(0);
                let before = given.entry(name).or_insert_with(|| address.clone());
                assert_eq!(*before, address, "step {step}");
                alive.insert(name, new);
            }
            // It ends.
            4 | 5 => {
                if let Some(ended) = alive.remove(&name) {
                    assert_eq!(call(&ended, "DEL").exit, Some(0), "step {step}");
                    desk.force_delete_pod(&ended.pod);
                }
            }
            // Its node is lost: a person deletes the pod, and no DEL comes.
            6 | 7 => {
                if let Some(gone) = alive.remove(&name) {
                    desk.force_delete_pod(&gone.pod);
                    lost.push(gone);
                }
            }
            // A lost node comes back.
            8 => {
                if let Some(late) = lost.pop() {
                    assert_eq!(call(&late, "DEL").exit, Some(0), "step {step}");
                }
            }
            // Others come and go.
            _ => {
                let address = plain.address(&format!("p{step}"));
                assert!(!given.values().any(|own| own.starts_with(&format!("{address}/"))));
                others.push(format!("p{step}"));
                if others.len() > 3 {
                    plain.del(&others.remove(0));
                }
            }
        }
        for (name, holder) in &alive {
            let spec = desk.sticky(NAMES[*name]).unwrap()["spec"].clone();
            assert_eq!(spec["holder"]["container"], holder.container.as_str(), "step {step}");
        }
    }
    desk.objects().assert_consistent();
    assert_eq!(desk.objects().held().len(), given.len() + others.len());
}
