//! Releases, and requests that the server carries out after their call has ended.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::node::{Node, named, pool};
use common::{Between, Kind, Unwritten};
use ipam_records::server::AddressRecord;

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
    let old = node.records_of("ipd:")[0].clone();
    // The view of the DEL has read the record.
    let store = node.store.clone();
    node.store.state().after_read.push_back(Box::new(move |_| {
        store.state().write_late(&old.id, &old.text);
    }));
    node.del("c1");
    assert_eq!(node.records_of("ipd:n1/lan/c1/"), []);
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
fn a_release_that_is_carried_out_after_the_next_add_does_not_free_its_address() {
    // The DELETE of a DEL.
    let node = Node::new(Kind::default());
    node.add("c1", pool()).unwrap();
    let old = node.records_of("ipd:n1/lan/c1/")[0].clone();
    node.store.state().between_delete.push_back(kill());
    node.killed("DEL", "c1", pool());
    node.add("c1", pool()).unwrap();
    node.store.state().delete(&old.id);
    assert_eq!(node.records_of("ipd:n1/lan/c1/").len(), 1);
    // An answered one leaves nothing to wait for.
    let address = node.add("c1", pool()).unwrap();
    node.store.requests();
    assert_eq!(node.add("c1", pool()).unwrap(), address);
    assert_eq!(node.store.requests(), ["read", "write"]);
    // The write that keeps the address for its name.
    let node = Node::new(Kind::default());
    let address = node.add("c1", named()).unwrap();
    let old = node.records_of("ipd:")[0].clone();
    node.store.state().between_write.push_back(kill());
    node.killed("DEL", "c1", named());
    assert_eq!(node.add("c1", named()).unwrap(), address);
    let hold = node.records_of("ipd:")[0].clone();
    node.store.state().write_late(&old.id, "ipd:kept");
    assert_eq!(node.records_of("ipd:"), [hold]);
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
    let old = node.records_of("ipd:n1/lan/c1/")[0].clone();
    let other = node.records_of("another program")[0].clone();
    node.store.state().delete(&other.id);
    node.add("c1", pool()).unwrap();
    node.store.state().delete(&old.id);
    assert_eq!(node.records_of("ipd:n1/lan/c1/").len(), 1);
}

#[test]
fn a_write_that_is_carried_out_after_a_del_leaves_no_owner_behind() {
    let node = Node::new(Kind::default());
    node.add("c1", named()).unwrap();
    let old = node.records_of("ipd:")[0].clone();
    node.store.state().between_write.push_back(kill());
    node.killed("ADD", "c1", named());
    node.del("c1");
    node.store.state().write_late(&old.id, &old.text);
    assert_eq!(node.records_of(&old.text), []);
}

#[test]
fn of_two_addresses_that_are_kept_for_a_name_the_last_one_stays() {
    let node = Node::new(Kind { revives: true, ..Kind::default() });
    node.add("c0", pool()).unwrap();
    assert_eq!(node.add("c1", named()).unwrap(), "10.1.2.3/29");
    let held = node.records_of("ipd:n1/lan@")[0].clone();
    // The write that keeps the address has no answer, so the record is deleted.
    node.store.state().unwritten.push_back(Unwritten::Unknown);
    node.del("c1");
    assert_eq!(node.records_of("ipd:n1/lan@"), []);
    node.del("c0");
    assert_eq!(node.add("c2", named()).unwrap(), "10.1.2.2/29");
    // The server carries the write out.
    let kept = held.text.replace("/c1/eth0", "//");
    node.store.state().late("lan|10.1.2.0/29|", held.address, &kept);
    node.del("c2");
    assert_eq!(node.recorded(), ["10.1.2.2", "10.1.2.3"]);
    assert_eq!(node.add("c3", named()).unwrap(), "10.1.2.2/29");
    assert_eq!(node.recorded(), ["10.1.2.2"]);
}

#[test]
fn an_address_stays_kept_for_its_name_if_another_one_is_requested() {
    let node = Node::new(Kind::default());
    node.add("c1", named()).unwrap();
    node.del("c1");
    let mut pool = named();
    pool["requested-ip"] = "10.1.2.5".into();
    assert_eq!(node.add("c2", pool).unwrap(), "10.1.2.5/29");
    assert_eq!(node.recorded(), ["10.1.2.2", "10.1.2.5"]);
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

fn kill() -> Between {
    Box::new(|_| panic!("killed"))
}
