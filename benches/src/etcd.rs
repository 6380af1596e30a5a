//! `ipam-da-etcd`, alone and as the chain `ipam-ds-static`, `ipam-da-etcd`, beside a bare process
//! that makes one transaction.
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
use crate::target::Target::{self, Growth, Memory, Rate, Ratio, Size};

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

const RATE: Target = Rate { of: "chain ADD", least: 250.0 };
const MEMORY: [Target; 2] = [
    Memory { of: "alone", verbs: &["ADD", "DEL", "STATUS"], most: 8192 },
    Memory { of: "chain", verbs: &["ADD", "DEL"], most: 8192 },
];
const SIZE: Target = Size { of: &PROGRAMS, most: 3072 };

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-etcd"];

/// The most keys that a server changes at once.
const AT_ONCE: usize = 128;

fn start(stage: &Stage<'_>, held: &[usize], program: &str, layout: &str, prefix: &str) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS).link("etcd", "ipam-delegated");
    plugins.install(&stage.build.program("etcd-floor"));
    let site = |held: &usize| {
        // As servers run that are not a test's.
        let calm = Etcd::builder().flag("--heartbeat-interval=100").flag("--election-timeout=1000");
        let server = calm.start();
        fill(&server, layout, prefix, *held);
        let network = |name: &str, ipam: Value| {
            let mut network = network(ipam, pool());
            network["cniVersion"] = json!("1.1.0");
            network["ipam"]["stateDir"] = json!(stage.state().join(format!("{name}-{held}")));
            network
        };
        let etcd = json!({"endpoints": [server.endpoint()], "layout": layout});
        let chain = if program == "ipam-delegated" {
            let delegates = ["ipam-ds-static", "ipam-da-etcd"];
            json!({"type": program, "delegates": delegates, "etcd": etcd})
        } else {
            // As it was written for the plugin whose place the preset takes.
            json!({"type": program, "etcdConfig": {"etcdURL": server.url()}})
        };
        let alone = network("alone", json!({"type": "ipam-da-etcd", "etcd": etcd}));
        let callers = callers([
            ("floor", plugins.tool("etcd-floor", floor(&server, prefix))),
            ("alone", plugins.plugin(after(alone, pools()))),
            ("chain", plugins.plugin(network("chain", chain))),
        ]);
        Box::new(Store { callers, pools: None, _server: Box::new(server) }) as Box<dyn Site>
    };
    held.iter().map(site).collect()
}

/// Leases as if `ipam-da-etcd`, or the plugin whose layout it is, had given them.
fn fill(server: &Etcd, layout: &str, prefix: &str, held: usize) {
    let layout = Layout::named(layout).unwrap();
    let network = NetworkName::parse(NETWORK).unwrap();
    let addresses = spread(held).into_iter().map(Into::into);
    let subnet = SUBNET.parse().unwrap();
    let pairs = ipam_da_etcd::fill::pairs(layout, prefix, &network, subnet, addresses);
    pairs.chunks(AT_ONCE).for_each(|pairs| server.requests().put_all(pairs).unwrap());
}

/// The arguments of `etcd-floor`, with keys and a value like the delegate's.
fn floor(server: &Etcd, prefix: &str) -> Vec<String> {
    let network = format!("{prefix}/networks/floor");
    let lease = json!({
        "leases": 1, "address": "10.77.0.2/16", "gateway": "10.77.0.1",
        "taken": 1_700_000_000_000_u64,
    });
    vec![
        "VERB".to_owned(),
        server.url(),
        format!("{network}/owners/{NODE}/CONTAINER/eth0"),
        format!("{network}/leases/4/CONTAINER"),
        cluster::owner(lease).to_string(),
    ]
}
