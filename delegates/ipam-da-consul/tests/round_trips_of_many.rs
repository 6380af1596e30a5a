//! How often an ADD asks the server where many nodes, or many processes of a node, share a pool that
//! is more or less full.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipam_testkit::consul::{Consul, Relay, Request};
use ipam_testkit::contention::{are_distinct, some};
use ipam_testkit::node::{addresses, at_once};
use ipam_testkit::world::full_size;
use serde_json::Value;

use common::Node;
use common::counting::{behind, define_with_folders, requests};
use common::filling::{occupy, usable};

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
        let node = |n| behind(relay).patient().named(&format!("node-{n}")).with_pools(&[pool]);
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
    // Where writers meet, few ADDs have no mean yet.
    let each = if full_size() { [100, 20, 10] } else { [20, 12, 5] };
    let mut table = Vec::new();
    for (pool, order) in [("packed", all.clone()), ("random", some(all.clone(), all.len()))] {
        define_with_folders(&consul, pool, "10.1.0.0/16");
        let mut held = 0;
        for (share, percent) in [("0 %", 0), ("50 %", 50), ("95 %", 95)] {
            let count = all.len() * percent / 100;
            occupy(&consul, pool, &order[held..count]);
            held = count;
            let writers = [(1, 1, 1.1), (20, 20, 1.6), (1, 20, 1.6)];
            for ((nodes, workers, most), each) in writers.into_iter().zip(each) {
                let writers = Writers::new(&relay, pool, nodes, workers);
                let mean = writers.mean(&relay, each);
                writers.release();
                table.push((pool, share, nodes, workers, mean, most));
            }
        }
    }
    assert_limits(&table);
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
    assert_limits(&table);
}

/// The pool, the share of it that is taken, the nodes, the workers, the mean and its bound.
type Row = (&'static str, &'static str, usize, usize, f64, f64);

#[track_caller]
fn assert_limits(table: &[Row]) {
    let line = |(pool, share, nodes, workers, mean, most): &Row| {
        let missed = if mean <= most { "" } else { " MISSED" };
        format!("{pool} {share}, {nodes} nodes, {workers} workers: {mean:.3} of {most}{missed}\n")
    };
    let text: String = table.iter().map(line).collect();
    // Not through the harness, which keeps what a passing test prints.
    let _ = write!(std::io::stderr(), "requests of an ADD:\n{text}");
    assert!(table.iter().all(|row| row.4 >= 1.0 && row.4 <= row.5), "{text}");
}
