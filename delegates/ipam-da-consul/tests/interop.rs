//! What another client, the crate `consul`, reads of our keys, and what ours make of what it writes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use consul::kv::{KV, KVPair};
use consul::{Client, Config};
use ipam_testkit::consul::{Consul, decode};
use serde_json::{Value, json};

use common::Node;

const POOL: &str = r#"[{"subnet":"10.1.2.0/26","gateway":"10.1.2.62"}]"#;

fn site() -> Consul {
    let consul = Consul::start();
    consul.put("ipam/p", POOL);
    consul
}

fn reader(consul: &Consul) -> Client {
    Client::new(Config { address: consul.url(), ..Config::new().unwrap() })
}

/// The value of a key, which the crate leaves in base64.
#[track_caller]
fn read(reader: &Client, key: &str) -> Value {
    let pair = reader.get(key, None).unwrap().0.unwrap();
    assert_eq!((pair.Key.as_str(), pair.Flags, &pair.Session), (key, Some(0), &None));
    serde_json::from_str(&decode(&pair.Value)).unwrap()
}

fn names(pairs: &[KVPair]) -> Vec<&str> {
    pairs.iter().map(|pair| pair.Key.as_str()).collect()
}

#[test]
fn it_reads_pools_allocations_and_owners() {
    let consul = site();
    let node = Node::of(&consul).with_pools(&["p"]);
    for container in ["c1", "c2"] {
        node.add(container);
    }
    let reader = reader(&consul);
    assert_eq!(read(&reader, "ipam/p"), serde_json::from_str::<Value>(POOL).unwrap());

    let (pairs, meta) = reader.list("ipam/p/1", None).unwrap();
    assert_eq!(names(&pairs), ["ipam/p/10.1.2.1", "ipam/p/10.1.2.2"]);
    for (pair, container) in pairs.iter().zip(["c1", "c2"]) {
        let allocation = read(&reader, &pair.Key);
        let members: Vec<_> = allocation.as_object().unwrap().keys().collect();
        let expected = ["generation", "ifname", "leases", "network", "node", "target", "time"];
        assert_eq!(members, expected);
        let of = |member: &str| allocation[member].clone();
        assert_eq!([of("target"), of("ifname")], [container, "eth0"]);
        assert_eq!([of("network"), of("node")], ["net", "node-1"]);

        // The owner's key was written in the same step.
        let owner = format!("ipam/.owners/net/node-1/{container}/eth0");
        let document = read(&reader, &owner);
        assert_eq!(
            document["leases"][0]["address"],
            format!("{}/26", &pair.Key["ipam/p/".len()..])
        );
        let written = reader.get(&owner, None).unwrap().0.unwrap();
        assert_eq!(written.ModifyIndex, pair.ModifyIndex);
        assert!(meta.last_index >= pair.ModifyIndex);
    }
    let (pairs, _) = reader.list("ipam/.owners/", None).unwrap();
    // Two owners and the latest claim of the node.
    assert_eq!(pairs.len(), 3, "{:?}", names(&pairs));
}

/// It expects a text where Consul says null.
#[test]
fn an_empty_value_hides_from_it_whatever_is_listed_with_it() {
    let consul = site();
    Node::of(&consul).with_pools(&["p"]).add("c1");
    let reader = reader(&consul);
    for folder in ["ipam/", "ipam/p/"] {
        assert_eq!(consul.get(folder).as_deref(), Some(""));
        for error in [reader.get(folder, None).unwrap_err(), reader.list(folder, None).unwrap_err()]
        {
            let causes: Vec<_> = error.iter().map(ToString::to_string).collect();
            assert!(causes.iter().any(|cause| cause.contains("invalid type: null")), "{causes:?}");
        }
    }
    // What begins so and is no folder, it lists.
    assert_eq!(names(&reader.list("ipam/p/10.", None).unwrap().0), ["ipam/p/10.1.2.1"]);
    assert!(reader.list("ipam/q", None).unwrap().0.is_empty());
    assert!(reader.get("ipam/q", None).is_err());
}

#[test]
fn ours_name_a_pool_that_it_wrote_as_a_text_and_notice_what_it_deleted() {
    let consul = site();
    let reader = reader(&consul);
    let put = |key: &str, value: &str| {
        let pair = KVPair { Key: key.to_owned(), Value: value.to_owned(), ..KVPair::default() };
        assert!(reader.put(&pair, None).unwrap().0);
    };
    // It writes the JSON of whatever it is given.
    put("ipam/q", POOL);
    assert_eq!(consul.get("ipam/q"), Some(json!(POOL).to_string()));
    let (code, text) = Node::of(&consul).with_pools(&["q"]).call("ADD", "c1").failure();
    assert!(code == 103 && text.contains("ipam/q"), "{text}");

    let node = Node::of(&consul).with_pools(&["p"]);
    let result = node.add("c1");
    assert_eq!(node.check("c1", &result).success(), Value::Null);
    let key = "ipam/p/10.1.2.1";
    assert!(reader.delete(key, None).unwrap().0);
    assert_eq!(node.check("c1", &result).failure().0, 104);
    node.del("c1");
    assert_eq!(common::store::holdings(&consul), [""; 0]);

    // An allocation of its making is none, and stays.
    put(key, r#"{"target":"c9"}"#);
    let before = consul.entry(key);
    assert_ne!(node.address("c1"), "10.1.2.1");
    node.del("c9");
    assert_eq!(consul.entry(key), before);
}
