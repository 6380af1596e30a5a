//! An old node takes addresses from a pool that a node of ours changes up to 20 times a second. What
//! both reach depends on the machine: it is printed.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ipam_testkit::contention::are_distinct;
use ipam_testkit::node::at_once;
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{Crds, Release};
use ipam_testkit::world::full_size;
use serde_json::{Map, Value, json};

use crate::common::Desk;
use crate::common::beside::IFNAME;
use crate::common::node::Node;

const OLD: [Release; 4] = [Release::V054, Release::V07, Release::V094, Release::Fork];

const RANGE: &str = "10.1.0.0/20";

/// Between the beginnings of two ADDs of ours.
const PAUSE: Duration = Duration::from_millis(50);

/// How many of ours may run at a time, on a machine that is slow.
const AT_ONCE: usize = 4;

/// How often a runtime tries to make an old pod.
const TRIES: usize = 3;

/// A pool, a node of ours, and an old node.
struct Race {
    desk: Desk,
    node: Node,
    end: Instant,
    /// When the next ADD of ours begins, and its number.
    next: Mutex<(Instant, usize)>,
    given: Mutex<Vec<IpAddr>>,
}

impl Race {
    /// A race for so long in a pool with so many entries.
    fn new(entries: usize, time: Duration) -> Self {
        let desk = Desk::new(&Crds::shipped());
        let entry = json!({"id": "0".repeat(64), "podref": "", "ifname": IFNAME});
        let allocations: Map<String, Value> =
            (1..=entries).map(|key| (key.to_string(), entry.clone())).collect();
        desk.objects().create_pool("", RANGE, &allocations.into());
        let node = Node::of(&desk).with_subnets(&[RANGE]);
        let now = Instant::now();
        Self { desk, node, end: now + time, next: Mutex::new((now, 0)), given: Mutex::default() }
    }

    /// ADDs of ours: how many.
    fn ours(&self) -> usize {
        at_once(AT_ONCE, |_| {
            loop {
                let number = {
                    let mut next = self.next.lock().unwrap();
                    sleep(next.0.saturating_duration_since(Instant::now()));
                    if Instant::now() >= self.end {
                        return;
                    }
                    *next = (Instant::now() + PAUSE, next.1 + 1);
                    next.1
                };
                let address = self.node.address(&format!("c{number}"));
                self.given.lock().unwrap().push(address.parse().unwrap());
            }
        });
        self.next.lock().unwrap().1
    }

    /// Pods of an old node: how many got an address at each try. Each gets one at last.
    fn old(&self, release: Release) -> [usize; TRIES] {
        // The fork gives its first address again and again, unless the range has an end.
        let range = json!({"range": RANGE, "range_start": "10.1.0.1", "range_end": "10.1.15.254"});
        let Desk { client, namespace, .. } = &self.desk;
        let old = Whereabouts::new(release, client, namespace, &range);
        let old = old.pause(Duration::from_millis(50));
        let mut pods = [0; TRIES];
        while Instant::now() < self.end {
            let pod = format!("{release:?}-{}", pods.iter().sum::<usize>()).to_lowercase();
            let given = |attempt| Some((attempt, self.add(&old, &pod, attempt)?));
            let (attempt, address) = (0..TRIES).find_map(given).expect("an address for each pod");
            self.given.lock().unwrap().push(address);
            pods[attempt] += 1;
        }
        pods
    }

    /// An ADD of an old node, and its DEL if it fails.
    fn add(&self, old: &Whereabouts, pod: &str, attempt: usize) -> Option<IpAddr> {
        let (container, podref) = (format!("{pod}-{attempt}"), format!("ns/{pod}"));
        let given = old.add(&container, IFNAME, &podref).run();
        // The fork answers with an address that it has not written if its time ends.
        let held = self.desk.objects().held();
        let is_held = held.iter().any(|held| held.entry.id == container);
        match given {
            Ok(addresses) if is_held => addresses.first().copied(),
            _ => {
                old.del(&container, IFNAME, &podref).run().unwrap();
                None
            }
        }
    }
}

/// Runs a race. After it a runtime's next try meets a pool that changes less, so a slow machine
/// alone lets no pod starve.
fn run(release: Release, entries: usize, time: Duration) {
    let race = Race::new(entries, time);
    let (ours, old) = thread::scope(|scope| {
        let old = scope.spawn(|| race.old(release));
        (race.ours(), old.join().unwrap())
    });
    let pods: usize = old.iter().sum();
    let [our_rate, old_rate] = [ours, pods].map(|count| count as f64 / time.as_secs_f64());
    let _ = writeln!(
        std::io::stderr(),
        "{entries} entries: {our_rate:.1} ADDs of ours a second, {old_rate:.1} of {release:?}; \
         its pods by tries: {old:?}"
    );
    let given = race.given.lock().unwrap();
    assert_eq!(given.len(), ours + pods);
    assert!(are_distinct(&*given), "{given:?}");
    assert_eq!(race.desk.objects().held().len(), entries + given.len());
}

#[test]
fn no_old_node_starves_beside_up_to_20_adds_a_second() {
    let (sizes, seconds) = if full_size() { (&[0, 200][..], 20) } else { (&[0][..], 2) };
    for entries in sizes {
        OLD.into_iter().for_each(|release| run(release, *entries, Duration::from_secs(seconds)));
    }
}
