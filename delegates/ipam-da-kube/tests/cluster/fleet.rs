//! One network of an unchanged NetworkAttachmentDefinition, on nodes that run releases of
//! whereabouts and nodes that run the preset `whereabouts`: while pods start and end, nodes move
//! over one by one, and back. No address ever has two holders, and nothing is left in the end.
//!
//! Every day a small part of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, also under the
//! definitions of whereabouts 0.9.4.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ipam_testkit::history::workload::now;
use ipam_testkit::history::{Call, Outcome, Verb, judge};
use ipam_testkit::kube::{Kube, Kubeconfig};
use ipam_testkit::node_site::by;
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{Crds, Entry, Objects, Release};
use ipam_testkit::world::{Host, World, binary, full_size, start, wait};
use serde_json::{Value, json};

/// How many pods a node has. Multus strips the configuration on the DEL of those with an even
/// number, and attaches those from the third on twice.
const PODS: usize = 4;

/// How long a node does nothing between two pods: an ADD of whereabouts fails if others change its
/// pool without a gap.
const PAUSE: Duration = Duration::from_millis(150);

/// How long a node may take for some pods, or whereabouts for a DEL that works.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where whereabouts has its flat file and its login.
const SETTINGS: &str = "/etc/cni/net.d/whereabouts.d";

/// Nodes of a cluster with a network, and what was seen of their calls.
struct Fleet {
    nodes: Vec<Node>,
    objects: Objects,
    calls: Mutex<Vec<Call>>,
    endings: Mutex<Vec<Ending>>,
    /// All nodes have moved back, or one has failed: no pod starts any more.
    is_over: AtomicBool,
}

/// Ends a fleet when it is dropped, also by a panic.
struct EndOf<'a>(&'a AtomicBool);

/// A node with two programs, of which its runtime calls one.
struct Node {
    host: Host,
    world: World,
    old: Whereabouts,
    release: Release,
    has_preset: AtomicBool,
    /// How many pods it has replaced since it has this program.
    replaced: AtomicUsize,
}

/// What makes and releases attachments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    Old(Release),
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

/// The interface of an attachment that was released, what made it and what released it, and whether
/// Multus had stripped the configuration.
type Ending = (&'static str, Program, Program, bool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Fleet {
    /// A node for each release.
    fn new(kube: &Kube, releases: &[Release]) -> Self {
        let namespace = kube.create_namespace();
        let nodes = releases.iter().map(|release| Node::new(kube, &namespace, *release));
        Self {
            nodes: nodes.collect(),
            objects: Objects::of(kube, &namespace),
            calls: Mutex::default(),
            endings: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Lets all nodes work while they move over and back.
    fn run(&self, pods: usize) {
        thread::scope(|scope| {
            for number in 0..self.nodes.len() {
                scope.spawn(move || self.replace_pods(number));
            }
            self.move_nodes(pods);
        });
    }

    /// Replaces the pods of a node, one after the other.
    fn replace_pods(&self, number: usize) {
        let _end = EndOf(&self.is_over);
        let node = &self.nodes[number];
        let mut pods: [Vec<Attachment>; PODS] = Default::default();
        for round in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let place = round % PODS;
            self.end_pod(node, place, std::mem::take(&mut pods[place]));
            pods[place] = self.start_pod(node, place, &format!("n{number}-{round}"));
            node.replaced.fetch_add(1, Ordering::Relaxed);
            sleep(PAUSE);
        }
        for (place, pod) in pods.into_iter().enumerate() {
            self.end_pod(node, place, pod);
        }
    }

    /// Attaches a pod. If an ADD fails, the runtime detaches it at once.
    fn start_pod(&self, node: &Node, place: usize, container: &str) -> Vec<Attachment> {
        let mut pod = Vec::new();
        for ifname in node.ifnames(place) {
            let (began, made_by) = (now(), node.program());
            let container = container.to_owned();
            let mut attachment = Attachment { container, ifname, made_by, result: Value::Null };
            let outcome = node.add(&mut attachment);
            let has_failed = outcome == Outcome::Unknown;
            self.note(&attachment, Verb::Add, began, outcome);
            pod.push(attachment);
            if has_failed {
                self.end_pod(node, place, std::mem::take(&mut pod));
                break;
            }
        }
        pod
    }

    /// Detaches a pod, the last interface first, by the program that the node has now.
    fn end_pod(&self, node: &Node, place: usize, pod: Vec<Attachment>) {
        for attachment in pod.into_iter().rev() {
            let (began, program) = (now(), node.program());
            let is_stripped = program == Program::Preset && place.is_multiple_of(2);
            node.del(&attachment, program, is_stripped);
            // A DEL of whereabouts succeeds also where it fails: its reconciler releases the rest.
            let give_up = Instant::now() + PATIENCE;
            while program != Program::Preset && self.holds(&attachment) {
                assert!(Instant::now() < give_up, "{program:?} leaves {}", attachment.container);
                node.del(&attachment, program, is_stripped);
            }
            self.note(&attachment, Verb::Del, began, Outcome::Done(BTreeSet::new()));
            let Attachment { ifname, made_by, .. } = attachment;
            self.endings.lock().unwrap().push((ifname, made_by, program, is_stripped));
        }
    }

    /// Whether a pool has an entry of this attachment.
    fn holds(&self, Attachment { container, ifname, .. }: &Attachment) -> bool {
        let is_its = |entry: &Entry| {
            entry.id == *container && entry.ifname.as_ref().is_none_or(|name| name == ifname)
        };
        self.objects.held().iter().any(|held| is_its(&held.entry))
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
                self.objects.assert_distinct();
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

    /// Fails if two held an address at a time, if anything is left, or if a release has not met
    /// what the preset made, and the preset what that release made.
    #[track_caller]
    fn assert_sound(&self) {
        let (violations, _) = judge(&self.calls.lock().unwrap(), |add| add.ended);
        assert!(violations.is_empty(), "{violations:#?}");
        let endings = self.endings.lock().unwrap();
        for node in &self.nodes {
            let old = Program::Old(node.release);
            for ifname in node.ifnames(PODS - 1) {
                for ending in [
                    (*ifname, old, Program::Preset, true),
                    (*ifname, old, Program::Preset, false),
                    (*ifname, Program::Preset, old, false),
                ] {
                    assert!(endings.contains(&ending), "{ending:?} is missing");
                }
            }
            // The fork leaves reservations of the preset.
            node.collect();
        }
        assert_eq!(self.objects.held(), []);
        let mut left = self.objects.reservations();
        // The other ones are of DELs of whereabouts that failed.
        left.retain(|_, object| object["metadata"]["annotations"].is_object());
        assert!(left.is_empty(), "{left:#?}");
    }
}

impl Node {
    /// A node that runs whereabouts, with what its DaemonSet has put there, and our programs.
    fn new(kube: &Kube, namespace: &str, release: Release) -> Self {
        let (host, world) = (Host::new(), World::new());
        for program in ["ipam-ds-whereabouts", "ipam-da-kube"] {
            world.install(&binary(program));
        }
        world.install_as(&binary("ipam-delegated"), "whereabouts");
        host.shell(&format!("mkdir -p {SETTINGS}"));
        let more = json!({"contexts": [{"context": {"namespace": namespace}}]});
        let login = Kubeconfig::of(kube, &kube.admin()).more(&more);
        login.write(&host.path(SETTINGS).join("whereabouts.kubeconfig"));
        let flat_file = json!({
            "datastore": "kubernetes",
            "kubernetes": {"kubeconfig": format!("{SETTINGS}/whereabouts.kubeconfig")},
        });
        fs::write(host.path(SETTINGS).join("whereabouts.conf"), flat_file.to_string()).unwrap();
        let old = Whereabouts::new(release, kube, namespace, &network()["ipam"]);
        Self {
            host,
            world,
            old: old.pause(Duration::from_millis(200)),
            release,
            has_preset: AtomicBool::new(false),
            replaced: AtomicUsize::new(0),
        }
    }

    fn program(&self) -> Program {
        match self.has_preset.load(Ordering::Relaxed) {
            true => Program::Preset,
            false => Program::Old(self.release),
        }
    }

    /// The interfaces of a pod. Up to 0.7 whereabouts releases any interface of a container, so
    /// pods of such nodes have one.
    fn ifnames(&self, place: usize) -> &'static [&'static str] {
        let is_twice = self.release == Release::V094 && place >= PODS / 2;
        if is_twice { &["net1", "net2"] } else { &["net1"] }
    }

    fn add(&self, attachment: &mut Attachment) -> Outcome {
        let Attachment { container, ifname, made_by, result } = attachment;
        if *made_by == Program::Preset {
            *result = self.call("ADD", container, ifname, &network());
            let given = ipam_testkit::node::addresses(result);
            return Outcome::Done(given.iter().map(|address| address.parse().unwrap()).collect());
        }
        let added = self.old.add(container, ifname, &pod(container)).run();
        added.map_or(Outcome::Unknown, |given| Outcome::Done(given.into_iter().collect()))
    }

    fn del(&self, attachment: &Attachment, program: Program, is_stripped: bool) {
        let Attachment { container, ifname, result, .. } = attachment;
        if program != Program::Preset {
            self.old.del(container, ifname, &pod(container)).run().unwrap();
            return;
        }
        let mut network = network();
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
        let mut network = network();
        network["cniVersion"] = "1.1.0".into();
        network["cni.dev/valid-attachments"] = json!([]);
        let mut command = self.command("GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        wait(start(command, &network)).success();
    }
}

/// The network of the NetworkAttachmentDefinition. With `range_end` the fork gives each address
/// once.
fn network() -> Value {
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

fn pod(container: &str) -> String {
    format!("ns/pod-{container}")
}

fn run(crds: &Crds, releases: &[Release], pods: usize) {
    let fleet = Fleet::new(crds.served(), releases);
    fleet.run(pods);
    fleet.assert_sound();
}

#[test]
fn nodes_move_over_and_back_while_pods_start_and_end() {
    // A pod that is being replaced at a move may count for either program.
    let pods = if full_size() { 100 } else { PODS + 1 };
    run(&Crds::shipped(), &[Release::V094, Release::V07, Release::Fork], pods);
    if full_size() {
        run(&Release::V094.crds(), &[Release::V094; 4], pods);
    }
}

#[test]
fn a_fleet_ends_if_a_node_fails_or_an_address_has_two_holders() {
    let fails = |text: &str, plant: fn(&Fleet)| {
        let fleet = Fleet::new(Crds::shipped().served(), &[Release::V094; 2]);
        plant(&fleet);
        let panic = catch_unwind(AssertUnwindSafe(|| fleet.run(2))).unwrap_err();
        let panic = panic.downcast_ref::<String>().unwrap();
        assert!(panic.contains(text), "{panic}");
    };
    fails("a node has failed", |fleet| {
        fs::remove_file(fleet.nodes[0].world.path("bin/ipam-da-kube")).unwrap();
    });
    fails("is held twice", |fleet| {
        let entry = json!({"id": "planted", "podref": "ns/planted", "ifname": "net1"});
        // 192.168.2.200 in two pools.
        fleet.objects.create_pool("", "192.168.2.128/25", &json!({"72": entry}));
        fleet.objects.create_pool("", "192.168.2.192/26", &json!({"8": entry}));
    });
}
