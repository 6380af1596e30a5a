//! The messages that docs/contract.md shows are those that the types of the contract read and write.

#![allow(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;

use ipam_kit::allocate::Lease;
use ipam_kit::cni::{IpamResult, Version};
use ipam_kit::contract::{DelegateAnswer, DelegateInput, InputMembers, Purpose};
use ipam_kit::pool::Pool;

const PAGE: &str = include_str!("../docs/contract.md");

/// Every JSON block of the page.
fn messages() -> Vec<Value> {
    let blocks = PAGE.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| serde_json::from_str(block).unwrap()).collect()
}

/// The only message with a member.
fn message_with(member: &str) -> Value {
    let mut found = messages().into_iter().filter(|message| message.get(member).is_some());
    let message = found.next().unwrap_or_else(|| panic!("no message with {member}"));
    assert!(found.next().is_none(), "two messages with {member}");
    message
}

#[test]
fn rules_are_numbered_without_a_gap() {
    let rules = PAGE.split("- **C").skip(1);
    let numbers: Vec<usize> =
        rules.map(|rule| rule.split([' ', '*']).next().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
    assert!(numbers.len() >= 40);
}

#[test]
fn inputs_are_read_and_written_as_the_page_shows_them() {
    let between =
        Purpose::TakenBetween { after: 1_795_000_000_000, before: Some(1_795_000_005_000) };
    for (member, purpose) in [
        ("undo", Purpose::Undo),
        ("fence", between),
        ("reassert", Purpose::Reassert),
        ("present", Purpose::Runtime),
    ] {
        let message = message_with(member);
        let members = InputMembers::of(Some(&message));
        assert_eq!(members.purpose().unwrap(), purpose, "{member}");
        assert_eq!(members.present().is_some(), member == "present");
        let input = DelegateInput {
            pools: members.pools().unwrap().map(<[Value]>::to_vec),
            leases: members.leases().unwrap(),
            static_addresses: members.static_addresses().unwrap(),
            purpose,
            present: members.present().cloned(),
        };
        let mut written = IpamResult::parse(&message, "prevResult").unwrap();
        input.write_to(&mut written);
        let mut written = written.to_json(Version::V1_1_0).unwrap();
        written.as_object_mut().unwrap().remove("cniVersion");
        assert_eq!(written, message);
    }
}

#[test]
fn answers_are_read_and_written_as_the_page_shows_them() {
    for member in ["remembered", "unsure"] {
        let message = message_with(member);
        let mut result = IpamResult::parse(&message, "its answer").unwrap();
        let answer = DelegateAnswer::take_from(&mut result).unwrap();
        assert!(result.extra.is_empty(), "{:?}", result.extra);
        assert_eq!(answer.unsure, member == "unsure");
        answer.write_to(&mut result);
        assert_eq!(result.to_json(Version::V1_1_0).unwrap(), message);
    }
}

#[test]
fn pools_and_leases_are_those_of_our_allocators() {
    let pool = messages().into_iter().find(|message| message.get("requested-ip").is_some());
    let pool = pool.unwrap();
    assert_eq!(Pool::parse(&pool, "pool").unwrap().to_json(), pool);
    let lease = message_with("unsure")["leases"][0].clone();
    let read: Lease = serde_json::from_value(lease.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), lease);
}
