//! `ipam-da-etcd`, alone and as the chain `ipam-ds-static`, `ipam-da-etcd`, beside a bare process
//! that makes one transaction; in the layout `whereabouts` it first reads the value that it changes.
//!
//! For scale, measured elsewhere and not here: cni-ipam-etcd took 10.3 ms for an ADD, 71 ms for a DEL
//! with 50,000 leases held, and served 1.0 ADD a second to 20 callers.

use ipam_da_etcd::Layout;
use ipam_kit::cni::NetworkName;
use ipam_testkit::etcd::Etcd;
use serde_json::{Value, json};

use crate::caller::callers;
use crate::cluster::{self, CROWD, NODE, Store, TABLES};
use crate::harness::System;
use crate::network::{NETWORK, SUBNET, after, network, pool, pools, spread};
use crate::site::{HELD, Site, Sites, Stage};
use crate::target::Target::{self, Growth, Memory, Rate, RateRatio, Ratio, Size};

/// On our own keys.
pub const NATIVE: System = System {
    name: "etcd",
    title: ", our own keys",
    levels: &HELD,
    held: 10_000,
    runs: 100,
    warm_up: 1,
    start: |stage, held| start(stage, held, "ipam-delegated", "native", "/ipam-delegated"),
    tables: TABLES,
    drawing: Some(cluster::drawing("ipam-da-etcd")),
    crowd: CROWD,
    crowded: 1,
    targets: &[
        Ratio { of: "alone ADD", to: "floor ADD", held: 0, most: [1.4; 2] },
        Ratio { of: "chain ADD", to: "floor ADD", held: 0, most: [2.2, 3.0] },
        Growth { of: "alone ADD", most: 1.2 },
        Growth { of: "chain ADD", most: 1.2 },
        RATE,
        MEMORY[0],
        MEMORY[1],
        SIZE,
    ],
    floor: Some("etcd-floor"),
};

/// On the keys of cni-ipam-etcd, whose program is called `etcd`.
pub const PRESET: System = System {
    title: ", the preset etcd, on cni-ipam-etcd's keys",
    start: |stage, held| start(stage, held, "etcd", "cni-ipam-etcd", "/etcd-cni"),
    drawing: None,
    targets: &[
        Ratio { of: "chain ADD", to: "floor ADD", held: 0, most: [2.4, 3.2] },
        Growth { of: "alone ADD", most: 1.3 },
        Growth { of: "chain ADD", most: 1.3 },
        RATE,
        MEMORY[0],
        MEMORY[1],
        SIZE,
    ],
    ..NATIVE
};

/// On the values of whereabouts, through its preset.
pub const WHEREABOUTS: System = System {
    name: "whereabouts",
    title: ", the preset whereabouts, on its values in etcd",
    levels: &[0, 1_000, 5_000],
    held: 5_000,
    start: |stage, held| start(stage, held, "whereabouts", "whereabouts", "/whereabouts"),
    drawing: None,
    crowded: 3,
    targets: &[
        Ratio { of: "alone ADD", to: "floor ADD", held: 0, most: [1.5; 2] },
        Ratio { of: "alone ADD", to: "floor ADD", held: 1_000, most: [1.5; 2] },
        Ratio { of: "alone ADD", to: "floor ADD", held: 5_000, most: [1.5; 2] },
        RateRatio { of: "alone ADD", to: "floor ADD", least: 0.67 },
        MEMORY[0],
        MEMORY[1],
        SIZE,
    ],
    ..NATIVE
};

const RATE: Target = Rate { of: "chain ADD", least: 250.0 };
const MEMORY: [Target; 2] = [
    Memory { of: "alone", verbs: &["ADD", "DEL", "STATUS"], most: 8192 },
    Memory { of: "chain", verbs: &["ADD", "DEL"], most: 8192 },
];
const SIZE: Target = Size { of: &PROGRAMS, most: 3072 };

const PROGRAMS: [&str; 4] =
    ["ipam-delegated", "ipam-ds-static", "ipam-ds-whereabouts", "ipam-da-etcd"];

/// The pool of the floor in the layout of whereabouts.
const FLOOR_SUBNET: &str = "10.78.0.0/16";

/// The most keys that a server changes at once.
const AT_ONCE: usize = 128;

fn start(stage: &Stage<'_>, held: &[usize], program: &str, layout: &str, prefix: &str) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS);
    let plugins = plugins.link("etcd", "ipam-delegated").link("whereabouts", "ipam-delegated");
    plugins.install(&stage.build.program("etcd-floor"));
    let site = |held: &usize| {
        // As servers run that are not a test's.
        let calm = Etcd::builder().flag("--heartbeat-interval=100").flag("--election-timeout=1000");
        // Each entry of its log has a whole value: 100,000 of them are more than the memory here.
        let server = match layout {
            "whereabouts" => calm.flag("--snapshot-count=1000").start(),
            _ => calm.start(),
        };
        fill(&server, layout, prefix, SUBNET, *held);
        let network = |name: &str, ipam: Value, pool: Value| {
            let mut network = network(ipam, pool);
            network["cniVersion"] = json!("1.1.0");
            network["ipam"]["stateDir"] = json!(stage.state().join(format!("{name}-{held}")));
            network
        };
        let etcd = json!({"endpoints": [server.endpoint()], "layout": layout});
        // The presets are configured as the plugins whose places they take.
        let (chain, keys) = match program {
            "whereabouts" => (json!({"etcd_host": server.endpoint()}), json!({"range": SUBNET})),
            "etcd" => (json!({"etcdConfig": {"etcdURL": server.url()}}), pool()),
            _ => {
                let delegates = ["ipam-ds-static", "ipam-da-etcd"];
                (json!({"delegates": delegates, "etcd": etcd}), pool())
            }
        };
        let mut chain = network("chain", chain, keys);
        chain["ipam"]["type"] = json!(program);
        let alone = network("alone", json!({"type": "ipam-da-etcd", "etcd": etcd}), pool());
        let floor = match layout {
            "whereabouts" => value_floor(&server, prefix, *held),
            _ => floor(&server, prefix),
        };
        let callers = callers([
            ("floor", plugins.tool("etcd-floor", floor)),
            ("alone", plugins.plugin(after(alone, pools()))),
            ("chain", plugins.plugin(chain)),
        ]);
        Box::new(Store { callers, pools: None, _server: Box::new(server) }) as Box<dyn Site>
    };
    held.iter().map(site).collect()
}

/// Leases as if `ipam-da-etcd`, or the plugin whose layout it is, had given them.
fn fill(server: &Etcd, layout: &str, prefix: &str, subnet: &str, held: usize) {
    let layout = Layout::named(layout).unwrap();
    let network = NetworkName::parse(NETWORK).unwrap();
    let addresses = spread(held).into_iter().map(Into::into);
    let subnet = subnet.parse().unwrap();
    let pairs = ipam_da_etcd::fill::pairs(layout, prefix, &network, subnet, addresses);
    pairs.chunks(AT_ONCE).for_each(|pairs| server.requests().put_all(pairs).unwrap());
}

/// The arguments of `etcd-floor`, with keys and a value like the delegate's.
fn floor(server: &Etcd, prefix: &str) -> Vec<String> {
    let network = format!("{prefix}/networks/floor");
    vec![
        "VERB".to_owned(),
        server.url(),
        format!("{network}/owners/{NODE}/CONTAINER/eth0"),
        format!("{network}/leases/4/CONTAINER"),
        floor_owner(),
    ]
}

/// The same in the layout of whereabouts, with a pool of its own in which as much is held.
fn value_floor(server: &Etcd, prefix: &str, held: usize) -> Vec<String> {
    fill(server, "whereabouts", prefix, FLOOR_SUBNET, held);
    vec![
        "VERB".to_owned(),
        server.url(),
        format!("{prefix}/ipam-delegated/owners/CONTAINER/{NODE}/floor/eth0"),
        format!("{prefix}/{FLOOR_SUBNET}"),
        floor_owner(),
        "10.77.0.1 CONTAINER".to_owned(),
    ]
}

fn floor_owner() -> String {
    let lease = json!({
        "leases": 1, "address": "10.77.0.2/16", "gateway": "10.77.0.1",
        "taken": 1_700_000_000_000_u64,
    });
    cluster::owner(lease).to_string()
}
