//! Nodes that move over from whereabouts to the preset `whereabouts` one by one, and back, while
//! their pods start and end: no address ever has two holders, and nothing is left in the end.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::history::workload::now;
use crate::history::{Call, Outcome, Verb, judge};
use crate::node::addresses;
use crate::node_site::by;
use crate::world::{Host, World, binary, start, wait};

/// How many pods a node has. Multus strips the configuration on the DEL of those with an even
/// number.
pub const PODS: usize = 4;

/// How long a node does nothing between two pods: an ADD of whereabouts fails if others change its
/// pool without a gap.
const PAUSE: Duration = Duration::from_millis(150);

/// How long a node may take for some pods, or whereabouts for a DEL that works.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where whereabouts has its flat file and its login.
pub const SETTINGS: &str = "/etc/cni/net.d/whereabouts.d";

/// Whereabouts on a node.
pub trait OldProgram: Sync {
    /// The interfaces of the pod in this place of the node.
    fn ifnames(&self, place: usize) -> &'static [&'static str];

    fn add(&self, container: &str, ifname: &str) -> Result<Vec<IpAddr>, String>;

    /// A DEL, which succeeds also where it fails.
    fn del(&self, container: &str, ifname: &str);
}

/// What the programs of all nodes write into.
pub trait Store: Sync {
    /// Whether it has an entry of an attachment.
    fn holds(&self, container: &str, ifname: &str) -> bool;

    /// Fails if an address is held twice.
    fn assert_distinct(&self);

    /// Fails if anything is held.
    fn assert_empty(&self);
}

/// Nodes of a cluster with a network, and what was seen of their calls.
pub struct Fleet<S> {
    pub nodes: Vec<Node>,
    pub store: S,
    calls: Mutex<Vec<Call>>,
    endings: Mutex<Vec<Ending>>,
    /// All nodes have moved back, or one has failed: no pod starts any more.
    is_over: AtomicBool,
}

/// A node with two programs, of which its runtime calls one.
pub struct Node {
    pub host: Host,
    pub world: World,
    old: Box<dyn OldProgram>,
    network: Value,
    has_preset: AtomicBool,
    /// How many pods it has replaced since it has this program.
    replaced: AtomicUsize,
}

/// Ends a fleet when it is dropped, also by a panic.
struct EndOf<'a>(&'a AtomicBool);

/// What makes and releases attachments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    Old,
    Preset,
}

/// An attachment of a pod.
struct Attachment {
    container: String,
    ifname: &'static str,
    made_by: Program,
    /// What the preset answered.
    result: Value,
}

/// The node and the interface of an attachment that was released, what made it and what released
/// it, and whether Multus had stripped the configuration.
type Ending = (usize, &'static str, Program, Program, bool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<S: Store> Fleet<S> {
    pub fn new(nodes: Vec<Node>, store: S) -> Self {
        Self {
            nodes,
            store,
            calls: Mutex::default(),
            endings: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Lets all nodes work while they move over and back, each after so many pods.
    pub fn run(&self, pods: usize) {
        thread::scope(|scope| {
            for number in 0..self.nodes.len() {
                scope.spawn(move || self.replace_pods(number));
            }
            self.move_nodes(pods);
        });
    }

    /// Fails if two held an address at a time, if anything is left, or if whereabouts has not met
    /// what the preset made, and the preset what whereabouts made, on some node.
    #[track_caller]
    pub fn assert_sound(&self) {
        let (violations, _) = judge(&self.calls.lock().unwrap(), |add| add.ended);
        assert!(violations.is_empty(), "{violations:#?}");
        let endings = self.endings.lock().unwrap();
        for (number, node) in self.nodes.iter().enumerate() {
            for ifname in node.old.ifnames(PODS - 1) {
                for ending in [
                    (number, *ifname, Program::Old, Program::Preset, true),
                    (number, *ifname, Program::Old, Program::Preset, false),
                    (number, *ifname, Program::Preset, Program::Old, false),
                ] {
                    assert!(endings.contains(&ending), "{ending:?} is missing");
                }
            }
            // The fork leaves reservations of the preset.
            node.collect();
        }
        self.store.assert_empty();
    }

    /// Replaces the pods of a node, one after the other.
    fn replace_pods(&self, number: usize) {
        let _end = EndOf(&self.is_over);
        let mut pods: [Vec<Attachment>; PODS] = Default::default();
        for round in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let place = round % PODS;
            self.end_pod(number, place, std::mem::take(&mut pods[place]));
            pods[place] = self.start_pod(number, place, &format!("n{number}-{round}"));
            self.nodes[number].replaced.fetch_add(1, Ordering::Relaxed);
            sleep(PAUSE);
        }
        for (place, pod) in pods.into_iter().enumerate() {
            self.end_pod(number, place, pod);
        }
    }

    /// Attaches a pod. If an ADD fails, the runtime detaches it at once.
    fn start_pod(&self, number: usize, place: usize, container: &str) -> Vec<Attachment> {
        let node = &self.nodes[number];
        let mut pod = Vec::new();
        for ifname in node.old.ifnames(place) {
            let (began, made_by) = (now(), node.program());
            let container = container.to_owned();
            let mut attachment = Attachment { container, ifname, made_by, result: Value::Null };
            let outcome = node.add(&mut attachment);
            let has_failed = outcome == Outcome::Unknown;
            self.note(&attachment, Verb::Add, began, outcome);
            pod.push(attachment);
            if has_failed {
                self.end_pod(number, place, std::mem::take(&mut pod));
                break;
            }
        }
        pod
    }

    /// Detaches a pod, the last interface first, by the program that the node has now.
    fn end_pod(&self, number: usize, place: usize, pod: Vec<Attachment>) {
        let node = &self.nodes[number];
        for attachment in pod.into_iter().rev() {
            let (began, program) = (now(), node.program());
            let Attachment { container, ifname, made_by, .. } = &attachment;
            let is_stripped = program == Program::Preset && place.is_multiple_of(2);
            node.del(&attachment, program, is_stripped);
            // The reconciler of whereabouts releases what its DELs leave.
            let give_up = Instant::now() + PATIENCE;
            while program == Program::Old && self.store.holds(container, ifname) {
                assert!(Instant::now() < give_up, "whereabouts leaves {container}");
                node.del(&attachment, program, is_stripped);
            }
            self.note(&attachment, Verb::Del, began, Outcome::Done(BTreeSet::new()));
            let ending = (number, *ifname, *made_by, program, is_stripped);
            self.endings.lock().unwrap().push(ending);
        }
    }

    fn note(&self, attachment: &Attachment, verb: Verb, began: u64, outcome: Outcome) {
        let owner = format!("{}/{}", attachment.container, attachment.ifname);
        self.calls.lock().unwrap().push(Call { owner, verb, began, ended: now(), outcome });
    }

    /// Moves all nodes over one by one, and back, each after it has replaced so many pods. So all
    /// programs work at once for a while.
    fn move_nodes(&self, pods: usize) {
        let _end = EndOf(&self.is_over);
        for has_preset in [true, false] {
            for node in &self.nodes {
                self.wait_for(node, pods);
                node.has_preset.store(has_preset, Ordering::Relaxed);
                node.replaced.store(0, Ordering::Relaxed);
                self.wait_for(node, pods / 2);
                self.store.assert_distinct();
            }
        }
        self.nodes.iter().for_each(|node| self.wait_for(node, pods));
    }

    /// Waits until a node has replaced so many pods.
    #[track_caller]
    fn wait_for(&self, node: &Node, pods: usize) {
        let give_up = Instant::now() + PATIENCE;
        while node.replaced.load(Ordering::Relaxed) < pods {
            let program = node.program();
            assert!(!self.is_over.load(Ordering::Relaxed), "{program:?}: a node has failed");
            assert!(Instant::now() < give_up, "{program:?} replaces no pods");
            sleep(Duration::from_millis(5));
        }
    }
}

impl Node {
    /// A node that runs whereabouts with this network and a flat file, with our programs and the
    /// allocator of its store.
    pub fn new(
        old: impl OldProgram + 'static,
        allocator: &str,
        network: &Value,
        flat_file: &Value,
    ) -> Self {
        let (host, world) = (Host::new(), World::new());
        for program in ["ipam-ds-whereabouts", allocator] {
            world.install(&binary(program));
        }
        world.install_as(&binary("ipam-delegated"), "whereabouts");
        host.shell(&format!("mkdir -p {SETTINGS}"));
        let path = host.path(SETTINGS).join("whereabouts.conf");
        std::fs::write(path, flat_file.to_string()).unwrap();
        Self {
            host,
            world,
            old: Box::new(old),
            network: network.clone(),
            has_preset: AtomicBool::new(false),
            replaced: AtomicUsize::new(0),
        }
    }

    fn program(&self) -> Program {
        if self.has_preset.load(Ordering::Relaxed) { Program::Preset } else { Program::Old }
    }

    fn add(&self, attachment: &mut Attachment) -> Outcome {
        let Attachment { container, ifname, made_by, result } = attachment;
        if *made_by == Program::Preset {
            *result = self.call("ADD", container, ifname, &self.network);
            let given = addresses(result);
            return Outcome::Done(given.iter().map(|address| address.parse().unwrap()).collect());
        }
        let added = self.old.add(container, ifname);
        added.map_or(Outcome::Unknown, |given| Outcome::Done(given.into_iter().collect()))
    }

    fn del(&self, attachment: &Attachment, program: Program, is_stripped: bool) {
        let Attachment { container, ifname, result, .. } = attachment;
        if program == Program::Old {
            self.old.del(container, ifname);
            return;
        }
        let mut network = self.network.clone();
        if is_stripped {
            network["ipam"] = json!({"type": "whereabouts"});
        } else if !result.is_null() {
            network["prevResult"] = result.clone();
        }
        self.call("DEL", container, ifname, &network);
    }

    /// A call of the preset that succeeds.
    #[track_caller]
    fn call(&self, verb: &str, container: &str, ifname: &str, network: &Value) -> Value {
        let mut command = self.command(verb, container);
        let args = format!(
            "IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod-{container};\
             K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID=uid-{container}"
        );
        command.env("CNI_ARGS", args).env("CNI_IFNAME", ifname);
        wait(start(command, network)).success()
    }

    fn command(&self, verb: &str, container: &str) -> Command {
        let preset = self.world.path("bin/whereabouts");
        by(self.host.enter(&preset), &self.world.command_of(&preset, verb, container))
    }

    /// GC of the preset, when no attachment is left.
    #[track_caller]
    fn collect(&self) {
        self.host.settings(&json!({"gcGrace": "0s"}));
        let mut network = self.network.clone();
        network["cniVersion"] = "1.1.0".into();
        network["cni.dev/valid-attachments"] = json!([]);
        let mut command = self.command("GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        wait(start(command, &network)).success();
    }
}

/// The network of an unchanged NetworkAttachmentDefinition. With `range_end` the fork gives each
/// address once.
pub fn network() -> Value {
    json!({
        "cniVersion": "0.3.1", "name": "whereabouts-conf", "type": "macvlan",
        "master": "eth0", "mode": "bridge",
        "ipam": {
            "type": "whereabouts", "range": "192.168.2.0/24",
            "range_start": "192.168.2.20", "range_end": "192.168.2.70",
            "gateway": "192.168.2.1",
        },
    })
}
