//! Three nodes of ours with twenty workers, whose calls are killed at random, and beside them nodes
//! that run whereabouts 0.9.4 and 0.7.0, on an API server that is killed with and without its store:
//! no address ever has two holders, every call ends, and nothing is left in the end.
//!
//! Every day a twentieth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it,
//! `IPAM_DELEGATED_SEED` sets the seed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod cluster {
    pub mod common {
        #[allow(dead_code, reason = "each test binary uses a part")]
        pub mod beside;
        pub mod players;
    }
}

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ipam_testkit::history::old_nodes::{Ending, OldNode, Plays, Turns};
use ipam_testkit::history::site::{self, assert_sound, collect_all};
use ipam_testkit::history::workload::{Failure, Progress, Random, Report, Workload, now, seed};
use ipam_testkit::history::{Call, Outcome, has_double, judge, plant_double};
use ipam_testkit::kube::Kube;
use ipam_testkit::whereabouts::Release;
use ipam_testkit::world::{World, binary, full_size, start, wait};
use serde_json::{Value, json};

use cluster::common::beside::{self, Site};
use cluster::common::players::{self, Player};

/// Each network has a range, objects and old nodes of its own: of the old nodes of a network one works at a
/// time.
const NETWORKS: usize = 4;
const NODES: usize = 3;
const OLD: [Release; 2] = [Release::V094, Release::V07];

/// How many of a thousand calls of old nodes are killed.
const OLD_KILLS: u64 = 10;

/// How long a server that is ready again may still fail calls.
const RECOVERY: Duration = Duration::from_secs(10);

/// After this time every DEL that left something open is due for a repetition, by the next ADDs.
const REPETITION: Duration = Duration::from_secs(65);

/// A time for which the server was unreachable.
type Window = (u64, u64);

/// Our nodes, each with a state folder of its own.
struct Nodes {
    worlds: Vec<World>,
    sites: Vec<Site>,
    /// How many more calls ours may make than the old nodes have made.
    turns: Turns,
    windows: Mutex<Vec<Window>>,
}

impl Nodes {
    #[track_caller]
    fn new(kube: &Kube) -> Self {
        let world = || {
            let world = World::new();
            world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-kube"));
            world
        };
        Self {
            worlds: (0..NODES).map(|_| world()).collect(),
            sites: (0..NETWORKS).map(|_| Site::new(kube)).collect(),
            turns: Turns::default(),
            windows: Mutex::default(),
        }
    }

    /// DEL of every owner of a workload; all must succeed.
    #[track_caller]
    fn release_all(&self, workload: &Workload) {
        let release = |worker| {
            for place in 0..workload.owners_per_worker {
                let owner = format!("w{worker}-{place}");
                let (command, network) = site::Site::call(self, "DEL", worker, &owner, &json!({}));
                wait(start(command, &network)).success();
            }
        };
        thread::scope(|scope| {
            (0..workload.workers).for_each(|worker| drop(scope.spawn(move || release(worker))));
        });
    }

    /// All addresses with the ids of their entries.
    #[track_caller]
    fn held(&self) -> Vec<(String, IpAddr)> {
        let held = self.sites.iter().flat_map(|site| site.objects.held());
        held.map(|held| (held.entry.id, held.address)).collect()
    }

    /// The reservations of ours or of others.
    #[track_caller]
    fn reservations(&self, ours: bool) -> Vec<String> {
        let all = self.sites.iter().flat_map(|site| site.objects.reservations());
        let is_ours = |object: &Value| object["metadata"]["annotations"].is_object();
        all.filter(|(_, object)| is_ours(object) == ours).map(|(name, _)| name).collect()
    }
}

/// The range of a network, which has fewer addresses than owners.
fn range(network: usize) -> String {
    format!("10.5.{network}.0/27")
}

impl site::Site for Nodes {
    fn call(&self, verb: &str, worker: usize, owner: &str, answer: &Value) -> (Command, Value) {
        self.turns.wait();
        let (world, number) = (&self.worlds[worker % NODES], worker % NETWORKS);
        let mut network = world.network(json!(["ipam-ds-static", "ipam-da-kube"]));
        network["cniVersion"] = "1.1.0".into();
        network["name"] = format!("net-{number}").into();
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.remove("dataDir");
        // The first retries until the server is back, the chain kills the second, and the third fails
        // early.
        let (timeout, own) = [("40s", "20s"), ("6s", "20s"), ("40s", "2s")][worker % NODES];
        ipam.insert("timeout".to_owned(), timeout.into());
        ipam.insert("ranges".to_owned(), json!([[{"subnet": range(number)}]]));
        let kubeconfig = &self.sites[number].kubeconfig;
        ipam.insert("kube".to_owned(), json!({"kubeconfig": kubeconfig, "timeout": own}));
        if verb == "CHECK" {
            network["prevResult"] = answer.clone();
        }
        let container = if owner.is_empty() { String::new() } else { format!("c-{owner}") };
        let mut command = world.command(verb, &container);
        if !owner.is_empty() {
            let pod = format!("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod-{owner}");
            command.env("CNI_ARGS", format!("IgnoreUnknown=1;{pod}"));
        }
        (command, network)
    }

    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let mut leases: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for (id, address) in self.held() {
            if let Some(owner) = id.strip_prefix("c-w") {
                leases.entry(format!("w{owner}")).or_default().insert(address);
            }
        }
        leases
    }

    fn collectors(&self) -> Vec<usize> {
        (0..NODES * NETWORKS).collect()
    }

    fn is_quiet_within(&self, time: Duration) -> bool {
        self.worlds.iter().all(|world| world.is_quiet_within(time))
    }

    fn about(&self, owner: &str) -> String {
        let record = self.worlds[worker_of(owner) % NODES].record(&format!("c-{owner}"));
        std::fs::read_to_string(&record).unwrap_or_else(|error| error.to_string())
    }

    /// A request of a call that was killed may still be on its way.
    fn settled(&self, add: &Call) -> u64 {
        let windows = self.windows.lock().unwrap();
        let met = windows.iter().any(|(from, until)| add.began < *until && *from < add.ended);
        let late = RECOVERY.as_nanos() as u64;
        if met || add.outcome == Outcome::Unknown { add.ended + late } else { add.ended }
    }
}

#[test]
fn no_address_ever_has_two_holders_beside_old_nodes_on_a_server_that_is_killed() {
    let part = if full_size() { 1 } else { 20 };
    let began = Instant::now();
    let kube = Kube::start();
    Release::V094.crds().install(&kube);
    let nodes = Nodes::new(&kube);
    let workload = workload(part);
    let (mut report, (plays, windows)) =
        workload.run_while(&nodes, |progress| old_nodes(&kube, &nodes, progress));
    nodes.windows.lock().unwrap().extend(&windows);
    let restarts = windows.len();
    say(&format!("seed {}, {restarts} restarts, {:.0?}", workload.seed, began.elapsed()));
    say(&format!("ours: {report}"));
    say(&format!("old nodes: {plays}"));
    assert!(site::Site::is_quiet_within(&nodes, Duration::from_secs(60)), "processes live on");
    assert!(report.hung.is_empty(), "{:?}", report.hung);
    assert_excused(&report.failures, &windows);
    assert!(report.operations() + plays.calls.len() >= 20_000 / part);
    assert!(report.kills >= 500 / part, "only {} kills", report.kills);
    assert!(restarts >= if full_size() { 10 } else { 1 }, "only {restarts} restarts");
    let share = plays.share(report.operations());
    assert!(share >= 40, "only {share} % of the calls are of old nodes");

    sleep(if part == 1 { REPETITION } else { RECOVERY });
    assert_sound(&nodes, &report);
    let violations = |report: &Report| {
        let calls = [&report.calls[..], &plays.calls].concat();
        judge(&calls, |call| site::Site::settled(&nodes, call)).0
    };
    assert_eq!(violations(&report), Vec::new());
    say(&format!("{share} % old calls, no address twice: {:.0?}", began.elapsed()));
    let calm = Workload { operations: 2_000 / part, kills: 0, seed: workload.seed + 1, ..workload };
    let later = calm.run(&nodes);
    say(&format!("on a server that stays: {later}"));
    // A busy machine may need more time than two of the nodes give a call.
    let has_time = |failure: &&Failure| {
        worker_of(&failure.owner).is_multiple_of(NODES) || !matches!(failure.code, Some(11 | 111))
    };
    let failures: Vec<Failure> = later.failures.iter().filter(has_time).cloned().collect();
    assert_excused(&failures, &[]);
    report.append(later);
    assert_sound(&nodes, &report);
    assert_eq!(violations(&report), Vec::new());

    nodes.release_all(&workload);
    collect_all(&nodes);
    nodes.sites.iter().for_each(players::release_all);
    assert_eq!((nodes.held(), nodes.reservations(true)), (Vec::new(), Vec::new()));
    nodes.sites.iter().for_each(players::sweep);
    assert_eq!(nodes.reservations(false), Vec::<String>::new());
    say(&format!("{:.0?} in all", began.elapsed()));
}

#[test]
fn a_planted_double_and_an_entry_that_is_lost_are_found() {
    let served = beside::served(Some(Release::V094));
    let nodes = Nodes::new(served);
    let small = Workload { operations: 120, workers: 6, kills: 0, ..workload(40) };
    let mut report = small.run(&nodes);
    assert_excused(&report.failures, &[]);
    assert_sound(&nodes, &report);
    plant_double(&mut report.calls);
    let double = |calls: &[Call]| judge(calls, |call| site::Site::settled(&nodes, call)).0;
    assert!(has_double(&double(&report.calls)));

    let nodes = Nodes::new(served);
    let busy = Workload { operations: 120, kills: 0, ..workload(40) };
    // Emptied pools give addresses again that containers still have.
    let (report, ()) = busy.run_while(&nodes, |progress: &Progress| {
        until(progress, busy.operations);
        for site in &nodes.sites {
            for pool in site.objects.pools().into_keys() {
                let none = json!([{"op": "replace", "path": "/spec/allocations", "value": {}}]);
                site.client.patch(&site.objects.path("ippools", &pool), &none);
            }
            for name in site.objects.reservations().into_keys() {
                site.client.delete(&site.objects.path("overlappingrangeipreservations", &name));
            }
        }
        until(progress, progress.begun() + busy.operations);
    });
    let violations = judge(&report.calls, |call| site::Site::settled(&nodes, call)).0;
    assert!(has_double(&violations), "{violations:?}");
}

/// The number in the name of an owner, as `w3-1`.
fn worker_of(owner: &str) -> usize {
    owner[1..].split('-').next().unwrap().parse().unwrap()
}

/// A part of our share of the full size.
fn workload(part: usize) -> Workload {
    Workload {
        seed: seed(),
        workers: 20,
        operations: 10_000 / part,
        owners_per_worker: 5,
        kills: 150,
        call_time: Duration::from_millis(200),
        limit: Duration::from_secs(90),
    }
}

/// Runs the old nodes, while the server is killed again and again.
fn old_nodes(kube: &Kube, nodes: &Nodes, progress: &Progress) -> (Plays, Vec<Window>) {
    let lanes = (0..NETWORKS * OLD.len()).map(|lane| {
        let (network, release) = (lane / OLD.len(), OLD[lane % OLD.len()]);
        Player::new(&nodes.sites[network], release, &range(network))
    });
    let lanes: Vec<Player<'_>> = lanes.collect();
    let lanes: Vec<&dyn OldNode> = lanes.iter().map(|lane| lane as &dyn OldNode).collect();
    nodes.turns.play(&lanes, progress.operations(), OLD_KILLS, Ending::AfterCalls, |plays| {
        restarts(kube, nodes, progress, plays)
    })
}

/// Kills the server some twenty times, and the store with it each second time.
fn restarts(kube: &Kube, nodes: &Nodes, progress: &Progress, plays: &Mutex<Plays>) -> Vec<Window> {
    let (mut windows, mut random) = (Vec::new(), Random(seed() ^ 0x5bf0_3635));
    let times = if full_size() { 20 } else { 2 };
    let all = progress.operations();
    loop {
        let done = plays.lock().unwrap().calls.len();
        if nodes.turns.working() == 0 || progress.is_over() {
            return windows;
        }
        if done < (2 * windows.len() + 1) * all / (2 * times) {
            sleep(Duration::from_millis(10));
            continue;
        }
        let from = now();
        kube.kill();
        if windows.len() % 2 == 1 {
            kube.etcd().kill();
        }
        sleep(Duration::from_millis(random.below(2_000)));
        if kube.etcd().pid().is_none() {
            kube.etcd().restart();
        }
        kube.restart();
        windows.push((from, now()));
        let took = Duration::from_nanos(now() - from);
        say(&format!("{done} calls of old nodes, {} of ours: {took:.1?} away", progress.begun()));
        nodes.sites.iter().for_each(players::sweep);
    }
}

fn until(progress: &Progress, begun: usize) {
    while progress.begun() < begun && !progress.is_over() {
        sleep(Duration::from_millis(5));
    }
}

/// Fails if a call failed although the pool was not full and the server was reachable.
#[track_caller]
fn assert_excused(failures: &[Failure], windows: &[Window]) {
    let recovery = RECOVERY.as_nanos() as u64;
    let troubled = |failure: &Failure| {
        let meets =
            |(from, until): &Window| failure.began < until + recovery && *from < failure.ended;
        windows.iter().any(meets)
    };
    let excused = |failure: &&Failure| match (failure.verb, failure.code) {
        ("ADD", Some(100)) => true,
        (_, Some(11 | 105 | 111)) => troubled(failure),
        _ => false,
    };
    let unexcused: Vec<&Failure> = failures.iter().filter(|failure| !excused(failure)).collect();
    let some = &unexcused[..unexcused.len().min(3)];
    assert!(some.is_empty(), "{} unexcused failures, as {some:#?}", unexcused.len());
}

/// Not through the harness, which keeps what a passing test prints.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "history on Kubernetes: {line}");
}
