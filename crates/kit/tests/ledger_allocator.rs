//! The allocator over any ledger, on a ledger in memory: what it asks, keeps and tells.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipam_kit::allocate::ledger::*;
use ipam_kit::allocate::search::Search;
use ipam_kit::allocate::{Allocate, Owner, Reach, Strategy};
use ipam_kit::cni::{Environment, NetworkName};
use ipam_kit::delegate::{Deadline, Request, answer};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;
use ipam_kit::pool::{RangeRules, RangeSet};
use ipam_suites::memory::{
    LostAnswer, MemoryConfig, MemoryLedger, MemoryStore, MemoryToken, Shape, ShownPools,
};
use serde_json::{Value, json};

/// A store of its own, and calls of the allocator over it.
#[derive(Clone)]
struct Desk {
    name: String,
    store: MemoryStore,
}

impl Desk {
    fn new(shape: Shape) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let name = format!("allocator-{}", STORES.fetch_add(1, Ordering::Relaxed));
        Self { store: MemoryStore::named(&name).shaped(shape), name }
    }

    fn call(&self, verb: &str, container: &str, pools: Value, keys: Value) -> Value {
        self.call_with(verb, container, json!({"pools": pools}), keys)
    }

    fn call_with(&self, verb: &str, container: &str, before: Value, keys: Value) -> Value {
        let time = if keys.get("late").is_some() { "0" } else { "10000" };
        let environment = Environment::new([
            (Deadline::VARIABLE, time),
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/x"),
        ]);
        let mut ipam = json!({"node": "node-1", "memory": self.name});
        ipam.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let config = json!({
            "cniVersion": "1.1.0", "name": "n", "ipam": ipam, "prevResult": before,
        });
        let delegate: Allocate<MemoryLedger> = Allocate::default();
        let stdin = config.to_string();
        let reply = answer(&delegate, environment, stdin.as_bytes(), Settings::default());
        serde_json::from_str(&reply.stdout).unwrap_or_default()
    }

    fn add(&self, container: &str, pools: Value) -> Value {
        self.call("ADD", container, pools, json!({}))
    }

    fn del(&self, container: &str) {
        assert_eq!(self.call("DEL", container, json!([]), json!({})), Value::Null);
    }

    fn ledger(&self) -> MemoryLedger {
        MemoryLedger::on(&self.store, NetworkName::parse("n").unwrap())
    }

    fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let scanned = self.ledger().scan(None, &mut |entry| {
            entries.push(entry);
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        entries
    }

    /// Who holds what, in the order of the addresses.
    fn held(&self) -> Vec<String> {
        let line = |entry: &Entry| {
            let holder = entry.holder.as_ref().unwrap();
            format!("{} {}", holder.container, entry.lease.address.addr())
        };
        self.entries().iter().map(line).collect()
    }
}

fn shapes() -> [Shape; 4] {
    let default = Shape::default();
    [
        default,
        Shape { guesses: true, tells: false, tries: 1, ..default },
        Shape { shows: ShownPools::All, ..default },
        Shape { locks: true, shows: ShownPools::Windows, ..default },
    ]
}

fn two() -> Value {
    json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}, {"ranges": [{"subnet": "10.0.1.0/24"}]}])
}

fn requesting(address: &str, takeover: bool) -> Value {
    json!([{"ranges": [{"subnet": "10.0.0.0/24"}], "requested-ip": address, "takeover": takeover}])
}

/// An ADD on a network that lets addresses be taken over.
fn add_taking(desk: &Desk, container: &str, pools: Value) -> Value {
    desk.call("ADD", container, pools, json!({"takeover": true}))
}

#[test]
fn an_outcome_that_is_not_told_is_found_out() {
    for shape in shapes() {
        for when in [LostAnswer::Never, LostAnswer::Done, LostAnswer::Late, LostAnswer::Later] {
            let desk = Desk::new(shape);
            desk.store.lose_answer(when);
            let added = desk.add("c1", two());
            assert_eq!(added["ips"][0]["address"], "10.0.0.2/24", "{shape:?} {when:?}: {added}");
            assert_eq!(desk.held(), ["c1 10.0.0.2", "c1 10.0.1.2"], "{shape:?} {when:?}");
            assert_eq!(added["unsure"], true);
            assert_eq!(desk.add("c1", two()).get("unsure"), None);
            desk.store.lose_answer(when);
            desk.del("c1");
            // A commit that is late still has to be met by the next call.
            desk.add("c2", two());
            desk.del("c2");
            assert_eq!(desk.held(), [""; 0], "{shape:?} {when:?}");
        }
    }
}

#[test]
fn what_the_store_chose_in_an_unknown_commit_counts_as_new() {
    for when in [LostAnswer::Never, LostAnswer::Done, LostAnswer::Late, LostAnswer::Later] {
        let desk = Desk::new(Shape { chooses: true, ..Shape::default() });
        let pool = json!([{"name": "blue"}]);
        desk.store.lose_answer(when);
        let added = desk.add("c1", pool.clone());
        assert_eq!(added["ips"][0]["address"], "10.1.2.14/28", "{when:?}: {added}");
        assert_eq!(added["leases"][0].get("kept"), None, "{when:?}: {added}");
        assert_eq!(desk.held(), ["c1 10.1.2.14"], "{when:?}");
        desk.del("c1");
        assert_eq!(desk.held(), [""; 0], "{when:?}");
    }
}

#[test]
fn the_store_chooses_only_where_nothing_else_says_which_address() {
    let desk = Desk::new(Shape { chooses: true, ..Shape::default() });
    let blue = json!([{"name": "blue"}]);
    let fixed = json!([{"address": "10.1.2.13/28"}]);
    for (number, (before, keys, addresses)) in [
        (json!({"pools": blue}), json!({}), vec!["10.1.2.14/28"]),
        (json!({"pools": blue}), json!({"strategy": "lowest"}), vec!["10.1.2.2/28"]),
        (
            json!({"pools": [{"name": "blue", "strategy": "lowest"}]}),
            json!({}),
            vec!["10.1.2.3/28"],
        ),
        (
            json!({"pools": [{"name": "blue", "requested-ip": "10.1.2.9"}]}),
            json!({}),
            vec!["10.1.2.9/28"],
        ),
        (
            json!({"pools": [{"ranges": [{"subnet": "10.1.2.0/28"}]}]}),
            json!({}),
            vec!["10.1.2.10/28"],
        ),
        // The store does not know static addresses.
        (json!({"pools": blue, "static": fixed}), json!({}), vec!["10.1.2.11/28", "10.1.2.13/28"]),
        (json!({"pools": blue}), json!({}), vec!["10.1.2.13/28"]),
    ]
    .into_iter()
    .enumerate()
    {
        let added = desk.call_with("ADD", &format!("c{number}"), before, keys);
        let given: Vec<&Value> =
            added["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]).collect();
        assert_eq!(given, addresses, "c{number}: {added}");
    }
}

#[test]
fn a_del_releases_the_rest_of_what_it_saw_when_a_part_is_gone() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", two());
    let one = desk.entries().remove(0);
    let mut ledger = desk.ledger();
    assert!(desk.store.interleave(move || assert_eq!(ledger.remove(&[one]).unwrap().len(), 1)));
    desk.del("c1");
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn of_two_leases_that_a_crash_left_in_a_pool_one_stays() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", two());
    let both = json!([{"ranges": [{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]}]);
    assert_eq!(desk.add("c1", both)["ips"].as_array().unwrap().len(), 1);
    assert_eq!(desk.held().len(), 1);
}

#[test]
fn nothing_is_tried_again_when_the_time_is_over() {
    let desk = Desk::new(Shape::default());
    desk.store.lose_answer(LostAnswer::Never);
    let added = desk.call("ADD", "c1", two(), json!({"late": true}));
    assert_eq!(added["code"], 111, "{added}");
    desk.add("c1", two());
    desk.store.lose_answer(LostAnswer::Never);
    let deleted = desk.call("DEL", "c1", json!([]), json!({"late": true}));
    assert_eq!(deleted["code"], 111, "{deleted}");
    assert_eq!(desk.held().len(), 2);
}

#[test]
fn whoever_loses_every_race_is_told_to_call_again() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", two());
    let _ = desk.store.clone().shaped(Shape { contended: true, ..Shape::default() });
    assert_eq!(desk.add("c2", two())["code"], 11);
    assert_eq!(desk.call("DEL", "c1", json!([]), json!({}))["code"], 11);
}

#[test]
fn a_free_address_behind_many_that_are_taken_is_found() {
    for shape in shapes().into_iter().chain([Shape { tries: 1, ..Shape::default() }]) {
        let desk = Desk::new(shape);
        let lan = json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]);
        for number in 0..200 {
            desk.add(&format!("c{number}"), lan.clone());
        }
        desk.del("c0");
        desk.del("c150");
        desk.add("c0", requesting("10.0.0.2", false));
        let added = desk.add("c200", lan);
        assert_eq!(added["ips"][0]["address"], "10.0.0.152/24", "{shape:?}: {added}");
    }
}

#[test]
fn takeover_replaces_the_holder() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", requesting("10.0.0.9", false));
    assert_eq!(desk.add("c2", requesting("10.0.0.9", false))["code"], 102);
    // A pool narrows what the network says, and widens nothing.
    assert_eq!(desk.add("c2", requesting("10.0.0.9", true))["code"], 102);
    assert_eq!(add_taking(&desk, "c2", requesting("10.0.0.9", false))["code"], 102);
    let taken = add_taking(&desk, "c2", requesting("10.0.0.9", true));
    assert_eq!(taken["ips"][0]["address"], "10.0.0.9/24");
    assert_eq!(desk.held(), ["c2 10.0.0.9"]);
    let whatever = json!([{"ranges": [{"subnet": "10.0.0.0/24"}], "requested-ip": "10.0.0.9"}]);
    assert_eq!(add_taking(&desk, "c3", whatever)["ips"][0]["address"], "10.0.0.9/24");
}

#[test]
fn a_call_that_claims_again_what_is_held_takes_nothing_over() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", requesting("10.0.0.9", false));
    let before = json!({"pools": requesting("10.0.0.9", true), "reassert": true});
    let refused = desk.call_with("ADD", "c2", before, json!({"takeover": true}));
    assert_eq!(refused["code"], 102, "{refused}");
    assert_eq!(desk.held(), ["c1 10.0.0.9"]);
}

#[test]
fn takeover_of_what_is_free_by_now_takes_it() {
    let desk = Desk::new(Shape { tells: false, ..Shape::default() });
    desk.add("c1", requesting("10.0.0.9", false));
    let other = desk.clone();
    // The first commit finds the holder; before the second, the holder is released.
    desk.store.interleave(|| ());
    desk.store.interleave(move || other.del("c1"));
    let added = add_taking(&desk, "c2", requesting("10.0.0.9", true));
    assert_eq!(added["ips"][0]["address"], "10.0.0.9/24", "{added}");
    assert_eq!(desk.held(), ["c2 10.0.0.9"]);
}

#[test]
fn a_name_that_the_ledger_cannot_keep_is_refused() {
    let desk = Desk::new(Shape { keeps_names: false, ..Shape::default() });
    let sticky = json!([{"name": "a", "ranges": [{"subnet": "10.0.0.0/24"}], "sticky": "web-0"}]);
    for verb in ["ADD", "STATUS"] {
        let refused = desk.call(verb, "c1", sticky.clone(), json!({}));
        assert_eq!(refused["code"], 7, "{refused}");
        assert_eq!(
            refused["msg"],
            "prevResult.pools[0].sticky: this allocator keeps no address for a name, such as \"web-0\""
        );
    }
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_delegate_that_is_shown_some_pools_keeps_those_of_others_only() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", two());
    let serves = |pools| desk.call("ADD", "c1", pools, json!({"serves": ["a"]}));
    assert_eq!(serves(requesting("10.0.0.7", false))["ips"][0]["address"], "10.0.0.7/24");
    assert_eq!(desk.held(), ["c1 10.0.0.7", "c1 10.0.1.2"]);
    desk.add("c1", requesting("10.0.0.7", false));
    assert_eq!(desk.held(), ["c1 10.0.0.7"]);
}

#[test]
fn a_full_pool_is_told_whatever_the_store_shows() {
    for shape in shapes() {
        let desk = Desk::new(shape);
        let tiny = json!([{"ranges": [{"subnet": "10.0.0.0/30"}]}]);
        assert_eq!(desk.add("c1", tiny.clone())["ips"][0]["address"], "10.0.0.2/30");
        assert_eq!(desk.add("c2", tiny)["code"], 100, "{shape:?}");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Odd {
    No,
    UnknownThenAway,
    Away,
    HolderGone,
    Nodeless,
}
thread_local! { static ODD: Cell<Odd> = const { Cell::new(Odd::No) }; }
struct OddLedger(MemoryLedger);
impl Ledger for OddLedger {
    type Config = MemoryConfig;
    type Token = MemoryToken;
    const REACH: Reach = Reach::Cluster;
    fn open(config: MemoryConfig, request: &Request) -> Result<Self> {
        MemoryLedger::open(config, request).map(Self)
    }
    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Self::Token>,
    ) -> Result<View<MemoryToken>> {
        if ODD.get() == Odd::Away {
            return Err(Error::new(ErrorCode::UNAVAILABLE, "no leader"));
        }
        self.0.view(query, earlier)
    }
    fn commit(
        &mut self,
        owner: &Owner,
        seen: MemoryToken,
        change: &Change<'_>,
    ) -> Result<Commit<MemoryToken>> {
        match ODD.get() {
            Odd::UnknownThenAway => {
                ODD.set(Odd::Away);
                self.0.commit(owner, seen, change)?;
                Ok(Commit::Unknown)
            }
            Odd::HolderGone => {
                ODD.set(Odd::No);
                let address = change.claim[0].candidates[0];
                Ok(Commit::Lost {
                    taken: vec![Taken { claim: 0, address, holder: None }],
                    view: None,
                })
            }
            _ => self.0.commit(owner, seen, change),
        }
    }
    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.0.remove(entries)
    }
    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        if ODD.get() != Odd::Nodeless {
            return self.0.scan(node, each);
        }
        self.0.scan(None, &mut |mut entry| {
            entry.holder.iter_mut().for_each(|holder| holder.node = None);
            each(entry)
        })
    }
    fn ready(&mut self) -> Result<()> {
        Ok(())
    }
}
fn odd(desk: &Desk, how: Odd, verb: &str, pools: Value) -> Value {
    ODD.set(how);
    let environment = Environment::new([
        (Deadline::VARIABLE, "10000"),
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/x"),
    ]);
    let config = json!({"cniVersion": "1.1.0", "name": "n", "cni.dev/valid-attachments": [],
        "ipam": {"node": "node-1", "memory": desk.name}, "prevResult": {"pools": pools}});
    let delegate: Allocate<OddLedger> = Allocate::default();
    let reply = answer(&delegate, environment, config.to_string().as_bytes(), Settings::default());
    ODD.set(Odd::No);
    serde_json::from_str(&reply.stdout).unwrap_or_default()
}

#[test]
fn an_error_after_an_unknown_outcome_leaves_it_open() {
    let desk = Desk::new(Shape::default());
    let added = odd(&desk, Odd::UnknownThenAway, "ADD", two());
    assert!(added["code"] == 11 || added["code"] == 111, "{added}, held {:?}", desk.held());
}

#[test]
fn gc_leaves_entries_without_a_node_in_a_shared_ledger() {
    let desk = Desk::new(Shape::default());
    desk.add("c1", two());
    desk.store.age(Duration::from_secs(3600));
    odd(&desk, Odd::Nodeless, "GC", json!([]));
    assert_eq!(desk.held().len(), 2);
}

#[test]
fn a_request_whose_holder_has_gone_is_tried_again() {
    let desk = Desk::new(Shape::default());
    let added = odd(&desk, Odd::HolderGone, "ADD", requesting("10.0.0.9", false));
    assert_eq!(added["ips"][0]["address"], "10.0.0.9/24", "{added}");
}

#[test]
fn what_was_held_before_a_wrong_guess_and_an_unknown_outcome_is_kept() {
    let desk = Desk::new(Shape { guesses: true, tells: false, ..Shape::default() });
    desk.add("c1", two());
    desk.store.lose_answer(LostAnswer::Never);
    assert_eq!(desk.add("c1", two())["leases"][0]["kept"], true);
}

#[test]
fn random_spreads_inside_a_window() {
    let ranges: Vec<_> = serde_json::from_value(json!([{"subnet": "10.0.0.0/16"}])).unwrap();
    let set = RangeSet::parse(&ranges, RangeRules::OURS, "r").unwrap();
    let (from, to) = ("10.0.7.0".parse().unwrap(), "10.0.7.255".parse().unwrap());
    let view =
        PoolView { used: Used::Windows(vec![(from, to)], BTreeSet::new()), ..PoolView::default() };
    let first = |random: u64| {
        let avoid = &BTreeSet::new();
        Search { set: &set, strategy: Strategy::Random, random, avoid }.candidates(&view, 1)[0]
    };
    let firsts: BTreeSet<IpAddr> = (0..200).map(first).collect();
    assert!(firsts.len() > 50, "{firsts:?}");
}
