//! What a node remembers of its records, and what it sees by that: a server that was restored from a
//! backup, and records that nothing else leads to.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::node::{Node, pool};
use common::{Kind, Lost};
use ipam_records::server::AddressRecord;
use serde_json::json;

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
fn a_restored_store_that_gave_an_id_again_is_noticed() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    for record in node.store.state().records.values_mut().flatten() {
        (record.address, record.text) = ([10, 1, 2, 5].into(), "printer".to_owned());
    }
    assert_eq!(node.add("c2", pool()).unwrap_err().0, 11);
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
fn a_missing_record_that_its_owner_releases_does_not_look_like_a_restored_server() {
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
fn a_note_that_cannot_be_read_does_not_explain_a_missing_record() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    node.store.state().records.clear();
    assert_eq!(node.add("c2", pool()).unwrap_err().0, 11);
    std::fs::write(&node.files("c1:")[0], "{\"sure\":tr").unwrap();
    assert_eq!(node.add("c2", pool()).unwrap_err().0, 11);
    // The DEL of its container ends it.
    node.del("c1");
    node.add("c2", pool()).unwrap();
}

#[test]
fn a_release_that_did_not_begin_does_not_explain_a_missing_record() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    // The claim that is to replace it fails.
    node.store.state().related = (0..=u8::MAX).collect();
    let other = json!({"ranges": [{"subnet": "10.1.3.0/29"}]});
    assert_eq!(node.add("c1", other).unwrap_err().0, 11);
    node.store.state().related.clear();
    node.store.state().records.clear();
    assert_eq!(node.add("c2", pool()).unwrap_err().0, 11);
}

#[test]
fn another_owner_at_the_latest_address_does_not_prove_that_the_store_is_as_it_was() {
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let backup = node.store.state().records.clone();
    let other = node.other();
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
    other.add_with("c2", wish, json!({"takeover": true})).unwrap();
    node.add("c3", pool()).unwrap();
    other.del("c2");
    assert_eq!(node.add("c4", pool()).unwrap(), "10.1.2.2/29");
    // In the backup, the node's first owner has the address of its latest one.
    node.store.state().records = backup;
    assert_eq!(node.add("c5", pool()).unwrap_err().0, 11);
}

#[test]
fn a_takeover_on_the_same_node_does_not_look_like_a_restored_server() {
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
fn a_record_that_was_taken_over_does_not_look_like_a_restored_server() {
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
fn a_record_that_was_taken_over_and_released_unseen_is_an_error_with_both_causes() {
    let [node, other] = taken_over();
    other.del("c2");
    let (code, message) = node.add("c3", pool()).unwrap_err();
    let causes = ["was restored from a backup", "another node took the address over"];
    assert!(code == 11 && causes.iter().all(|cause| message.contains(cause)), "{message}");
    // The harmless step ends it.
    node.del("c1");
    node.add("c3", pool()).unwrap();
}

#[test]
fn an_owner_whose_records_are_gone_leaves_no_file() {
    let [node, _] = taken_over();
    node.del("c1");
    assert!(node.files("c1:").is_empty());
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
fn a_del_that_looks_into_every_subnet_goes_on_where_the_one_before_failed() {
    let node = Node::new(Kind::default());
    let net = |n: u8| json!({"ranges": [{"subnet": format!("10.1.{n}.0/29")}]});
    (1..5).for_each(|n| drop(node.add(&format!("c{n}"), net(n)).unwrap()));
    node.lose_memory();
    for (listed, exit) in [(2, 1), (1, 1), (1, 0)] {
        node.store.requests();
        node.store.state().lists_left = Some(listed);
        let reply = node.call("DEL", "c4", json!([net(9)]), json!({}));
        assert_eq!(reply.exit, exit, "{}", reply.stdout);
        let lists = node.store.requests().iter().filter(|it| *it == "list").count();
        assert_eq!(lists, usize::try_from(listed).unwrap() + usize::from(exit), "{listed}");
        if listed == 2 {
            // The network has a memory again.
            node.store.state().lists_left = None;
            node.add("c5", net(1)).unwrap();
        }
    }
    assert_eq!(node.recorded().len(), 4);
    assert!(node.files("c4:").is_empty());
}

#[test]
fn the_undo_of_an_add_that_has_sent_no_claim_asks_for_nothing() {
    let node = Node::new(Kind::default());
    assert_eq!(node.call("UNDO", "c1", json!([]), json!({})).exit, 0);
    assert_eq!(node.store.requests(), [""; 0]);
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
