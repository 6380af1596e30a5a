//! `ipam-da-consul`, alone and as the chain `ipam-ds-static`, `ipam-da-consul`, beside a bare
//! process that makes one transaction, and beside passcod's chain where `IPAM_DELEGATED_ANCESTOR`
//! names the folder with its programs.
//!
//! For scale, measured elsewhere and not here: passcod's chain took 17 ms for an ADD, 777 ms with 50,000
//! leases held, and served 58 a second to 20 callers, of which it failed 60 of 100.

use std::path::Path;

use ipam_kit::cni::NetworkName;
use ipam_testkit::consul::{Consul, encode};
use serde_json::{Value, json};

use crate::caller::callers;
use crate::cluster::{self, CROWD, NODE, Store, TABLES};
use crate::harness::System;
use crate::network::{NETWORK, SUBNET, after, network, spread};
use crate::site::{HELD, Site, Sites, Stage};
use crate::target::Target::{Growth, Memory, Rate, Ratio, Size};

pub const SYSTEM: System = System {
    name: "consul",
    title: "",
    levels: &HELD,
    held: 10_000,
    runs: 100,
    warm_up: 1,
    start,
    tables: TABLES,
    drawing: Some(cluster::drawing("ipam-da-consul")),
    crowd: CROWD,
    crowded: 1,
    targets: &[
        Ratio { of: "alone ADD", to: "floor ADD", held: 0, most: [1.5; 2] },
        Growth { of: "alone ADD", most: 1.2 },
        Growth { of: "chain ADD", most: 1.2 },
        Rate { of: "chain ADD", least: 250.0 },
        Memory { of: "alone", verbs: &["ADD", "DEL"], most: 6 * 1024 },
        Memory { of: "chain", verbs: &["ADD", "DEL"], most: 6 * 1024 },
        Size { of: &["ipam-da-consul"], most: 2560 },
    ],
    floor: Some("consul-floor"),
};

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-consul"];

const POOL: &str = "bench";

fn start(stage: &Stage<'_>, held: &[usize]) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS);
    plugins.install(&stage.build.program("consul-floor"));
    let ancestor = std::env::var_os("IPAM_DELEGATED_ANCESTOR").map(|folder| {
        let plugins = stage.plugins("ancestor", &[]);
        PROGRAMS.iter().for_each(|name| plugins.install(&Path::new(&folder).join(name)));
        plugins
    });
    if ancestor.is_none() {
        println!("without passcod's chain: IPAM_DELEGATED_ANCESTOR names no folder\n");
    }
    let site = |held: &usize| {
        let server = Consul::start();
        fill(&server, *held);
        let folder = |name: &str| stage.state().join(format!("{name}-{held}"));
        let network = |name: &str, ipam: Value| {
            let pools = json!([{"name": POOL}]);
            let keys =
                json!({"stateDir": folder(name), "consul_servers": [server.url()], "pools": pools});
            network(ipam, keys)
        };
        let delegates = ["ipam-ds-static", "ipam-da-consul"];
        let chain = network("chain", json!({"type": "ipam-delegated", "delegates": delegates}));
        let alone = network("alone", json!({"type": "ipam-da-consul"}));
        let mut callers = callers([
            ("floor", plugins.tool("consul-floor", floor(&server))),
            ("alone", plugins.plugin(after(alone, json!([{"name": POOL}])))),
            ("chain", plugins.plugin(chain.clone())),
        ]);
        let ancestor = ancestor.as_ref().map(|plugins| plugins.plugin(chain));
        callers.extend(ancestor.map(|caller| ("passcod's chain".to_owned(), caller)));
        let pools = Some(folder("alone").join("consul/pools"));
        Box::new(Store { callers, pools, _server: Box::new(server) }) as Box<dyn Site>
    };
    held.iter().map(site).collect()
}

/// The pool, and leases as if `ipam-da-consul` had given them.
fn fill(server: &Consul, held: usize) {
    let network = NetworkName::parse(NETWORK).unwrap();
    let addresses = spread(held).into_iter().map(Into::into);
    let subnet = SUBNET.parse().unwrap();
    for body in ipam_da_consul::fill::transactions(&network, POOL, subnet, addresses) {
        server.ask("PUT", "txn", body.as_bytes()).success();
    }
}

/// The arguments of `consul-floor`, by which it sends what the delegate does: to take an address of
/// a pool whose ranges are as they were, and to give it back.
fn floor(server: &Consul) -> Vec<String> {
    let taken = 1_700_000_000_000_u64;
    let lease = json!({"address": "10.77.0.2/16", "pool": POOL, "taken": taken});
    let owner = encode(&cluster::owner(json!({"leases": [lease]})).to_string());
    let holder = json!({"target": "CONTAINER", "ifname": "eth0", "node": NODE, "network": NETWORK,
        "time": taken, "generation": 1, "leases": 1});
    let definition = format!("ipam/{POOL}");
    let ranges = server.entry(&definition).unwrap().modified;
    let keys = ["ipam/floor/CONTAINER", &format!("ipam/.owners/floor/{NODE}/CONTAINER/eth0")];
    let mark = format!("ipam/.owners/floor/.nodes/{NODE}");
    let claim = json!([
        {"KV": {"Verb": "check-index", "Key": definition, "Index": ranges}},
        {"KV": {"Verb": "cas", "Key": keys[0], "Index": 0, "Value": encode(&holder.to_string())}},
        {"KV": {"Verb": "cas", "Key": keys[1], "Index": 0, "Value": owner}},
        {"KV": {"Verb": "get-tree", "Key": mark}},
        {"KV": {"Verb": "set", "Key": mark, "Value": encode(&format!("{taken} bench-1/eth0 1"))}},
    ]);
    let release = Value::from_iter(keys.map(|key| json!({"KV": {"Verb": "delete", "Key": key}})));
    ["VERB", &server.endpoint(), &claim.to_string(), &release.to_string()].map(str::to_owned).into()
}
