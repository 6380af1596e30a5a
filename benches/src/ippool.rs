//! `ipam-da-kube`, alone, as the chain `ipam-ds-static`, `ipam-da-kube` and as the preset
//! `whereabouts`, under whereabouts' CRDs and under ours, beside a bare process that sends the same
//! requests, and beside one that sends those of whereabouts 0.9.4.

mod requests;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use ipam_testkit::kube::{Kube, Kubeconfig, Material};
use ipam_testkit::whereabouts::{Crds, Objects, Release};
use serde_json::{Map, Value, json};

use self::requests::{Requests, old, own};
use crate::caller::{Caller, Callers, Plugins, callers};
use crate::cluster::recorded;
use crate::harness::System;
use crate::kube::LoginFiles;
use crate::network::{SUBNET, after, first, network, pool, pools};
use crate::site::{Site, Sites, Stage, Turn};
use crate::table::{Row, Table};
use crate::target::Target::{Memory, MemoryAtNone, Rate, Ratio, Size};

pub const SYSTEM: System = System {
    name: "ippool",
    title: "",
    levels: &[0, 1_000, 5_000],
    held: 5_000,
    runs: 60,
    warm_up: 2,
    start,
    tables: &[Table::Held(&[
        ("selector ADD", None),
        ("preset's selector ADD", Some("selector ADD")),
        ("floor ADD", None),
        ("alone ADD", Some("floor ADD")),
        ("chain ADD", Some("floor ADD")),
        ("preset ADD", Some("chain ADD")),
        ("whereabouts ADD", Some("floor ADD")),
        ("floor, our CRD ADD", None),
        ("alone, our CRD ADD", Some("floor, our CRD ADD")),
        ("floor DEL", None),
        ("alone DEL", Some("floor DEL")),
        ("DEL without a record", None),
        ("chain DEL", Some("floor DEL")),
        ("preset DEL", Some("chain DEL")),
        ("whereabouts DEL", Some("floor DEL")),
        ("floor, our CRD DEL", None),
        ("alone, our CRD DEL", Some("floor, our CRD DEL")),
    ])],
    drawing: None,
    crowd: &["floor", "alone", "chain", "floor, our CRD", "alone, our CRD"],
    crowded: 1,
    targets: &[
        Ratio { of: "alone ADD", to: "floor ADD", held: 0, most: [1.4; 2] },
        Ratio { of: "alone ADD", to: "floor ADD", held: 5_000, most: [1.2; 2] },
        Ratio { of: "alone, our CRD ADD", to: "floor, our CRD ADD", held: 0, most: [1.4; 2] },
        Ratio { of: "alone, our CRD ADD", to: "floor, our CRD ADD", held: 5_000, most: [1.2; 2] },
        Ratio { of: "alone, our CRD ADD", to: "whereabouts ADD", held: 5_000, most: [0.7; 2] },
        Ratio { of: "preset's selector ADD", to: "selector ADD", held: 0, most: [1.2; 2] },
        Ratio { of: "preset ADD", to: "chain ADD", held: 0, most: [1.1; 2] },
        Rate { of: "alone DEL", least: 50.0 },
        MemoryAtNone { of: "alone", verbs: &["ADD", "DEL", "STATUS"], most: 8 * 1024 },
        Memory { of: "alone", verbs: &["ADD", "DEL", "STATUS"], most: 24 * 1024 },
        Size { of: &["ipam-da-kube"], most: 3072 },
    ],
    floor: Some("kube-floor"),
};

const PROGRAMS: [&str; 4] =
    ["ipam-delegated", "ipam-ds-static", "ipam-ds-whereabouts", "ipam-da-kube"];

/// Calls that come at once: pods of a node that starts, and of one that is drained.
const STARTED: usize = 100;
const DRAINED: usize = 250;

/// Pools with as many addresses held, on both servers, and who uses them.
struct Clusters {
    callers: Callers,
    /// The callers of the pools with the fewest addresses held.
    fewest: Rc<Callers>,
    _servers: Rc<[Cluster; 2]>,
}

/// A server, and the files of a login to it.
struct Cluster {
    kube: Kube,
    login: LoginFiles,
}

fn start(stage: &Stage<'_>, held: &[usize]) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS).link("whereabouts", "ipam-delegated");
    plugins.install(&stage.build.program("kube-floor"));
    let servers = Rc::new(["whereabouts", "shipped"].map(|crds| Cluster::start(stage, crds)));
    let mut fewest = None;
    let site = |held: &usize| {
        let [theirs, ours] = &*servers;
        let mut all = Callers::new();
        for (cluster, end) in [(theirs, ""), (ours, ", our CRD")] {
            let folder = stage.state().join(format!("{held}{end}"));
            let namespace = format!("own-{held}");
            cluster.create_pool(&namespace, *held);
            let some = callers([
                ("floor", cluster.floor(&plugins, own(&namespace))),
                ("alone", plugins.plugin(cluster.alone(&namespace, folder.join("alone")))),
                ("chain", plugins.plugin(cluster.chain(&namespace, folder.join("chain")))),
            ]);
            all.extend(some.into_iter().map(|(name, caller)| (format!("{name}{end}"), caller)));
        }
        let own = format!("own-{held}");
        let pairs = [
            ("preset", theirs.old_network(stage, "whereabouts", &own)),
            ("preset's selector", first(theirs.old_network(stage, "ipam-ds-whereabouts", &own))),
            ("selector", first(network(json!({"type": "ipam-ds-static"}), pool()))),
        ];
        all.extend(callers(pairs.map(|(name, network)| (name, plugins.plugin(network)))));
        let namespace = format!("old-{held}");
        theirs.create_pool(&namespace, *held);
        requests::create_lease(&theirs.kube, &namespace);
        all.insert("whereabouts".to_owned(), theirs.floor(&plugins, old(&namespace)));
        let fewest = Rc::clone(fewest.get_or_insert_with(|| Rc::new(all.clone())));
        Box::new(Clusters { callers: all, fewest, _servers: Rc::clone(&servers) }) as Box<dyn Site>
    };
    held.iter().map(site).collect()
}

impl Cluster {
    fn start(stage: &Stage<'_>, crds: &str) -> Self {
        let kube = Kube::start();
        match crds {
            "shipped" => Crds::shipped().install(&kube),
            _ => Release::V094.crds().install(&kube),
        }
        let login = LoginFiles::write(&kube, &kube.admin(), &stage.state().join(crds), &["token"]);
        Self { kube, login }
    }

    /// Makes the pool as if whereabouts had given its first addresses, one after another.
    fn create_pool(&self, namespace: &str, held: usize) {
        let metadata = json!({"name": namespace});
        self.kube.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        let entry = |n: usize| {
            let (id, podref) = (format!("{n:064x}"), format!("default/web-5d9c7b8f6d-{n:05}"));
            (n.to_string(), json!({"id": id, "podref": podref, "ifname": "net1"}))
        };
        let entries: Map<String, Value> = (1..=held).map(entry).collect();
        Objects::of(&self.kube, namespace).create_pool("", SUBNET, &entries.into());
    }

    fn floor(&self, plugins: &Plugins, [add, del]: [Requests; 2]) -> Caller {
        let LoginFiles { authority, own, .. } = &self.login;
        let mut arguments = vec!["VERB".to_owned(), self.kube.endpoint()];
        arguments.extend([add.to_string(), del.to_string(), authority.clone()]);
        arguments.extend_from_slice(own);
        plugins.tool("kube-floor", arguments)
    }

    fn alone(&self, namespace: &str, state: PathBuf) -> Value {
        after(self.network(json!({"type": "ipam-da-kube"}), namespace, state), pools())
    }

    fn chain(&self, namespace: &str, state: PathBuf) -> Value {
        let delegates = ["ipam-ds-static", "ipam-da-kube"];
        let ipam = json!({"type": "ipam-delegated", "delegates": delegates});
        self.network(ipam, namespace, state)
    }

    /// A network of whereabouts: the namespace is that of the login's context.
    fn old_network(&self, stage: &Stage<'_>, program: &str, namespace: &str) -> Value {
        let folder = stage.state().join(format!("{namespace} {program}"));
        fs::create_dir(&folder).unwrap();
        let login = Kubeconfig::of(&self.kube, &self.kube.admin()).material(Material::Files);
        let context = json!({"contexts": [{"context": {"namespace": namespace}}]});
        let kubeconfig = login.more(&context).write(&folder.join("kubeconfig"));
        let ipam =
            json!({"type": program, "range": SUBNET, "kubernetes": {"kubeconfig": kubeconfig}});
        let mut network =
            network(ipam, json!({"routes": [{"dst": "0.0.0.0/0"}], "stateDir": folder}));
        network["cniVersion"] = json!("1.1.0");
        network
    }

    fn network(&self, ipam: Value, namespace: &str, state: PathBuf) -> Value {
        let kube = json!({"kubeconfig": self.login.kubeconfig, "namespace": namespace});
        let mut network = network(ipam, pool());
        network["cniVersion"] = json!("1.1.0");
        network["ipam"]["kube"] = kube;
        network["ipam"]["stateDir"] = json!(state);
        network
    }
}

impl Site for Clusters {
    fn callers(&self) -> &Callers {
        &self.callers
    }

    fn round(&self, turn: &mut Turn<'_>) {
        for end in ["", ", our CRD"] {
            turn.pair(&self.callers, &format!("floor{end}"));
            let alone = &self.callers[&format!("alone{end}")];
            let (time, answer) = alone.answer("ADD", turn.container);
            turn.push(&format!("alone{end} ADD"), time);
            let recorded = alone.given(recorded(&alone.network, &answer));
            turn.push(&format!("alone{end} DEL"), recorded.call("DEL", turn.container));
        }
        let alone = &self.callers["alone"];
        alone.call("ADD", turn.container);
        turn.push("DEL without a record", alone.call("DEL", turn.container));
        for name in ["selector", "preset's selector"] {
            turn.push(&format!("{name} ADD"), self.callers[name].call("ADD", turn.container));
        }
        for name in ["chain", "preset", "whereabouts"] {
            turn.pair(&self.callers, name);
        }
    }

    /// As many calls at once as a node may have that starts or is drained.
    fn more(&self, _stage: &Stage<'_>) -> Vec<Row> {
        let mut rows = Vec::new();
        for end in ["", ", our CRD"] {
            let chain = format!("chain{end}");
            for (site, held) in [(&*self.fewest, "fewest"), (&self.callers, "most")] {
                let caller = patient(&site[&chain]);
                let containers = at_once(STARTED, |container| caller.call("ADD", container));
                at_once(STARTED, |container| caller.call("DEL", container));
                let what = format!("{STARTED} ADDs of {chain} at once, {held} leases held");
                let given = containers.len();
                rows.push(Row::new(what, format!("{given} succeed"), given == STARTED));
            }
            let alone = format!("alone{end}");
            let caller = &self.fewest[&alone];
            let given = at_once(DRAINED, |container| caller.answer("ADD", container).1);
            let began = Instant::now();
            let gone = at_once(DRAINED, |container| {
                caller.given(recorded(&caller.network, &given[container])).call("DEL", container)
            });
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            let rate = gone.len() as f64 / began.elapsed().as_secs_f64();
            let what = format!("{DRAINED} DELs of {alone} at once, a second ≥ 50, fewest held");
            let met = gone.len() == DRAINED && rate >= 50.0;
            rows.push(Row::new(what, format!("{rate:.0}"), met));
        }
        rows
    }
}

/// The same with the two minutes that whereabouts gives an ADD: the server takes seconds for each
/// round of patches of a large pool.
fn patient(caller: &Caller) -> Caller {
    let mut network = caller.network.clone();
    network["ipam"]["timeout"] = json!("2m");
    network["ipam"]["kube"]["timeout"] = json!("2m");
    caller.given(network)
}

/// A call for each of as many containers, all at once. Returns those that succeed.
fn at_once<R: Send>(count: usize, call: impl Fn(&str) -> R + Sync) -> BTreeMap<String, R> {
    std::thread::scope(|scope| {
        let call = &call;
        let containers = (0..count).map(|number| format!("once-{number}"));
        let spawn = |container: String| scope.spawn(move || (call(&container), container));
        let calls: Vec<_> = containers.map(spawn).collect();
        let ended = calls.into_iter().filter_map(|call| call.join().ok());
        ended.map(|(result, container)| (container, result)).collect()
    })
}
