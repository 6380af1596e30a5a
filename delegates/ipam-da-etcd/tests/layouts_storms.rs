//! Many processes at once in the old layouts, some killed at any moment: no address has two holders, and DEL
//! leaves nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, at_once};
use ipam_testkit::world::{binary, full_size, start, until, wait};
use serde_json::{Value, json};

use common::layouts::{BOTH, Old, On, notes, on, told};
use common::rights::Rights::Theirs;
use common::rights::{calling_as, guarded};
use common::{Node, PROGRAM};

/// Numbers that look random, and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Two nodes whose chains give addresses of one small pool.
struct Site<'a> {
    etcd: &'a Etcd,
    old: Old,
    nodes: [Node; 2],
    /// Who holds what, as the callers were told.
    held: Mutex<BTreeMap<String, (usize, String, &'static str)>>,
}

const WORKERS: usize = 6;

const IFNAMES: [&str; 2] = ["eth0", "net1"];

impl<'a> Site<'a> {
    fn new(old: Old, etcd: &'a Etcd, indexed: bool) -> Self {
        let node = |node: Node| {
            let node = if indexed { node } else { calling_as(node, old, Theirs) };
            node.world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
            node
        };
        Self { etcd, old, nodes: old.nodes(etcd).map(node), held: Mutex::default() }
    }

    /// A call of the chain of a node.
    fn call(&self, node: usize, verb: &str, container: &str, ifname: &str) -> Option<Value> {
        let node = &self.nodes[node];
        let mut network = node.world.network(json!(["ipam-ds-static", "ipam-da-etcd"]));
        network["ipam"]["etcd"] = node.store["etcd"].clone();
        network["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/26"}]]);
        let mut command = node.world.command(verb, container);
        command.env("CNI_IFNAME", ifname);
        let outcome = wait(start(command, &network));
        (outcome.exit == Some(0)).then(|| outcome.json())
    }

    fn add(&self, node: usize, container: &str, ifname: &'static str) -> bool {
        let Some(result) = self.call(node, "ADD", container, ifname) else { return false };
        let address = addresses(&result).swap_remove(0);
        let owner = (node, container.to_owned(), ifname);
        let other = self.held.lock().unwrap().insert(address.clone(), owner.clone());
        assert!(
            other.as_ref().is_none_or(|other| *other == owner),
            "{address}: {owner:?} {other:?}"
        );
        true
    }

    fn del(&self, node: usize, container: &str, ifname: &'static str) {
        let owner = (node, container.to_owned(), ifname);
        self.held.lock().unwrap().retain(|_, other| *other != owner);
        until("DEL", || self.call(node, "DEL", container, ifname).is_some());
    }

    /// Kills processes of the nodes until it is over.
    fn kill_some(&self, over: &AtomicBool, seed: u64) -> usize {
        let (mut dice, mut killed) = (Dice(seed), 0);
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(dice.below(30)));
            let processes = self.nodes[dice.below(2) as usize].world.processes();
            if processes.is_empty() {
                continue;
            }
            let pid = processes[dice.below(processes.len() as u64) as usize];
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            killed += 1;
        }
        killed
    }

    /// Attachments made and released by some workers, while processes are killed.
    fn storm(&self, workers: usize, rounds: usize) {
        let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| self.kill_some(&over, 0x9e37_79b9));
            for worker in 0..workers {
                let (over, done) = (&over, &done);
                scope.spawn(move || {
                    let _ended = Ended { over, done, workers };
                    let mut dice = Dice(worker as u64 + 7);
                    for round in 0..rounds {
                        let container = format!("c{worker}-{}", round % 3);
                        let node = worker % 2;
                        let ifname = IFNAMES[dice.below(2) as usize];
                        if !self.add(node, &container, ifname) || dice.below(2) == 0 {
                            self.del(node, &container, ifname);
                        }
                    }
                });
            }
            let killed = killer.join().unwrap();
            assert!(killed > 0, "nothing was killed");
        });
    }

    fn assert_held(&self, what: &str) {
        until("all is quiet", || self.nodes.iter().all(|node| node.world.processes().is_empty()));
        let books = self.old.books(self.etcd);
        for (address, (_, container, _)) in &*self.held.lock().unwrap() {
            let address: IpAddr = address.parse().unwrap();
            let holder = books.get(&address);
            let its = holder.is_some_and(|holder| holder.split('/').any(|part| part == container));
            assert!(its, "{what}: {address} of {container}: {holder:?}");
        }
    }
}

/// The end of a worker, be it by a panic; the last one ends the storm.
struct Ended<'a> {
    over: &'a AtomicBool,
    done: &'a AtomicUsize,
    workers: usize,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if self.done.fetch_add(1, Ordering::Relaxed) + 1 == self.workers {
            self.over.store(true, Ordering::Relaxed);
        }
    }
}

#[track_caller]
fn assert_survives(old: Old, etcd: &Etcd, indexed: bool) {
    let what = format!("{old:?} {indexed}");
    let site = Site::new(old, etcd, indexed);
    old.give(etcd, "10.1.0.20", "theirs");
    site.storm(WORKERS, if full_size() { 200 } else { 8 });
    site.assert_held(&what);
    // An ADD again finds what is held.
    let held = site.held.lock().unwrap().clone();
    for (address, (node, container, ifname)) in &held {
        assert!(site.add(*node, container, ifname), "{what}");
        assert!(site.held.lock().unwrap().contains_key(address));
    }
    assert_eq!(*site.held.lock().unwrap(), held, "{what}");
    for worker in 0..WORKERS {
        for round in 0..3 {
            for ifname in IFNAMES {
                site.del(worker % 2, &format!("c{worker}-{round}"), ifname);
            }
        }
    }
    assert_eq!(told(&old.books(etcd)), ["10.1.0.20 theirs"], "{what}");
    assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0], "{what}");
    for node in &site.nodes {
        assert!(notes(node).is_empty(), "{what}: {:?}", notes(node));
    }
}

#[test]
fn chains_that_are_killed_give_nothing_twice_and_leave_nothing() {
    let etcd = Etcd::start();
    BOTH.into_iter().for_each(|old| assert_survives(old, &etcd, true));
}

#[test]
fn chains_that_are_killed_without_an_index_give_nothing_twice_and_leave_nothing() {
    let etcd = guarded(&BOTH.map(|old| (old, Theirs)));
    BOTH.into_iter().for_each(|old| assert_survives(old, &etcd, false));
}

#[test]
fn programs_killed_at_any_moment_leave_nothing_after_del() {
    let etcd = Etcd::start();
    let poor = guarded(&BOTH.map(|old| (old, Theirs)));
    for old in BOTH {
        for (indexed, etcd) in [(true, &etcd), (false, &poor)] {
            let node = old.node(etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
            let node = if indexed { node } else { calling_as(node, old, Theirs) };
            on(&node).add("warm");
            let begun = std::time::Instant::now();
            let second = addresses(&on(&node).ifname("net1").add("c1"));
            let length = begun.elapsed();
            let rest = || {
                let books = old.books(etcd).into_keys().map(|address| address.to_string());
                books.filter(|address| !second.contains(address)).count()
            };
            let run = |on: On<'_>, verb: &str, moment: Duration| {
                let (command, network) = on.command(verb, "c1", &json!({}));
                let mut call = start(command, &network);
                std::thread::sleep(moment);
                ipam_testkit::world::kill_now(&mut call);
            };
            for step in 0..8 {
                let moment = length * step / 8;
                run(on(&node), "ADD", moment);
                match step % 3 {
                    0 => {}
                    1 => run(on(&node), "DEL", moment),
                    _ => drop(on(&node).add("c1")),
                }
                on(&node).del("c1");
                assert_eq!(rest(), 2, "{old:?} {indexed} {step}: those of warm");
            }
            on(&node).ifname("net1").del("c1");
            on(&node).del("warm");
            assert_eq!(told(&old.books(etcd)), [""; 0], "{old:?} {indexed}");
        }
    }
}

#[test]
fn a_hundred_adds_at_once_get_the_last_hundred_addresses() {
    let etcd = Etcd::start();
    for old in BOTH {
        let nodes = old.nodes(&etcd).map(|mut node| {
            // 10.1.0.2 to 10.1.0.111, of which the replaced plugin has given ten.
            node.pools[0]["ranges"][0]["rangeEnd"] = "10.1.0.111".into();
            node
        });
        for number in 0..10 {
            old.give(&etcd, &format!("10.1.0.{}", 10 * number + 5), "theirs");
        }
        at_once(20, |worker| {
            (0..5)
                .for_each(|round| drop(on(&nodes[worker % 2]).add(&format!("c{worker}-{round}"))));
        });
        let books = old.books(&etcd);
        assert_eq!(books.len(), 110, "{old:?}");
        assert_eq!(books.values().filter(|owner| *owner == "theirs").count(), 10, "{old:?}");
        let (code, text) = on(&nodes[0]).call("ADD", "one-more", &json!({})).failure();
        assert_eq!(code, 100, "{text}");
        at_once(20, |worker| {
            (0..5).for_each(|round| on(&nodes[worker % 2]).del(&format!("c{worker}-{round}")));
        });
        assert_eq!(old.books(&etcd).len(), 10, "{old:?}");
    }
}

#[test]
fn calls_of_one_attachment_at_once_agree() {
    let etcd = Etcd::start();
    for old in BOTH {
        let node = old.node(&etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        old.give(&etcd, "10.1.0.50", "c2");
        on(&node).remember("c2", &["10.1.0.50"]);
        let given = Mutex::new(BTreeMap::<String, Vec<Vec<String>>>::new());
        at_once(10, |number| {
            let container = ["c1", "c2"][number % 2];
            let its = addresses(&on(&node).add(container));
            given.lock().unwrap().entry(container.to_owned()).or_default().push(its);
        });
        for (container, given) in given.into_inner().unwrap() {
            assert!(given.iter().all(|its| *its == given[0]), "{old:?} {container} {given:?}");
        }
        assert_eq!(old.books(&etcd).len(), 4, "{old:?}");
        at_once(10, |number| on(&node).del(["c1", "c2"][number % 2]));
        assert_eq!(told(&old.books(&etcd)), [""; 0], "{old:?}");
    }
}
