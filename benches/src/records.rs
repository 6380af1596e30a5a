//! What the systems have in common whose leases are records of a central server.

use std::any::Any;

use serde_json::{Value, json};

use crate::caller::callers;
use crate::cluster::{CROWD, Store, TABLES};
use crate::harness::System;
use crate::network::{after, network};
use crate::site::{Site, Sites, Stage};
use crate::target::Target::{self, Memory, RateRatio, Ratio, Size};

/// A system without a server.
pub const SYSTEM: System = System {
    name: "",
    title: "",
    levels: &[0, 1_000, 4_000],
    held: 4_000,
    runs: 40,
    warm_up: 2,
    start: |_, _| Vec::new(),
    tables: TABLES,
    drawing: None,
    crowd: CROWD,
    crowded: 1,
    targets: &[],
    floor: None,
};

/// A server with a subnet, and what its clients are told.
pub struct Central {
    /// The section of `ipam` that names the server.
    pub section: Value,
    /// The subnet's id.
    pub pool: String,
    /// The arguments of the floor between the verb and the file for the record's id.
    pub floor: Vec<String>,
    /// It is stopped when this is dropped.
    pub server: Box<dyn Any>,
}

/// What is asked of a server's delegate.
pub const fn targets(delegate: &'static [&'static str]) -> [Target; 8] {
    [
        Ratio { of: "alone ADD", to: "floor ADD", held: 0, most: [1.3; 2] },
        Ratio { of: "alone ADD", to: "floor ADD", held: 4_000, most: [1.3; 2] },
        Ratio { of: "alone DEL", to: "floor DEL", held: 0, most: [1.3; 2] },
        Ratio { of: "chain ADD", to: "floor ADD", held: 0, most: [1.5; 2] },
        RateRatio { of: "alone ADD", to: "floor ADD", least: 0.77 },
        RateRatio { of: "chain ADD", to: "floor ADD", least: 0.67 },
        Memory { of: "searching", verbs: &["ADD", "DEL"], most: 8 * 1024 },
        Size { of: delegate, most: 2560 },
    ]
}

/// A server for each number of addresses held, with `ipam-da-SERVER` and SERVER`-floor`.
pub fn sites(
    stage: &Stage<'_>,
    held: &[usize],
    server: &str,
    start: impl Fn(usize) -> Central,
) -> Sites {
    let (delegate, floor) = (format!("ipam-da-{server}"), format!("{server}-floor"));
    let plugins = stage.plugins("bin", &["ipam-delegated", "ipam-ds-static", &delegate]);
    plugins.install(&stage.build.program(&floor));
    let site = |held: &usize| {
        let central = start(*held);
        let folder = |name: &str| stage.state().join(format!("{name}-{held}"));
        let pools = json!([{"name": central.pool}]);
        let network = |name: &str, ipam: Value| {
            let keys = json!({"stateDir": folder(name), server: central.section, "pools": pools});
            network(ipam, keys)
        };
        let chain = json!({"type": "ipam-delegated", "delegates": ["ipam-ds-static", delegate]});
        let alone = |name: &str| network(name, json!({"type": delegate}));
        // It reads all records of the subnet.
        let random = json!([{"name": central.pool, "strategy": "random"}]);
        let mut arguments = vec!["VERB".to_owned()];
        arguments.extend(central.floor);
        arguments.push(folder("floor-CONTAINER").display().to_string());
        let callers = callers([
            ("floor", plugins.tool(&floor, arguments)),
            ("alone", plugins.plugin(after(alone("alone"), pools.clone()))),
            ("searching", plugins.plugin(after(alone("searching"), random))),
            ("chain", plugins.plugin(network("chain", chain))),
        ]);
        // As on a node in use, which knows its latest record.
        for name in ["alone", "searching", "chain"] {
            callers[name].call("ADD", &format!("held-by-{name}"));
        }
        Box::new(Store { callers, pools: None, _server: central.server }) as Box<dyn Site>
    };
    held.iter().map(site).collect()
}
