//! `ipam-da-openwisp`, alone and as the chain `ipam-ds-static`, `ipam-da-openwisp`, beside a bare
//! process that sends the same requests. Most of each time is the server's, in Python.

use ipam_testkit::openwisp::{ORGANIZATION, OpenWisp, TOKEN};
use serde_json::{Value, json};

use crate::caller::callers;
use crate::cluster::{CROWD, Store, TABLES};
use crate::harness::System;
use crate::network::{SUBNET, after, network, spread};
use crate::site::{Site, Sites, Stage};
use crate::target::Target::{Memory, RateRatio, Ratio, Size};

pub const SYSTEM: System = System {
    name: "openwisp",
    title: "",
    levels: &[0, 1_000, 4_000],
    held: 4_000,
    runs: 40,
    warm_up: 2,
    start,
    tables: TABLES,
    drawing: None,
    crowd: CROWD,
    crowded: 1,
    targets: &[
        Ratio { of: "alone ADD", to: "floor ADD", held: 0, most: [1.3; 2] },
        Ratio { of: "alone ADD", to: "floor ADD", held: 4_000, most: [1.3; 2] },
        Ratio { of: "alone DEL", to: "floor DEL", held: 0, most: [1.3; 2] },
        Ratio { of: "chain ADD", to: "floor ADD", held: 0, most: [1.5; 2] },
        RateRatio { of: "alone ADD", to: "floor ADD", least: 0.77 },
        RateRatio { of: "chain ADD", to: "floor ADD", least: 0.67 },
        Memory { of: "alone", verbs: &["ADD", "DEL"], most: 8 * 1024 },
        Size { of: &["ipam-da-openwisp"], most: 2560 },
    ],
    floor: Some("openwisp-floor"),
};

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-openwisp"];

const POOL: &str = "bench";

fn start(stage: &Stage<'_>, held: &[usize]) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS);
    plugins.install(&stage.build.program("openwisp-floor"));
    let site = |held: &usize| {
        let server = OpenWisp::start();
        let subnet = server.subnet(Some(ORGANIZATION), SUBNET, POOL);
        let addresses = spread(*held).into_iter().map(|address| (address.to_string(), "of others"));
        server.records_of(&subnet, addresses);
        let folder = |name: &str| stage.state().join(format!("{name}-{held}"));
        let network = |name: &str, ipam: Value| {
            let openwisp =
                json!({"url": server.url(), "token": TOKEN, "organization": ORGANIZATION});
            let pools = json!([{"name": POOL}]);
            network(ipam, json!({"stateDir": folder(name), "openwisp": openwisp, "pools": pools}))
        };
        let delegates = ["ipam-ds-static", "ipam-da-openwisp"];
        let chain = network("chain", json!({"type": "ipam-delegated", "delegates": delegates}));
        let alone = network("alone", json!({"type": "ipam-da-openwisp"}));
        let id = folder("floor-CONTAINER").display().to_string();
        let floor = ["VERB".to_owned(), server.endpoint(), TOKEN.to_owned(), subnet, id];
        let callers = callers([
            ("floor", plugins.tool("openwisp-floor", floor.into())),
            ("alone", plugins.plugin(after(alone, json!([{"name": POOL}])))),
            ("chain", plugins.plugin(chain)),
        ]);
        Box::new(Store { callers, pools: None, _server: Box::new(server) }) as Box<dyn Site>
    };
    held.iter().map(site).collect()
}
