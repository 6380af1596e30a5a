//! How often a verb asks the server, counted before it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::consul::{Consul, Relay, Request};
use common::filling::{age, are_distinct, occupy, some, usable};
use common::store::{books, holdings};
use common::{Node, addresses, at_once, define, given};
use serde_json::{Value, json};

/// A node that talks to a server through a relay.
fn behind(relay: &Relay) -> Node {
    Node::at(&[format!("http://{}", relay.endpoint())])
}

/// Defines a pool with the folders that the ancestor wants, which are made once for all.
#[track_caller]
fn define_with_folders(consul: &Consul, pool: &str, subnet: &str) {
    define(consul, pool, subnet);
    consul.put("ipam/", "");
    consul.put(&format!("ipam/{pool}/"), "");
}

/// How many requests come while something is done.
fn requests(relay: &Relay, done: impl FnOnce()) -> usize {
    let lines = relay.during(done);
    let known =
        |line: &String| line.starts_with("PUT /v1/txn") || line.starts_with("GET /v1/kv/ipam/");
    assert!(lines.iter().all(known), "{lines:?}");
    lines.len()
}

/// What the verbs of an attachment cost.
#[derive(Debug, PartialEq)]
struct Costs {
    /// The first ADD of a node.
    cold: usize,
    add: usize,
    again: usize,
    check_known: usize,
    check: usize,
    status: usize,
    del_known: usize,
    /// Of an attachment that the caller knows nothing of.
    del: usize,
    /// GC of a node that holds one address, which stays.
    gc: usize,
}

fn costs(relay: &Relay, node: &Node) -> Costs {
    let mut result = Value::Null;
    let cold = requests(relay, || drop(node.add("first")));
    let add = requests(relay, || result = node.add("cost"));
    let again = requests(relay, || {
        let second = node.add("cost");
        assert_eq!(addresses(&second), addresses(&result));
        result = second;
    });
    let ips = json!({"ips": result["ips"]});
    let check_known = requests(relay, || drop(node.check("cost", &result).success()));
    let check = requests(relay, || drop(node.call_with("CHECK", "cost", &ips).success()));
    let status = requests(relay, || drop(node.call("STATUS", "").success()));
    let del_known = requests(relay, || drop(node.del_known("cost", &result).success()));
    node.add("cost");
    let del = requests(relay, || node.del("cost"));
    let gc = requests(relay, || drop(node.gc(&["first"]).success()));
    Costs { cold, add, again, check_known, check, status, del_known, del, gc }
}

const BEST: Costs = Costs {
    cold: 3,
    add: 1,
    again: 2,
    check_known: 1,
    check: 1,
    status: 1,
    del_known: 1,
    del: 2,
    gc: 1,
};

#[test]
fn verbs_take_as_few_requests_however_large_a_pool_is() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    for (number, subnet) in
        ["10.1.0.0/24", "10.2.0.0/16", "10.0.0.0/8", "fd00:1::/120", "fd00:2::/64"]
            .into_iter()
            .enumerate()
    {
        for strategy in ["lowest", "round-robin", "random"] {
            let pool = format!("{strategy}-{number}");
            define_with_folders(&consul, &pool, subnet);
            let node = behind(&relay).named(&pool).with_pools(&[&pool]);
            let node = node.with_in_pools("strategy", strategy);
            assert_eq!(costs(&relay, &node), BEST, "{subnet} {strategy}");
        }
    }
}

#[test]
fn several_pools_take_no_more_but_to_look_at_each_once() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let names = ["a", "b", "c", "d", "e", "f"];
    for (number, name) in names.iter().enumerate() {
        define_with_folders(&consul, name, &format!("10.{number}.0.0/16"));
    }
    for count in 1..=names.len() {
        let node = behind(&relay).with_pools(&names[..count]).named(&format!("node-{count}"));
        // Of an address that nobody remembers, the first four pools are guessed.
        let check = if count <= 4 { 1 } else { 2 };
        let best = Costs { cold: 2 + count, check, ..BEST };
        assert_eq!(costs(&relay, &node), best, "{count} pools");
    }
}

#[test]
fn making_the_folders_takes_one_request_more_once() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define(&consul, "blue", "10.1.0.0/16");
    let first = requests(&relay, || drop(behind(&relay).add("c1")));
    let second = requests(&relay, || drop(behind(&relay).named("node-2").add("c2")));
    assert_eq!((first, second), (4, 3));
    let folders: Vec<_> =
        consul.keys("ipam/").into_iter().filter(|key| key.ends_with('/')).collect();
    assert_eq!(folders, ["ipam/", "ipam/blue/"]);
}

#[test]
fn garbage_takes_two_requests_for_each_owner_and_two_for_all() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    let node = behind(&relay);
    (0..5).for_each(|number| drop(node.add(&format!("c{number}"))));
    age(&consul, Duration::from_secs(3600));
    let taken = requests(&relay, || drop(node.gc(&["c0"]).success()));
    assert_eq!(books(&consul).len(), 1);
    // The scan, the owners' keys, and one change each.
    assert_eq!(taken, 2 + 4);
}

#[test]
fn an_undo_that_undoes_nothing_asks_nobody_and_a_stale_record_costs_one_request_more() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    let node = behind(&relay);
    let result = node.add("c1");
    let mut kept = given(&result);
    kept["leases"][0]["kept"] = true.into();
    kept["undo"] = true.into();
    let undo = || drop(node.call_with("DEL", "c1", &kept).success());
    assert_eq!(requests(&relay, undo), 0);
    node.add("c1");
    // The record's change, a look, the change.
    let stale = requests(&relay, || drop(node.del_known("c1", &result).success()));
    assert_eq!((stale, holdings(&consul)), (3, vec![]));
}

/// Nodes that call at once, by so many workers.
struct Writers {
    nodes: Vec<Node>,
    workers: usize,
    made: AtomicUsize,
    /// Who holds something, and what the ADD answered.
    held: Mutex<Vec<(usize, String, Value)>>,
}

impl Writers {
    fn new(relay: &Relay, pool: &str, nodes: usize, workers: usize) -> Self {
        let node = |n| behind(relay).named(&format!("node-{n}")).with_pools(&[pool]);
        let nodes: Vec<Node> = (0..nodes).map(node).collect();
        let this = Self { nodes, workers, made: AtomicUsize::default(), held: Mutex::default() };
        // The first ADD of each node is a cold one.
        at_once(this.nodes.len(), |number| this.add(number));
        this
    }

    fn add(&self, node: usize) {
        let container = format!("c{}", self.made.fetch_add(1, Ordering::Relaxed));
        let result = self.nodes[node].add(&container);
        self.held.lock().unwrap().push((node, container, result));
    }

    /// The mean number of requests of an ADD, of so many by each worker.
    fn mean(&self, relay: &Relay, each: usize) -> f64 {
        let total = requests(relay, || {
            at_once(self.workers, |worker| {
                (0..each).for_each(|_| self.add(worker % self.nodes.len()));
            });
        });
        let held = self.held.lock().unwrap();
        assert!(are_distinct(held.iter().map(|(_, _, result)| addresses(result))), "{held:?}");
        total as f64 / (self.workers * each) as f64
    }

    fn release(&self) {
        for (node, container, result) in self.held.lock().unwrap().drain(..) {
            self.nodes[node].del_known(&container, &result).success();
        }
    }
}

/// Whether an ADD has sent it: no other change takes something back.
fn is_of_an_add(request: &Request) -> bool {
    !request.body.contains("delete-cas")
}

const SIZE: u32 = 65_534;

#[test]
fn an_add_takes_one_request_and_little_more_up_to_95_percent() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let all = usable("10.1.0.0", SIZE);
    let mut table = Vec::new();
    for (pool, order) in [("packed", all.clone()), ("random", some(all.clone(), all.len()))] {
        define_with_folders(&consul, pool, "10.1.0.0/16");
        let mut held = 0;
        for (share, percent) in [("0 %", 0), ("50 %", 50), ("95 %", 95)] {
            let count = all.len() * percent / 100;
            occupy(&consul, pool, &order[held..count]);
            held = count;
            for (nodes, workers, each, most) in
                [(1, 1, 100, 1.1), (20, 20, 10, 1.6), (1, 20, 10, 1.6)]
            {
                let writers = Writers::new(&relay, pool, nodes, workers);
                let mean = writers.mean(&relay, each);
                writers.release();
                table.push((pool, share, nodes, workers, mean, most));
            }
        }
    }
    judge(&table);
}

#[test]
fn an_add_takes_three_requests_at_99_9_percent() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    let all = usable("10.1.0.0", SIZE);
    let free: Vec<IpAddr> = some(all.clone(), 65);
    let taken: Vec<IpAddr> = all.into_iter().filter(|address| !free.contains(address)).collect();
    occupy(&consul, "blue", &taken);
    let mut table = Vec::new();
    for (nodes, workers, rounds) in [(1, 1, 60), (20, 20, 5), (1, 20, 5)] {
        let writers = Writers::new(&relay, "blue", nodes, workers);
        let (before, adds) = (relay.requests().len(), workers * rounds);
        // What is taken goes again, so that the pool stays as full.
        at_once(workers, |worker| {
            let node = &writers.nodes[worker % nodes];
            for round in 0..rounds {
                let container = format!("w{worker}-{round}");
                let result = node.add(&container);
                node.del_known(&container, &result).success();
            }
        });
        let claims = relay.requests()[before..].iter().filter(|r| is_of_an_add(r)).count();
        table.push(("full", "99.9 %", nodes, workers, claims as f64 / adds as f64, 3.0));
        writers.release();
    }
    judge(&table);
}

/// The pool, the share of it that is taken, the nodes, the workers, the mean and its bound.
type Row = (&'static str, &'static str, usize, usize, f64, f64);

#[track_caller]
fn judge(table: &[Row]) {
    let line = |(pool, share, nodes, workers, mean, most): &Row| {
        let missed = if mean <= most { "" } else { " MISSED" };
        format!("{pool} {share}, {nodes} nodes, {workers} workers: {mean:.3} of {most}{missed}\n")
    };
    let text: String = table.iter().map(line).collect();
    // Not through the harness, which keeps what a passing test prints.
    let _ = write!(std::io::stderr(), "requests of an ADD:\n{text}");
    assert!(table.iter().all(|row| row.4 >= 1.0 && row.4 <= row.5), "{text}");
}

#[test]
fn the_lowest_address_is_given_while_it_is_calm() {
    let consul = Consul::start();
    define(&consul, "blue", "10.1.0.0/16");
    let node = Node::of(&consul);
    let address = |number: u32| format!("10.1.0.{number}");
    let mut results = Vec::new();
    for number in 1..=9 {
        results.push(node.add(&format!("c{number}")));
        assert_eq!(addresses(results.last().unwrap()), [address(number)]);
    }
    for number in [3, 5] {
        node.del_known(&format!("c{number}"), &results[number - 1]).success();
    }
    node.del("c7");
    for number in [3, 5, 7, 10] {
        assert_eq!(node.address(&format!("again{number}")), address(number));
    }
    // So does a node that has seen nothing of it.
    node.del("c2");
    assert_eq!(Node::of(&consul).named("node-2").address("other"), address(2));
}

#[test]
fn the_lowest_address_is_given_wherever_it_lies() {
    let consul = Consul::start();
    for (pool, subnet) in [("four", "10.1.0.0/16"), ("six", "fd00:1::/64")] {
        define(&consul, pool, subnet);
        let first = match pool {
            "four" => 0x0a01_0001_u128,
            _ => "fd00:1::1".parse::<Ipv6Addr>().unwrap().to_bits(),
        };
        let address = |number: u128| match pool {
            "four" => Ipv4Addr::from_bits((first + number) as u32).to_string(),
            _ => Ipv6Addr::from_bits(first + number).to_string(),
        };
        // Within the first block, at its end, at that of the first ten, and of the first sixteen.
        let mut held = 0;
        for begin in [0, 14, 250, 2555, 4090] {
            let all: Vec<IpAddr> =
                (held..begin).map(|number| address(number).parse().unwrap()).collect();
            occupy(&consul, pool, &all);
            let node = Node::of(&consul).with_pools(&[pool]).named(&format!("{pool}-{begin}"));
            for number in begin..begin + 10 {
                assert_eq!(node.address(&format!("c{number}")), address(number), "{pool}");
            }
            held = begin + 10;
        }
    }
}

#[test]
fn whoever_lost_a_race_spreads_for_a_while() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define(&consul, "blue", "10.1.0.0/16");
    let node = behind(&relay);
    assert_eq!(node.address("first"), "10.1.0.1");
    occupy(&consul, "blue", &usable("10.1.0.1", 1));
    let mut lost = String::new();
    let requests = requests(&relay, || lost = node.address("lost"));
    // The claim, a wider look, another claim.
    assert_eq!(requests, 3, "{lost}");
    let mut spread = vec![lost];
    spread.extend((0..6).map(|number| node.address(&format!("spread{number}"))));
    let low: Vec<String> = (3..=9).map(|number| format!("10.1.0.{number}")).collect();
    assert!(spread.iter().filter(|address| low.contains(address)).count() < 3, "{spread:?}");
    (0..9).for_each(|number| drop(node.add(&format!("more{number}"))));
    // The lowest that the node knows to be free.
    let calm = node.address("calm");
    let number: u32 = calm.strip_prefix("10.1.0.").unwrap_or("999").parse().unwrap();
    assert!(number <= 16, "{calm} after {spread:?}");
}
