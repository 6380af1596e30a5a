//! Claims on a server that may make two records of one address, and answers that are lost.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{Fake, Kind, Lost, Store, Unwritten};
use ipam_kit::allocate::Allocate;
use ipam_kit::cni::Environment;
use ipam_kit::delegate::{Reply, answer};
use ipam_kit::host::Settings;
use ipam_records::RecordLedger;
use ipam_records::server::AddressRecord;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A node with a store.
#[derive(Clone)]
struct Node {
    store: Store,
    name: &'static str,
    fake: String,
    folder: Arc<TempDir>,
}

impl Node {
    fn new(kind: Kind) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let fake = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
        let store = Store::new(&fake, kind);
        Self { store, name: "n1", fake, folder: Arc::new(TempDir::new().unwrap()) }
    }

    /// Another node on the same store.
    fn other(&self) -> Self {
        Self { name: "n2", folder: Arc::new(TempDir::new().unwrap()), ..self.clone() }
    }

    fn call(&self, verb: &str, container: &str, pools: Value, more: Value) -> Reply {
        let mut ipam = json!({
            "fake": self.fake, "stateDir": self.folder.path(), "node": self.name, "type": "x",
        });
        ipam.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut config = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam});
        config["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [], "pools": pools});
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/x"),
            ("CNI_PATH", "/x"),
        ];
        let delegate = Allocate::<RecordLedger<Fake>>::default();
        let settings = Settings::default();
        answer(&delegate, Environment::new(variables), config.to_string().as_bytes(), settings)
    }

    /// The address of an ADD, or the code and the message of its error.
    fn add(&self, container: &str, pool: Value) -> Result<String, (u64, String)> {
        self.add_with(container, pool, json!({}))
    }

    fn add_with(&self, container: &str, pool: Value, more: Value) -> Result<String, (u64, String)> {
        let reply = self.call("ADD", container, json!([pool]), more);
        let said: Value = serde_json::from_str(&reply.stdout).unwrap();
        match reply.exit {
            0 => Ok(said["ips"][0]["address"].as_str().unwrap().to_owned()),
            _ => Err((said["code"].as_u64().unwrap(), said["msg"].as_str().unwrap().to_owned())),
        }
    }

    fn del(&self, container: &str) {
        let reply = self.call("DEL", container, json!([]), json!({}));
        assert_eq!(reply.exit, 0, "{}", reply.stdout);
    }

    /// The addresses of all records, in order.
    fn recorded(&self) -> Vec<String> {
        let state = self.store.state();
        let records = state.records.values().flatten();
        let mut addresses: Vec<_> = records.map(|record| record.address).collect();
        addresses.sort_unstable();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// The files of the node's memory whose names begin so.
    fn files(&self, start: &str) -> Vec<PathBuf> {
        let (mut folders, mut files) = (vec![self.folder.path().to_owned()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false if entry.file_name().to_str().unwrap().starts_with(start) => {
                        files.push(entry.path());
                    }
                    false => {}
                }
            }
        }
        files
    }

    fn lose_memory(&self) {
        std::fs::remove_dir_all(self.folder.path()).unwrap();
        std::fs::create_dir(self.folder.path()).unwrap();
    }

    fn between(&self, call: impl FnOnce(IpAddr) + Send + 'static) {
        self.store.state().between.push_back(Box::new(call));
    }
}

fn pool() -> Value {
    json!({"ranges": [{"subnet": "10.1.2.0/29"}]})
}

#[test]
fn a_call_sends_as_few_requests_as_it_can() {
    for omits_ids in [false, true] {
        let node = Node::new(Kind { omits_ids, ..Kind::default() });
        node.add("c1", pool()).unwrap();
        node.store.requests();
        node.add("c2", pool()).unwrap();
        assert_eq!(node.store.requests(), ["list", "create", "list"]);
        assert_eq!(node.add("c2", pool()).unwrap(), "10.1.2.3/29");
        assert_eq!(node.store.requests(), ["read", "write"]);
    }
    let atomic = Node::new(Kind { is_atomic: true, says_atomic: true, ..Kind::default() });
    atomic.add("c1", pool()).unwrap();
    atomic.store.requests();
    atomic.add("c2", pool()).unwrap();
    assert_eq!(atomic.store.requests(), ["list", "create"]);
}

#[test]
fn of_two_claims_that_meet_both_are_withdrawn_and_both_are_served_elsewhere() {
    let node = Node::new(Kind::default());
    let other = node.other();
    node.between(move |_| drop(other.add("c2", pool()).unwrap()));
    let first = node.add("c1", pool()).unwrap();
    assert_eq!(node.recorded().len(), 2, "{first}");
    let unique: BTreeSet<_> = node.recorded().into_iter().collect();
    assert_eq!(unique.len(), 2);
    // The one who was alone when it read again keeps its address.
    assert!(unique.contains("10.1.2.2") && first != "10.1.2.2/29", "{first} {unique:?}");
}

#[test]
fn without_the_second_list_two_owners_hold_one_address() {
    for (says_atomic, records) in [(true, 1), (false, 2)] {
        let node = Node::new(Kind { says_atomic, ..Kind::default() });
        let other = node.other();
        node.between(move |_| drop(other.add("c2", pool()).unwrap()));
        node.add("c1", pool()).unwrap();
        let addresses: BTreeSet<String> = node.recorded().into_iter().collect();
        assert_eq!(addresses.len(), records);
    }
}

#[test]
fn a_claim_that_always_meets_others_ends_with_11_and_leaves_nothing() {
    let node = Node::new(Kind::default());
    for round in 0..8 {
        let store = node.store.clone();
        node.between(move |address| {
            let record = AddressRecord {
                id: format!("other-{round}"),
                address,
                text: "another program".to_owned(),
                stamp: String::new(),
                written: None,
            };
            store.state().records.entry("lan|10.1.2.0/28|".to_owned()).or_default().push(record);
        });
    }
    let large = json!({"ranges": [{"subnet": "10.1.2.0/28"}]});
    let (code, message) = node.add("c1", large.clone()).unwrap_err();
    assert_eq!(code, 11);
    assert!(message.starts_with("8 claims of c1/eth0 on lan"), "{message}");
    assert_eq!(node.recorded().len(), 8);
    // The next call is served.
    node.add("c1", large).unwrap();
    assert_eq!(node.recorded().len(), 9);
}

#[test]
fn a_claim_whose_answer_was_lost_is_looked_up_and_nothing_is_held_twice() {
    for lost in [Lost::Never, Lost::Done, Lost::Late] {
        let node = Node::new(Kind::default());
        node.store.state().lost.push_back(lost);
        let address = node.add("c1", pool()).unwrap();
        let recorded = node.recorded();
        assert!(
            recorded.iter().any(|it| address.starts_with(&**it)),
            "{lost:?} {address} {recorded:?}"
        );
        node.del("c1");
        assert_eq!(node.recorded(), [""; 0], "{lost:?}");
        // A record that comes after that is found by the repeated DEL.
        node.del("c1");
    }
}

#[test]
fn a_del_notes_the_attempts_that_may_still_be_carried_out() {
    let node = Node::new(Kind::default());
    node.store.state().lost.push_back(Lost::Never);
    node.add("c1", pool()).unwrap();
    node.del("c1");
    let [note] = &node.files("c1:")[..] else { panic!("{:?}", node.files("")) };
    let text = std::fs::read_to_string(note).unwrap();
    assert!(text.contains("\"sure\":false") && text.contains("10.1.2.2"), "{text}");
    // The next call of the owner looks there, wherever its pools are.
    let other = json!({"ranges": [{"subnet": "10.1.3.0/29"}]});
    node.store.state().late("lan|10.1.2.0/29|", [10, 1, 2, 2].into(), "ipd:n1/lan/c1/eth0");
    assert_eq!(node.add("c1", other).unwrap(), "10.1.3.2/29");
    assert_eq!(node.recorded(), ["10.1.3.2"]);
}

#[test]
fn a_record_that_a_kill_left_is_confirmed_before_it_is_answered() {
    let node = Node::new(Kind::default());
    // The claim is made, and its call knows nothing of it.
    node.store.state().lost.push_back(Lost::Done);
    node.add("c1", pool()).unwrap();
    node.store.requests();
    // Another claim of the same address was made at the same time.
    let record = node.store.state().records.values().flatten().next().unwrap().clone();
    let twin = AddressRecord {
        id: "twin".into(),
        text: record.text.replace("/c1/", "/c2/"),
        ..record.clone()
    };
    node.store.state().records.values_mut().next().unwrap().push(twin);
    node.lose_memory();
    let address = node.add("c1", pool()).unwrap();
    assert_ne!(address.split('/').next().unwrap(), record.address.to_string());
    assert_eq!(node.recorded().len(), 2);
}

#[test]
fn a_confirmed_record_stays_while_another_call_tries_its_address() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", pool()).unwrap();
    let record = node.store.state().records.values().flatten().next().unwrap().clone();
    let twin =
        AddressRecord { id: "twin".into(), text: record.text.replace("/c1/", "/c2/"), ..record };
    node.store.state().records.values_mut().next().unwrap().push(twin);
    assert_eq!(node.add("c1", pool()).unwrap(), address);
}

fn named() -> Value {
    json!({"ranges": [{"subnet": "10.1.2.0/29"}], "sticky": "web", "keep": "1h"})
}

#[test]
fn a_record_that_changed_while_it_was_released_is_released_all_the_same() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", named()).unwrap();
    node.store.state().unwritten.push_back(Unwritten::Changed);
    node.del("c1");
    // It is kept for its name alone.
    assert_eq!(node.add("c2", named()).unwrap(), address);
}

#[test]
fn an_address_that_cannot_be_kept_for_its_name_is_free() {
    let node = Node::new(Kind::default());
    node.add("c1", named()).unwrap();
    node.store.state().related.insert(2);
    node.del("c1");
    assert_eq!(node.recorded(), [""; 0]);
}

#[test]
fn a_record_whose_time_was_not_written_is_written_again() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let stamp = |node: &Node| node.store.state().records["lan|10.1.2.0/29|"][0].stamp.clone();
    let before = stamp(&node);
    node.store.state().unwritten.push_back(Unwritten::Unknown);
    node.add("c1", pool()).unwrap();
    assert_ne!(stamp(&node), before);
}

#[test]
fn claims_are_withdrawn_if_what_stays_cannot_be_written() {
    let node = Node::new(Kind::default());
    let other = json!({"ranges": [{"subnet": "10.1.3.0/29"}]});
    let address = node.add("c1", pool()).unwrap();
    node.store.state().unwritten.push_back(Unwritten::Refused);
    let reply = node.call("ADD", "c1", json!([pool(), other]), json!({}));
    assert_ne!(reply.exit, 0);
    assert!(node.recorded().len() == 1 && address.starts_with(&node.recorded()[0]));
}

#[test]
fn a_store_that_was_restored_is_refused_until_a_reassert() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let backup = node.store.state().records.clone();
    node.add("c2", pool()).unwrap();
    node.store.state().records = backup;
    let (code, message) = node.add("c3", pool()).unwrap_err();
    assert_eq!(code, 11);
    assert!(message.contains("was restored from a backup"), "{message}");
    assert_eq!(node.add("c1", pool()).unwrap_err().0, 11);
    node.del("c1");
    // Another node has nothing there that is missing.
    node.other().add("c4", pool()).unwrap();
}

#[test]
fn a_restored_store_is_noticed_however_many_later_records_were_released() {
    let node = Node::new(Kind::default());
    let wide = || json!({"ranges": [{"subnet": "10.1.2.0/24"}]});
    node.add("first", wide()).unwrap();
    let later = |n: usize| format!("c{n}");
    (0..9).for_each(|n| drop(node.add(&later(n), wide()).unwrap()));
    (0..9).for_each(|n| node.del(&later(n)));
    node.store.state().records.clear();
    assert_eq!(node.add("c9", wide()).unwrap_err().0, 11);
}

#[test]
fn a_restored_store_is_noticed_also_if_others_have_the_addresses_by_then() {
    // A takeover explains one, and not two.
    for (lost, expected) in [(1, Ok(())), (2, Err(11))] {
        let node = Node::new(Kind::default());
        let containers = ["c1", "c2"];
        containers[..lost].iter().for_each(|container| drop(node.add(container, pool()).unwrap()));
        node.store.state().records.clear();
        let other = node.other();
        containers[..lost].iter().for_each(|container| drop(other.add(container, pool()).unwrap()));
        let outcome = node.add("c3", pool()).map(drop).map_err(|(code, _)| code);
        assert_eq!(outcome, expected, "{lost}");
    }
}

#[test]
fn a_store_that_is_restored_during_an_add_is_noticed_by_its_second_list() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let store = node.store.clone();
    node.between(move |_| store.state().records.clear());
    assert_eq!(node.add("c2", pool()).unwrap_err().0, 11);
    assert_eq!(node.recorded(), [""; 0]);
}

#[test]
fn a_missing_record_that_its_owner_releases_is_no_sign_of_a_restored_server() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    node.store.state().records.clear();
    assert_eq!(node.add("c2", pool()).unwrap_err().0, 11);
    node.del("c1");
    node.add("c2", pool()).unwrap();
    // A release that was killed after its request has said before what it does.
    node.store.state().records.clear();
    let note = &node.files("c2:")[0];
    let text = std::fs::read_to_string(note).unwrap();
    std::fs::write(note, text.replace("\"taken\":", "\"ending\":true,\"taken\":")).unwrap();
    node.add("c3", pool()).unwrap();
}

#[test]
fn a_takeover_on_the_same_node_is_no_sign_of_a_restored_server() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
    node.add_with("c2", wish, json!({"takeover": true})).unwrap();
    node.del("c2");
    node.add("c3", pool()).unwrap();
}

/// A node whose first record another node has taken over.
fn taken_over() -> [Node; 2] {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let other = node.other();
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
    other.add_with("c2", wish, json!({"takeover": true})).unwrap();
    [node, other]
}

#[test]
fn a_record_that_was_taken_over_is_no_sign_of_a_restored_server() {
    // The node sees it by its DEL, or by an ADD while the other one has the address.
    for sees_by_del in [true, false] {
        let [node, other] = taken_over();
        if sees_by_del {
            node.del("c1");
        } else {
            node.add("c3", pool()).unwrap();
            node.del("c3");
        }
        other.del("c2");
        node.add("c4", pool()).unwrap();
    }
}

#[test]
fn an_owner_whose_records_are_gone_leaves_no_file() {
    let [node, _] = taken_over();
    node.del("c1");
    assert_eq!(node.files("c1:"), [PathBuf::new(); 0]);
}

#[test]
fn addresses_that_a_related_subnet_has_end_an_add_soon() {
    let node = Node::new(Kind::default());
    node.store.state().related = (0..=u8::MAX).collect();
    for (pool, expected) in [
        (json!({"ranges": [{"subnet": "10.1.2.0/24"}], "requested-ip": "10.1.2.9"}), 102),
        (json!({"ranges": [{"subnet": "10.1.2.0/24"}]}), 11),
    ] {
        let (code, message) = node.add("c1", pool).unwrap_err();
        assert!(code == expected && message.contains("a related subnet has one"), "{message}");
        let requests = node.store.requests();
        assert!(requests.len() <= 8 * 3 + 1, "{requests:?}");
    }
}

#[test]
fn a_requested_address_is_tried_again_after_another_claim_of_it_was_withdrawn() {
    let node = Node::new(Kind::default());
    node.store.state().related.insert(9);
    let store = node.store.clone();
    let withdrawal = thread::spawn(move || {
        while !store.state().requests.contains(&"create".to_owned()) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        store.state().related.clear();
    });
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/24"}], "requested-ip": "10.1.2.9"});
    assert_eq!(node.add("c1", wish).unwrap(), "10.1.2.9/24");
    withdrawal.join().unwrap();
}

#[test]
fn a_few_addresses_of_a_related_subnet_are_skipped() {
    let node = Node::new(Kind::default());
    node.store.state().related = (0..=6).collect();
    let wide = json!({"ranges": [{"subnet": "10.1.2.0/24"}]});
    let address = node.add("c1", wide).unwrap();
    assert_eq!(node.recorded(), [address.trim_end_matches("/24")]);
}

#[test]
fn a_name_that_another_owner_holds_is_taken_over_if_that_is_allowed() {
    let node = Node::new(Kind::default());
    let named = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "sticky": "web", "keep": "1h"});
    let address = node.add("c1", named.clone()).unwrap();
    let elsewhere = node.other();
    let (code, message) = elsewhere.add("c2", named.clone()).unwrap_err();
    assert_eq!(code, 11);
    assert!(message.contains("the sticky name \"web\" is held by c1/eth0"), "{message}");
    let taken = elsewhere.add_with("c2", named, json!({"takeover": true})).unwrap();
    assert_eq!(taken, address);
    // The record is another one, so that a late DEL of the first owner finds nothing of its own.
    node.del("c1");
    assert_eq!(node.recorded().len(), 1);
}

#[test]
fn two_claims_of_one_name_at_the_same_time_leave_it_to_one_owner() {
    for says_atomic in [false, true] {
        let node = Node::new(Kind { says_atomic, ..Kind::default() });
        let (other, requested) = (node.other(), |last: u8| {
            let mut pool = named();
            pool["requested-ip"] = format!("10.1.2.{last}").into();
            pool
        });
        // They claim different addresses.
        node.between(move |_| drop(other.add("c2", requested(3)).unwrap()));
        let (code, message) = node.add("c1", requested(2)).unwrap_err();
        assert!(code == 11 && message.contains("is held by c2/eth0"), "{code} {message}");
        assert_eq!(node.recorded(), ["10.1.2.3"]);
    }
}

#[test]
fn a_del_without_the_nodes_memory_looks_into_every_subnet() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    node.lose_memory();
    // The pools are others by now.
    let pools = json!([{"ranges": [{"subnet": "10.1.3.0/29"}]}]);
    assert_eq!(node.call("DEL", "c1", pools, json!({})).exit, 0);
    assert_eq!(node.recorded(), [""; 0]);
}

#[test]
fn an_owners_subnet_is_looked_at_also_if_the_network_has_forgotten_it() {
    let node = Node::new(Kind::default());
    let other = || json!({"ranges": [{"subnet": "10.1.3.0/29"}]});
    node.add("c1", pool()).unwrap();
    std::fs::remove_file(&node.files("site.json")[0]).unwrap();
    assert_eq!(node.add("c1", other()).unwrap(), "10.1.3.2/29");
    assert_eq!(node.recorded(), ["10.1.3.2"]);
    // A subnet that was deleted holds nothing.
    std::fs::remove_file(&node.files("site.json")[0]).unwrap();
    node.store.state().gone.insert("lan|10.1.3.0/29|".to_owned());
    assert_eq!(node.add("c1", pool()).unwrap(), "10.1.2.2/29");
}

#[test]
fn a_takeover_of_a_name_ends_every_other_record_of_it() {
    let node = Node::new(Kind::default());
    node.add("c1", named()).unwrap();
    // Another owner has the name, too, as two claims without a second list left it.
    let mut twin = node.store.state().records["lan|10.1.2.0/29|"][0].clone();
    twin = AddressRecord {
        id: "twin".into(),
        address: [10, 1, 2, 5].into(),
        text: twin.text.replace("/c1/", "/c3/"),
        ..twin
    };
    node.store.state().records.get_mut("lan|10.1.2.0/29|").unwrap().push(twin);
    // Both are outside of the ranges by now.
    let range = json!({"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.6"});
    let pool = json!({"ranges": [range], "sticky": "web", "keep": "1h"});
    let taken = node.other().add_with("c2", pool, json!({"takeover": true})).unwrap();
    assert_eq!(taken, "10.1.2.6/29");
    assert_eq!(node.recorded(), ["10.1.2.6"]);
}

#[test]
fn a_container_id_that_does_not_fit_is_error_4_and_takes_nothing() {
    let node = Node::new(Kind::default());
    let (code, message) = node.add(&"z".repeat(90), pool()).unwrap_err();
    assert_eq!(code, 4, "{message}");
    assert_eq!(node.recorded(), [""; 0]);
}
