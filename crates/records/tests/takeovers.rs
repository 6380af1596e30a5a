//! Takeovers, and replaced records that a late request makes again.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::thread;
use std::time::Duration;

use common::node::{Node, named, pool};
use common::{Between, Kind, Lost};
use ipam_records::server::AddressRecord;
use serde_json::json;

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
    assert_eq!(node.records_of("ipd:n1/lan/c1/").len(), 1);
}

#[test]
fn a_takeover_waits_for_a_call_of_the_holder_at_another_site() {
    let node = Node::new(Kind::default());
    node.add_with("c1", pool(), json!({"alias": "old"})).unwrap();
    let note = std::fs::File::open(&node.files("c1:")[0]).unwrap();
    note.lock().unwrap();
    let (code, message) = take_over(&node, "c2").unwrap_err();
    assert!(code == 11 && message.contains("another call of c1/eth0"), "{code} {message}");
    assert_eq!(node.records_of("ipd:n1/lan/c1/").len(), 1);
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

#[test]
fn a_takeover_that_was_killed_is_watched_by_the_next_call() {
    for kept in [false, true] {
        let node = Node::new(Kind { revives: true, ..Kind::default() });
        node.add("c1", pool()).unwrap();
        let old = node.records_of("ipd:n1/lan/c1/")[0].clone();
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
        assert_eq!(node.records_of("ipd:n2/lan/c2/").len(), usize::from(kept));
        revive_later(&node, old);
        assert_eq!(take_over(&other, "c2").unwrap(), "10.1.2.2/29");
        thread::sleep(Duration::from_millis(150));
        assert_eq!(node.records_of("ipd:n1/lan/c1/"), []);
        assert_eq!(node.records_of("ipd:n2/lan/c2/").len(), 1);
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
    assert_eq!(node.records_of("ipd:n2/lan/c2/").len(), 2);
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

/// A takeover of a name that is killed after it has deleted the holder's record.
fn killed_takeover(node: &Node, container: &str) {
    node.between(|_| panic!("killed"));
    let call = || node.add_with(container, named(), json!({"takeover": true}));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
}

#[test]
fn a_name_whose_holders_write_ends_after_a_killed_takeover_has_one_owner() {
    for last in [2, 5] {
        let node = Node::new(Kind { revives: true, ..Kind::default() });
        node.add("c1", named()).unwrap();
        let old = node.records_of("ipd:")[0].clone();
        let other = node.other();
        killed_takeover(&other, "c2");
        assert_eq!(node.recorded(), [""; 0]);
        revive_later(&node, old.clone());
        // A third owner claims the name, at the address of the record that comes back or at another one.
        let mut pool = named();
        pool["requested-ip"] = format!("10.1.2.{last}").into();
        let (code, message) = other.add("c3", pool).unwrap_err();
        thread::sleep(Duration::from_millis(150));
        assert!(code == 11 || last == 2 && code == 102, "{code} {message}");
        assert_eq!(node.records_of(""), [old], "{message}");
    }
}

#[test]
fn a_killed_claim_does_not_lose_the_address_of_its_name() {
    for is_kept in [false, true] {
        let node = Node::new(Kind::default());
        node.add("c0", pool()).unwrap();
        assert_eq!(node.add("c1", named()).unwrap(), "10.1.2.3/29");
        // Another address would be the first one.
        node.del("c0");
        if is_kept {
            node.del("c1");
        }
        killed_takeover(&node, "c2");
        assert_eq!(node.recorded(), [""; 0]);
        assert_eq!(node.add("c3", named()).unwrap(), "10.1.2.3/29", "{is_kept}");
    }
}

#[test]
fn a_failed_claim_does_not_lose_the_address_of_its_name() {
    for is_met in [false, true] {
        let node = Node::new(Kind::default());
        node.add("c0", pool()).unwrap();
        assert_eq!(node.add("c1", named()).unwrap(), "10.1.2.3/29");
        // Another address would be the first one.
        node.del("c0");
        node.del("c1");
        let store = node.store.clone();
        if is_met {
            // The claim of the other pool meets another program, and both claims are withdrawn.
            node.between(move |address| {
                let (id, text) = ("other".to_owned(), "another program".to_owned());
                let record =
                    AddressRecord { id, address, text, stamp: String::new(), written: None };
                store
                    .state()
                    .records
                    .entry("lan|10.1.3.0/29|".to_owned())
                    .or_default()
                    .push(record);
            });
        } else {
            store.state().lost.push_back(Lost::Never);
        }
        let other = json!({"ranges": [{"subnet": "10.1.3.0/29"}]});
        let reply = node.call("ADD", "c2", json!([named(), other]), json!({}));
        assert_eq!(reply.exit, 0, "{}", reply.stdout);
        let recorded = node.records_of("ipd:n1/lan").into_iter();
        let recorded: Vec<String> = recorded.map(|it| it.address.to_string()).collect();
        assert!(recorded.contains(&"10.1.2.3".to_owned()), "{is_met} {recorded:?}");
        assert_eq!(recorded.len(), 2);
    }
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
