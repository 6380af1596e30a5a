//! Claims on a server that may make two records of one address, and answers that are lost.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use common::node::{Node, named, pool};
use common::{Between, Kind, Lost, Unwritten};
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
    assert_eq!(of(&node, "ipd:n1/lan/c2/").len(), 1);
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
    let record = of(&node, "ipd:n1/lan/c1/")[0].clone();
    let twin = AddressRecord { id: "twin".into(), text: "another program".into(), ..record };
    node.store.state().revive(twin);
    assert_eq!(node.add("c1", pool()).unwrap(), address);
}

#[test]
fn of_two_records_of_an_owner_at_one_address_one_stays() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", pool()).unwrap();
    let record = of(&node, "ipd:n1/lan/c1/")[0].clone();
    node.store.state().revive(AddressRecord { id: "twin".into(), ..record });
    node.lose_memory();
    node.store.requests();
    assert_eq!(node.add("c1", pool()).unwrap(), address);
    assert_eq!(node.store.requests().iter().filter(|it| *it == "delete").count(), 1);
}

#[test]
fn a_release_goes_on_if_its_record_changes_meanwhile() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", named()).unwrap();
    node.store.state().unwritten.push_back(Unwritten::Changed);
    node.del("c1");
    // It is kept for its name alone.
    assert_eq!(node.add("c2", named()).unwrap(), address);
}

#[test]
fn a_record_with_a_name_that_a_person_edits_after_the_view_of_a_del_is_released() {
    let node = Node::new(Kind::default());
    let address = node.add("c1", named()).unwrap();
    let old = of(&node, "ipd:")[0].clone();
    // The view of the DEL has read the record.
    let store = node.store.clone();
    node.store.state().after_read.push_back(Box::new(move |_| {
        store.state().write_late(&old.id, &old.text);
    }));
    node.del("c1");
    assert_eq!(of(&node, "ipd:n1/lan/c1/"), []);
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
fn an_address_that_is_taken_over_while_its_record_is_written_has_one_owner() {
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
    let takeover = json!({"takeover": true});
    let node = Node::new(Kind { revives: true, ..Kind::default() });
    let other = node.other();
    node.add("c1", pool()).unwrap();
    let old = node.store.state().records["lan|10.1.2.0/29|"][0].clone();
    // The write ends long after the takeover: its owner sees it.
    let (by, wanted, more) = (other.clone(), wish.clone(), takeover.clone());
    let call: Between =
        Box::new(move |_| assert_eq!(by.add_with("c2", wanted, more).unwrap(), "10.1.2.2/29"));
    node.store.state().between_write.push_back(call);
    let (code, message) = node.add("c1", pool()).unwrap_err();
    assert!(code == 11 && message.contains("another record has this address"), "{message}");
    assert_eq!(node.add("c1", pool()).unwrap(), "10.1.2.3/29");
    assert_eq!(node.recorded(), ["10.1.2.2", "10.1.2.3"]);
    node.del("c1");
    other.del("c2");
    // It ends soon after the list of the takeover: the new owner sees it, and takes it over again.
    node.store.state().records.get_mut("lan|10.1.2.0/29|").unwrap().push(old.clone());
    let store = node.store.clone();
    node.between(move |_| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            store.state().revive(old);
        });
    });
    assert_eq!(other.add_with("c2", wish, takeover).unwrap(), "10.1.2.2/29");
    assert_eq!(node.recorded(), ["10.1.2.2"]);
}

#[test]
fn an_owner_without_time_to_look_twice_keeps_its_record() {
    let mut node = Node::new(Kind { revives: true, ..Kind::default() });
    node.add("c1", pool()).unwrap();
    node.time = Duration::from_secs(3);
    let store = node.store.clone();
    // Another claim is made during the write, and will be withdrawn.
    node.store.state().between_write.push_back(Box::new(move |address| {
        store.state().late("lan|10.1.2.0/29|", address, "another program");
        thread::sleep(Duration::from_millis(300));
    }));
    let (code, message) = node.add("c1", pool()).unwrap_err();
    assert!(code == 11 && message.contains("another record has this address"), "{message}");
    assert_eq!(of(&node, "ipd:n1/lan/c1/").len(), 1);
}

#[test]
fn a_takeover_waits_for_a_call_of_the_holder_at_another_site() {
    let node = Node::new(Kind::default());
    node.add_with("c1", pool(), json!({"alias": "old"})).unwrap();
    let note = std::fs::File::open(&node.files("c1:")[0]).unwrap();
    note.lock().unwrap();
    let (code, message) = take_over(&node, "c2").unwrap_err();
    assert!(code == 11 && message.contains("another call of c1/eth0"), "{code} {message}");
    assert_eq!(of(&node, "ipd:n1/lan/c1/").len(), 1);
    note.unlock().unwrap();
    assert_eq!(take_over(&node, "c2").unwrap(), "10.1.2.2/29");
}

#[test]
fn a_record_that_a_killed_call_makes_again_after_a_takeover_is_not_given_again() {
    let node = Node::new(Kind { revives: true, ..Kind::default() });
    node.add("c1", pool()).unwrap();
    let old = node.store.state().records["lan|10.1.2.0/29|"][0].clone();
    let note = node.files("c1:")[0].clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = note.clone();
    let call: Between = Box::new(move |_| sender.send(std::fs::read(path).unwrap()).unwrap());
    node.store.state().between_write.push_back(call);
    node.add("c1", pool()).unwrap();
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
    node.other().add_with("c2", wish, json!({"takeover": true})).unwrap();
    // The call is killed during its write, and the server carries it out after the takeover.
    std::fs::write(&note, receiver.recv().unwrap()).unwrap();
    node.store.state().revive(old);
    assert_eq!(node.add("c1", pool()).unwrap(), "10.1.2.3/29");
    assert_eq!(node.recorded(), ["10.1.2.2", "10.1.2.3"]);
}

fn kill() -> Between {
    Box::new(|_| panic!("killed"))
}

/// The records whose text begins so.
fn of(node: &Node, start: &str) -> Vec<AddressRecord> {
    let state = node.store.state();
    let records = state.records.values().flatten();
    records.filter(|record| record.text.starts_with(start)).cloned().collect()
}

/// A takeover of the first address.
fn take_over(node: &Node, container: &str) -> Result<String, (u64, String)> {
    let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
    node.add_with(container, wish, json!({"takeover": true}))
}

/// Makes a record again after a while, as a write does that was under way when it was deleted.
fn revive_later(node: &Node, old: AddressRecord) {
    let store = node.store.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        store.state().revive(old);
    });
}

#[test]
fn a_takeover_that_was_killed_is_watched_by_the_next_call() {
    for kept in [false, true] {
        let node = Node::new(Kind { revives: true, ..Kind::default() });
        node.add("c1", pool()).unwrap();
        let old = of(&node, "ipd:n1/lan/c1/")[0].clone();
        let other = node.other();
        // The call is killed before its record is made, or after that.
        let (store, last) = (node.store.clone(), old.clone());
        node.between(move |address| {
            if kept {
                store.state().late(
                    "lan|10.1.2.0/29|",
                    address,
                    &last.text.replace("n1/lan/c1", "n2/lan/c2"),
                );
            } else {
                store.state().late("lan|10.1.2.0/29|", [10, 1, 2, 5].into(), "another program");
            }
            panic!("killed");
        });
        let wish = json!({"ranges": [{"subnet": "10.1.2.0/29"}], "requested-ip": "10.1.2.2"});
        let call = || other.call("ADD", "c2", json!([wish]), json!({"takeover": true}));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(of(&node, "ipd:n2/lan/c2/").len(), usize::from(kept));
        revive_later(&node, old);
        assert_eq!(take_over(&other, "c2").unwrap(), "10.1.2.2/29");
        thread::sleep(Duration::from_millis(150));
        assert_eq!(of(&node, "ipd:n1/lan/c1/"), []);
        assert_eq!(of(&node, "ipd:n2/lan/c2/").len(), 1);
        // Nothing is left to wait for.
        other.store.requests();
        take_over(&other, "c2").unwrap();
        assert_eq!(other.store.requests(), ["list", "write"]);
    }
}

#[test]
fn two_addresses_of_another_owner_are_taken_over_in_one_add() {
    let node = Node::new(Kind { revives: true, ..Kind::default() });
    let wishes = ["10.1.2", "10.1.3"].map(|net| {
        json!({"ranges": [{"subnet": format!("{net}.0/29")}], "requested-ip": format!("{net}.2")})
    });
    assert_eq!(node.call("ADD", "c1", json!(wishes), json!({})).exit, 0);
    let other = node.other();
    let reply = other.call("ADD", "c2", json!(wishes), json!({"takeover": true}));
    assert_eq!(reply.exit, 0, "{}", reply.stdout);
    assert_eq!(of(&node, "ipd:n2/lan/c2/").len(), 2);
    assert_eq!(node.recorded(), ["10.1.2.2", "10.1.3.2"]);
}

#[test]
fn an_owner_whose_write_made_its_record_again_sees_a_third_owner_at_its_address() {
    let node = Node::new(Kind { revives: true, ..Kind::default() });
    node.add("c1", pool()).unwrap();
    let other = node.other();
    let call: Between = Box::new(move |_| {
        // A takeover is killed after its deletion, and a third owner lists the subnet after that.
        other.between(|_| panic!("killed"));
        let killed = std::panic::AssertUnwindSafe(|| take_over(&other, "c2"));
        std::panic::catch_unwind(killed).unwrap_err();
        assert_eq!(other.add("c3", pool()).unwrap(), "10.1.2.2/29");
        thread::sleep(Duration::from_millis(250));
    });
    node.store.state().between_write.push_back(call);
    let (code, message) = node.add("c1", pool()).unwrap_err();
    assert!(code == 11 && message.contains("another record has this address"), "{message}");
    assert_eq!(node.recorded(), ["10.1.2.2"]);
}

#[test]
fn a_release_that_is_carried_out_after_the_next_add_does_not_free_its_address() {
    // The DELETE of a DEL.
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let old = of(&node, "ipd:n1/lan/c1/")[0].clone();
    node.store.state().between_delete.push_back(kill());
    node.killed("DEL", "c1", pool());
    node.add("c1", pool()).unwrap();
    node.store.state().delete(&old.id);
    assert_eq!(of(&node, "ipd:n1/lan/c1/").len(), 1);
    // An answered one leaves nothing to wait for.
    let address = node.add("c1", pool()).unwrap();
    node.store.requests();
    assert_eq!(node.add("c1", pool()).unwrap(), address);
    assert_eq!(node.store.requests(), ["read", "write"]);
    // The write that keeps the address for its name.
    let node = Node::new(Kind::default());
    let address = node.add("c1", named()).unwrap();
    let old = of(&node, "ipd:")[0].clone();
    node.store.state().between_write.push_back(kill());
    node.killed("DEL", "c1", named());
    assert_eq!(node.add("c1", named()).unwrap(), address);
    let hold = of(&node, "ipd:")[0].clone();
    node.store.state().write_late(&old.id, "ipd:kept");
    assert_eq!(of(&node, "ipd:"), [hold]);
}

#[test]
fn a_withdrawal_that_is_carried_out_after_the_next_add_does_not_free_its_address() {
    let node = Node::new(Kind::default());
    let store = node.store.clone();
    node.between(move |address| {
        store.state().late("lan|10.1.2.0/29|", address, "another program");
    });
    node.store.state().between_delete.push_back(kill());
    node.killed("ADD", "c1", pool());
    let old = of(&node, "ipd:n1/lan/c1/")[0].clone();
    let other = of(&node, "another program")[0].clone();
    node.store.state().delete(&other.id);
    node.add("c1", pool()).unwrap();
    node.store.state().delete(&old.id);
    assert_eq!(of(&node, "ipd:n1/lan/c1/").len(), 1);
}

#[test]
fn a_write_that_is_carried_out_after_a_del_leaves_no_owner_behind() {
    let node = Node::new(Kind::default());
    node.add("c1", named()).unwrap();
    let old = of(&node, "ipd:")[0].clone();
    node.store.state().between_write.push_back(kill());
    node.killed("ADD", "c1", named());
    node.del("c1");
    node.store.state().write_late(&old.id, &old.text);
    assert_eq!(of(&node, &old.text), []);
}

#[test]
fn a_record_of_the_owner_that_changes_before_its_deletion_is_deleted_all_the_same() {
    // A record that a killed call left at the address of another owner.
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let record = node.store.state().records.values().flatten().next().unwrap().clone();
    let twin =
        AddressRecord { id: "twin".into(), text: record.text.replace("/c1/", "/c2/"), ..record };
    node.store.state().records.values_mut().next().unwrap().push(twin);
    node.lose_memory();
    node.store.state().edited = 2;
    node.add("c1", pool()).unwrap();
    assert_eq!(node.recorded().len(), 2);
    // A record that an attempt without an answer makes beside the claim.
    let node = Node::new(Kind::default());
    let store = node.store.clone();
    node.between(move |_| {
        store.state().late("lan|10.1.2.0/29|", [10, 1, 2, 5].into(), "ipd:n1/lan/c1/eth0");
    });
    node.store.state().edited = 1;
    node.add("c1", pool()).unwrap();
    assert_eq!(node.recorded(), ["10.1.2.2"]);
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
