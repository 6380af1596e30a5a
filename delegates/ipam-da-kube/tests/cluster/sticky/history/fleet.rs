//! Nodes that have trouble while their workers call.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Mutex, RwLock};
use std::thread::sleep;
use std::time::Duration;

use ipam_testkit::history::site::{Site, collect_all};
use ipam_testkit::history::workload::{Progress, Random, now, seed};
use ipam_testkit::history::{Call, Outcome};
use ipam_testkit::kube::Node as NodeObject;
use ipam_testkit::world::{World, binary, full_size, start, wait};
use serde_json::{Value, json};

use super::story::{Loss, Sandbox, Story};
use crate::common::Desk;
use crate::common::sticky::sticky_desk;

const NODES: usize = 3;
pub const WORKERS: usize = 9;

/// The pods of a worker: two have names, one has none.
pub const PODS: usize = 3;

/// A pool with fewer addresses than there are pods.
const RANGE: &str = "10.6.0.0/28";

/// How long names are kept, each time a third of them.
const KEEPS: [&str; 3] = ["0s", "1s", "1h"];

/// How long a request of a call that was killed may still be on its way.
const LATE: Duration = Duration::from_secs(10);

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// It is NotReady for a while, which changes nothing.
    NotReady,
    /// It is off, and a person deletes its pods by force.
    PodsDeleted,
    /// It is off, and out of service by a taint.
    Tainted,
    /// The same, by a label.
    Labelled,
    /// It is off, and its object is deleted.
    Deleted,
}

const TROUBLES: [Trouble; 5] = [
    Trouble::NotReady,
    Trouble::PodsDeleted,
    Trouble::Tainted,
    Trouble::Labelled,
    Trouble::Deleted,
];

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Three nodes of a cluster.
pub struct Fleet {
    desk: Desk,
    worlds: Vec<World>,
    /// Written while a node is off, so that no call begins there.
    power: [RwLock<()>; NODES],
    pub story: Mutex<Story>,
}

impl Fleet {
    #[track_caller]
    pub fn new() -> Self {
        let world = || {
            let world = World::new();
            world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-kube"));
            world
        };
        let fleet = Self {
            desk: sticky_desk(),
            worlds: (0..NODES).map(|_| world()).collect(),
            power: Default::default(),
            story: Mutex::new(Story::new(Random(seed() ^ 0x51c4_77f3))),
        };
        (0..NODES).for_each(|node| fleet.create_node(node));
        fleet
    }

    fn object(&self, node: usize) -> String {
        format!("n{node}.{}", self.desk.namespace)
    }

    fn create_node(&self, node: usize) {
        self.desk.client.create_node(&NodeObject::named(&self.object(node)));
    }

    /// The network of a node, with this pool.
    fn network(&self, node: usize, pool: Value) -> Value {
        let mut network = self.worlds[node].network(json!(["ipam-ds-static", "ipam-da-kube"]));
        network["cniVersion"] = "1.1.0".into();
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.remove("dataDir");
        ipam.insert("pools".to_owned(), json!([pool]));
        let kubeconfig = self.desk.kubeconfig_path();
        ipam.insert("kube".to_owned(), json!({"kubeconfig": kubeconfig, "timeout": "20s"}));
        network
    }

    /// A call for a sandbox of a pod, which is kept for so long if it has a name.
    fn call_for(&self, verb: &str, pod: &str, sandbox: &Sandbox, keep: &str) -> (Command, Value) {
        let mut pool = json!({"ranges": [{"subnet": RANGE}]});
        if let Some(name) = name_of(pod) {
            pool["sticky"] = format!("web-{name}").into();
            pool["keep"] = keep.into();
        }
        let (node, namespace, uid) = (node_of(pod), &self.desk.namespace, &sandbox.uid);
        let mut command = self.worlds[node].command(verb, &sandbox.container);
        let args = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_UID={uid}");
        command.env("CNI_ARGS", format!("IgnoreUnknown=1;{args}"));
        (command, self.network(node, pool))
    }

    /// The sandbox of a call, while its node is on. An ADD after a loss is of the next pod, and one of
    /// four others is of the next sandbox of the same pod.
    fn sandbox(&self, verb: &str, pod: &str) -> Sandbox {
        let (latest, is_next) = {
            let mut story = self.story.lock().unwrap();
            let is_next = verb == "ADD" && story.random.below(4) == 0;
            (story.calls.get(pod).map(|calls| calls.last().unwrap().1.clone()), is_next)
        };
        let number = latest.as_ref().map_or(0, |latest| latest.number + 1);
        let container = format!("{pod}.{number}");
        let sandbox = match latest.clone() {
            Some(latest) if latest.is_lost && verb != "ADD" => latest,
            Some(latest) if !latest.is_lost && !is_next => latest,
            Some(latest) if !latest.is_lost => Sandbox { container, number, ..latest },
            _ => {
                let uid = self.desk.create_pod(pod, &self.object(node_of(pod)));
                Sandbox { container, number, uid, is_lost: false }
            }
        };
        let mut story = self.story.lock().unwrap();
        if let Some(latest) = latest.filter(|it| !it.is_lost && it.number != sandbox.number) {
            story.end(pod, latest);
        }
        story.calls.entry(pod.to_owned()).or_default().push((now(), sandbox.clone()));
        sandbox
    }

    /// Lets nodes have each kind of trouble, at even distances, while the workers work.
    pub fn troubles(&self, progress: &Progress) {
        let mut random = Random(seed() ^ 0x2f0b_9ad1);
        let count = TROUBLES.len() * if full_size() { 20 } else { 1 };
        for number in 0..count {
            while progress.begun() < (number + 1) * progress.operations() / (count + 1) {
                assert!(!progress.is_over(), "the workers have ended");
                sleep(Duration::from_millis(5));
            }
            let node = random.below(NODES as u64) as usize;
            let time = Duration::from_millis(200 + random.below(700));
            self.strike(node, TROUBLES[number % TROUBLES.len()], time);
            // The runtime ends some sandboxes late, and GC the others.
            let late = std::mem::take(&mut self.story.lock().unwrap().late);
            for (pod, sandbox) in late {
                if random.below(3) > 0 {
                    let (command, network) = self.call_for("DEL", &pod, &sandbox, "0s");
                    wait(start(command, &network)).ended_well();
                }
            }
        }
    }

    fn strike(&self, node: usize, trouble: Trouble, time: Duration) {
        let (client, object) = (&self.desk.client, self.object(node));
        let tainted =
            |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoExecute"}]}});
        if trouble == Trouble::NotReady {
            client.patch_node(&object, &tainted("node.kubernetes.io/unreachable"));
            sleep(time);
            client.patch_node(&object, &json!({"spec": {"taints": null}}));
            return;
        }
        let _off = self.power[node].write().unwrap();
        let from = now();
        let lost = self.story.lock().unwrap().lose(node);
        let delete_pods = || lost.iter().for_each(|pod| self.desk.force_delete_pod(pod));
        match trouble {
            Trouble::NotReady => {}
            Trouble::PodsDeleted => delete_pods(),
            Trouble::Tainted => drop(client.patch_node(&object, &tainted(OUT_OF_SERVICE))),
            Trouble::Labelled => {
                let labels = json!({"metadata": {"labels": {OUT_OF_SERVICE: ""}}});
                client.patch_node(&object, &labels);
            }
            Trouble::Deleted => client.delete_node(&object),
        }
        sleep(time);
        // The cluster deletes the pods of such a node.
        if trouble != Trouble::PodsDeleted {
            delete_pods();
        }
        if trouble != Trouble::Deleted {
            client.delete_node(&object);
        }
        self.create_node(node);
        self.story.lock().unwrap().losses.push(Loss { node, from, until: now() });
    }

    /// Ends all sandboxes as their runtimes do, and all names; nothing may be left.
    #[track_caller]
    pub fn end_all(&self) {
        let latest = self.story.lock().unwrap().latest();
        for (pod, sandbox) in &latest {
            let (command, network) = self.call_for("DEL", pod, sandbox, "0s");
            wait(start(command, &network)).ended_well();
        }
        collect_all(self);
        let is_held = |(_, object): &(String, Value)| object["spec"]["holder"].is_object();
        let held: Vec<_> = self.desk.sticky_objects().into_iter().filter(is_held).collect();
        assert!(held.is_empty(), "{held:#?}");
        let mut left = self.desk.held();
        left.retain(|line| !line.contains(" sticky:"));
        assert_eq!(left, [""; 0]);
        // A last pod of each name, which keeps nothing.
        for worker in 0..WORKERS {
            let pod = format!("w{worker}-0");
            let sandbox = Sandbox {
                container: format!("{pod}.last"),
                number: 0,
                uid: self.desk.create_pod(&format!("last-{worker}"), ""),
                is_lost: false,
            };
            for verb in ["ADD", "DEL"] {
                let (command, network) = self.call_for(verb, &pod, &sandbox, "0s");
                wait(start(command, &network)).ended_well();
            }
        }
        assert_eq!((self.desk.held(), self.desk.sticky_objects()), (Vec::new(), Vec::new()));
    }
}

impl Site for Fleet {
    fn call(&self, verb: &str, worker: usize, pod: &str, answer: &Value) -> (Command, Value) {
        let node = worker % NODES;
        if pod.is_empty() {
            let network = self.network(node, json!({"ranges": [{"subnet": RANGE}]}));
            return (self.worlds[node].command(verb, ""), network);
        }
        let _on = self.power[node].read().unwrap();
        let sandbox = self.sandbox(verb, pod);
        let keep = name_of(pod).map_or("", keep_of);
        let (command, mut network) = self.call_for(verb, pod, &sandbox, keep);
        if verb == "CHECK" {
            network["prevResult"] = answer.clone();
        }
        (command, network)
    }

    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let mut leases: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        let plain =
            self.desk.objects().held().into_iter().map(|held| (held.entry.id, held.address));
        let plain = plain.filter(|(id, _)| !id.starts_with("sticky:"));
        let named = self.desk.sticky_objects().into_iter().filter_map(|(_, object)| {
            let container = object["spec"]["holder"]["container"].as_str()?.to_owned();
            Some((container, object["spec"]["address"].as_str()?.parse().unwrap()))
        });
        for (container, address) in plain.chain(named) {
            leases.entry(container).or_default().insert(address);
        }
        leases
    }

    fn collectors(&self) -> Vec<usize> {
        (0..NODES).collect()
    }

    fn is_quiet_within(&self, time: Duration) -> bool {
        self.worlds.iter().all(|world| world.is_quiet_within(time))
    }

    fn about(&self, container: &str) -> String {
        let record = self.worlds[node_of(pod_of(container))].record(container);
        std::fs::read_to_string(&record).unwrap_or_else(|error| error.to_string())
    }

    fn settled(&self, add: &Call) -> u64 {
        let late = if add.outcome == Outcome::Unknown { LATE } else { Duration::ZERO };
        add.ended + late.as_nanos() as u64
    }
}

/// The worker and the place of a pod, as in `w3-1`.
fn parts(pod: &str) -> (usize, usize) {
    let (worker, place) = pod[1..].split_once('-').unwrap();
    (worker.parse().unwrap(), place.parse().unwrap())
}

pub fn node_of(pod: &str) -> usize {
    parts(pod).0 % NODES
}

/// The number of a pod's name, which a pod of another node has, too.
pub fn name_of(pod: &str) -> Option<usize> {
    let (worker, place) = parts(pod);
    (place < 2).then_some((worker + place) % WORKERS)
}

pub fn keep_of(name: usize) -> &'static str {
    KEEPS[name / NODES % KEEPS.len()]
}

/// The pod of a sandbox, as in `w3-1.0`.
pub fn pod_of(container: &str) -> &str {
    container.split('.').next().unwrap()
}
