//! Records of an older program: the name of a pod, and no owner.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::Kind;
use common::node::{Node, named, pool};
use serde_json::{Value, json};

/// The subnet of [`pool`].
const SUBNET: &str = "lan|10.1.2.0/29|";

/// A node on a store with these records of an older program.
fn node(kind: Kind, records: &[(&str, &str)]) -> Node {
    let node = Node::new(Kind { adopts: true, ..kind });
    for (address, text) in records {
        node.store.state().late(SUBNET, address.parse().unwrap(), text);
    }
    node
}

/// An ADD of the pod `shop/web-0`: its address, or the code and the message of its error.
fn add(node: &Node, container: &str, pool: Value, more: Value) -> Result<String, (u64, String)> {
    let args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    let reply = node.call_of("ADD", container, json!([pool]), more, args);
    let said: Value = serde_json::from_str(&reply.stdout).unwrap();
    match reply.exit {
        0 => Ok(said["ips"][0]["address"].as_str().unwrap().to_owned()),
        _ => Err((said["code"].as_u64().unwrap(), said["msg"].as_str().unwrap().to_owned())),
    }
}

fn texts(node: &Node) -> Vec<(String, String)> {
    let state = node.store.state();
    let records = state.records.values().flatten();
    let mut texts: Vec<_> =
        records.map(|record| (record.address.to_string(), record.text.clone())).collect();
    texts.sort();
    texts
}

#[test]
fn the_pod_of_a_record_gets_its_address_and_the_record_is_made_anew() {
    let atomic = Kind { is_atomic: true, says_atomic: true, ..Kind::default() };
    for kind in [
        Kind::default(),
        Kind { omits_ids: true, ..Kind::default() },
        atomic,
        Kind { chooses: true, owns_once: true, ..atomic },
    ] {
        let node = node(kind, &[("10.1.2.4", "shop/web-0"), ("10.1.2.5", "shop/web-1")]);
        let before = texts(&node);
        assert_eq!(add(&node, "c1", pool(), json!({})).unwrap(), "10.1.2.4/29", "{kind:?}");
        let after = texts(&node);
        assert_eq!(after[1], before[1]);
        assert_eq!(after[0], ("10.1.2.4".to_owned(), "ipd:n1/lan/c1/eth0 shop/web-0".to_owned()));
        // Again, and for the next sandbox of the pod, which has no record of the older program.
        assert_eq!(add(&node, "c1", pool(), json!({})).unwrap(), "10.1.2.4/29");
        assert_ne!(add(&node, "c2", pool(), json!({})).unwrap(), "10.1.2.4/29");
        node.del("c1");
        node.del("c2");
        assert_eq!(texts(&node), before[1..]);
    }
}

#[test]
fn a_record_with_more_than_the_name_of_the_pod_is_not_taken() {
    for text in ["shop/web-0; rack 7", "shop/web-00", "web-0", "shop/web-0 "] {
        let node = node(Kind::default(), &[("10.1.2.4", text)]);
        assert_eq!(add(&node, "c1", pool(), json!({})).unwrap(), "10.1.2.2/29", "{text}");
        assert_eq!(texts(&node)[1].1, text);
    }
    // Nor where no older program is known.
    let node = Node::new(Kind::default());
    node.store.state().late(SUBNET, "10.1.2.4".parse().unwrap(), "shop/web-0");
    assert_eq!(add(&node, "c1", pool(), json!({})).unwrap(), "10.1.2.2/29");
}

#[test]
fn a_name_that_two_pods_may_have_is_taken_with_takeover_alone() {
    let node = node(Kind::default(), &[("10.1.2.4", "web"), ("10.1.2.5", "shop/web-0")]);
    let before = texts(&node);
    let (code, said) = add(&node, "c1", named(), json!({})).unwrap_err();
    assert_eq!(code, 11, "{said}");
    assert!(said.contains("\"web\"") && said.contains("10.1.2.4"), "{said}");
    assert_eq!(texts(&node), before);
    let takeover = json!({"takeover": true});
    assert_eq!(add(&node, "c1", named(), takeover).unwrap(), "10.1.2.4/29");
    assert_eq!(texts(&node).len(), 2);
}

#[test]
fn a_record_that_a_person_changes_meanwhile_stays() {
    let node = node(Kind::default(), &[("10.1.2.4", "shop/web-0")]);
    let other = node.clone();
    let edit = move |_| {
        let mut state = other.store.state();
        state.records.values_mut().flatten().for_each(|record| record.text = "printer".to_owned());
    };
    node.store.state().after_list.push_back(Box::new(edit));
    assert_ne!(add(&node, "c1", pool(), json!({})).unwrap(), "10.1.2.4/29");
    assert!(texts(&node).contains(&("10.1.2.4".to_owned(), "printer".to_owned())));
}

#[test]
fn a_release_without_a_cached_result_leaves_a_record() {
    let node = node(Kind::default(), &[("10.1.2.4", "shop/web-0")]);
    let before = texts(&node);
    let args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    let reply = node.call_of("DEL", "c1", json!([pool()]), json!({}), args);
    assert_eq!(reply.exit, 0, "{}", reply.stdout);
    assert_eq!(texts(&node), before);
}
