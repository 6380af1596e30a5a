//! Claims on a server that may make two records of one address, and answers that are lost.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use common::node::{Node, named, pool};
use common::{Kind, Lost, Unwritten};
use ipam_records::server::AddressRecord;
use serde_json::{Value, json};

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

/// A kind of server that chooses addresses.
fn choosing() -> Kind {
    Kind { is_atomic: true, says_atomic: true, chooses: true, ..Kind::default() }
}

/// A pool that the server knows.
fn chosen() -> Value {
    json!({"name": "lan"})
}

#[test]
fn a_claim_without_candidates_looks_at_the_nodes_own_records_or_at_nothing() {
    for (kind, requests) in [
        (choosing(), &["list", "create"][..]),
        (Kind { owns_once: true, ..choosing() }, &["create"]),
    ] {
        let node = Node::new(kind);
        node.add("c1", chosen()).unwrap();
        assert_eq!(node.store.requests(), ["subnets", "list", "create"]);
        node.add("c2", chosen()).unwrap();
        assert_eq!(node.store.requests(), ["list", "create"]);
        assert_eq!(node.add("c3", chosen()).unwrap(), "10.1.2.4/28");
        assert_eq!(node.store.requests(), requests);
        assert_eq!(node.add("c3", chosen()).unwrap(), "10.1.2.4/28");
        assert_eq!(node.store.requests(), ["read", "write"]);
        // The owner is found without its note.
        for note in node.files("c3:") {
            std::fs::remove_file(note).unwrap();
        }
        assert_eq!(node.add("c3", chosen()).unwrap(), "10.1.2.4/28");
        assert_eq!(node.recorded().len(), 3);
    }
}

#[test]
fn a_node_that_claims_all_the_time_looks_once_a_minute() {
    let node = Node::new(Kind { owns_once: true, ..choosing() });
    node.add("c1", chosen()).unwrap();
    node.add("c2", chosen()).unwrap();
    for (container, requests) in [("c3", &["create"][..]), ("c4", &["list", "create"])] {
        node.age_sights(Duration::from_secs(35));
        node.store.requests();
        node.add(container, chosen()).unwrap();
        assert_eq!(node.store.requests(), requests);
    }
}

#[test]
fn an_owner_whose_record_does_not_serve_gets_another_address() {
    let node = Node::new(Kind { owns_once: true, ..choosing() });
    node.add("c1", chosen()).unwrap();
    // A person has moved the record to the address of the gateway.
    node.store.state().records.values_mut().flatten().next().unwrap().address =
        [10, 1, 2, 1].into();
    let address = node.add("c1", chosen()).unwrap();
    assert_eq!((address.as_str(), node.recorded()), ("10.1.2.2/28", vec!["10.1.2.2".to_owned()]));
}

#[test]
fn an_owner_whose_records_text_a_person_edited_gets_another_address() {
    let node = Node::new(Kind { owns_once: true, omits_ids: true, ..choosing() });
    node.add("c1", chosen()).unwrap();
    // The key that the server compares is the owner's, and the text that the list shows is not.
    node.store.state().keys.insert("ipd:n1/lan/c2/eth0".to_owned());
    assert_eq!(node.add("c2", chosen()).unwrap(), "10.1.2.3/28");
    assert_eq!(node.records_of("ipd:n1/lan/c2/").len(), 1);
}

#[test]
fn two_pools_of_one_subnet_where_the_store_chooses_overlap() {
    let node = Node::new(Kind { owns_once: true, ..choosing() });
    let reply = node.call("ADD", "c1", json!([chosen(), chosen()]), json!({}));
    assert!(reply.stdout.contains("\"code\":7") && reply.stdout.contains("overlaps"));
}

#[test]
fn a_node_whose_latest_address_another_one_took_looks_at_the_whole_subnet() {
    let node = Node::new(choosing());
    node.add("c1", chosen()).unwrap();
    let wish = json!({"name": "lan", "requested-ip": "10.1.2.2"});
    node.other().add_with("c2", wish, json!({"takeover": true})).unwrap();
    node.store.requests();
    node.add("c3", chosen()).unwrap();
    assert_eq!(node.store.requests(), ["list", "list", "create"]);
}

#[test]
fn a_store_that_chooses_is_refused_after_a_restore() {
    let node = Node::new(choosing());
    node.add("c1", chosen()).unwrap();
    let backup = node.store.state().records.clone();
    node.add("c2", chosen()).unwrap();
    node.store.state().records = backup;
    let (code, message) = node.add("c3", chosen()).unwrap_err();
    assert!(code == 11 && message.contains("was restored from a backup"), "{code} {message}");
}

#[test]
fn addresses_that_were_kept_too_long_make_room_where_the_store_chooses() {
    let node = Node::new(choosing());
    for number in 0..13 {
        let container = format!("c{number}");
        let named = json!({"name": "lan", "sticky": format!("name-{number}"), "keep": "1h"});
        node.add(&container, named).unwrap();
        node.del(&container);
    }
    assert_eq!(node.add("late", chosen()).unwrap_err().0, 100);
    node.store.age(Duration::from_secs(2 * 3600));
    node.add("late", chosen()).unwrap();
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
fn a_confirmed_record_stays_while_another_call_tries_its_address() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", pool()).unwrap();
    let record = node.store.state().records.values().flatten().next().unwrap().clone();
    let twin =
        AddressRecord { id: "twin".into(), text: record.text.replace("/c1/", "/c2/"), ..record };
    node.store.state().records.values_mut().next().unwrap().push(twin);
    assert_eq!(node.add("c1", pool()).unwrap(), address);
}

#[test]
fn an_answered_write_leaves_a_confirmed_record_confirmed() {
    let node = Node::new(Kind { revives: true, ..Kind::default() });
    // The note is unsure: a claim was not answered.
    node.store.state().lost.push_back(Lost::Never);
    let address = node.add("c1", pool()).unwrap();
    assert_eq!(node.add("c1", pool()).unwrap(), address);
    let record = node.records_of("ipd:n1/lan/c1/")[0].clone();
    let twin = AddressRecord { id: "twin".into(), text: "another program".into(), ..record };
    node.store.state().revive(twin);
    assert_eq!(node.add("c1", pool()).unwrap(), address);
}

#[test]
fn of_two_records_of_an_owner_at_one_address_one_stays() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", pool()).unwrap();
    let record = node.records_of("ipd:n1/lan/c1/")[0].clone();
    node.store.state().revive(AddressRecord { id: "twin".into(), ..record });
    node.lose_memory();
    node.store.requests();
    assert_eq!(node.add("c1", pool()).unwrap(), address);
    assert_eq!(node.store.requests().iter().filter(|it| *it == "delete").count(), 1);
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
    // Also if a person edits the record of the claim.
    for edited in [0, 1] {
        let node = Node::new(Kind::default());
        let other = json!({"ranges": [{"subnet": "10.1.3.0/29"}]});
        let address = node.add("c1", pool()).unwrap();
        node.store.state().unwritten.push_back(Unwritten::Refused);
        node.store.state().edited = edited;
        let reply = node.call("ADD", "c1", json!([pool(), other]), json!({}));
        assert_ne!(reply.exit, 0);
        assert!(node.recorded().len() == 1 && address.starts_with(&node.recorded()[0]));
    }
}

#[test]
fn addresses_that_a_related_subnet_has_end_an_add_soon() {
    let node = Node::new(Kind::default());
    node.store.state().related = (0..=u8::MAX).collect();
    for (pool, expected) in [
        (json!({"ranges": [{"subnet": "10.1.2.0/24"}], "requested-ip": "10.1.2.9"}), 102),
        (json!({"ranges": [{"subnet": "10.1.2.0/24"}]}), 11),
        (pool(), 11),
    ] {
        let (code, message) = node.add("c1", pool).unwrap_err();
        let says_why = message.contains("a related subnet has one");
        assert!(code == expected && says_why, "{message}");
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
fn a_pool_whose_last_address_a_related_subnet_has_is_not_full() {
    let node = Node::new(Kind::default());
    node.store.state().related.insert(6);
    (1..5).for_each(|n| drop(node.add(&format!("c{n}"), pool()).unwrap()));
    let (code, message) = node.add("c5", pool()).unwrap_err();
    assert!(code == 11 && message.contains("refuses 10.1.2.6 as used"), "{code} {message}");
    // The other claim of it was withdrawn meanwhile.
    let store = node.store.clone();
    node.store.state().after_list.push_back(Box::new(|_| ()));
    node.store.state().after_list.push_back(Box::new(move |_| store.state().related.clear()));
    assert_eq!(node.add("c5", pool()).unwrap(), "10.1.2.6/29");
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
fn a_container_id_that_does_not_fit_is_error_4_and_takes_nothing() {
    let node = Node::new(Kind::default());
    let (code, message) = node.add(&"z".repeat(90), pool()).unwrap_err();
    assert_eq!(code, 4, "{message}");
    assert_eq!(node.recorded(), [""; 0]);
}
