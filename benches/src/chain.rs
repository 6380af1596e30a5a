//! A chain beside the host-local that it carries.

use serde_json::json;

use crate::caller::{Callers, callers};
use crate::harness::System;
use crate::network::{network, pool};
use crate::programs::host_local;
use crate::site::{HELD, Site, Sites, Stage, Turn};
use crate::table::Table;
use crate::target::Target::{Memory, Ratio, Size};

pub const SYSTEM: System = System {
    name: "chain",
    title: "",
    levels: &HELD,
    held: 0,
    runs: 300,
    warm_up: 20,
    start,
    tables: &[Table::Cases {
        corner: "",
        cases: &["host-local", "chain", "ipam-ds-static"],
        columns: ["ADD", "DEL"],
    }],
    drawing: None,
    crowd: &[],
    crowded: 0,
    targets: &[
        Ratio { of: "chain ADD", to: "host-local ADD", held: 0, most: [1.45, 2.0] },
        Memory { of: "chain", verbs: &["ADD"], most: 4096 },
        Size { of: &PROGRAMS, most: 1024 },
    ],
    floor: None,
};

const PROGRAMS: [&str; 2] = ["ipam-delegated", "ipam-ds-static"];

struct Alone(Callers);

fn start(stage: &Stage<'_>, _held: &[usize]) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS).link("host-local", host_local());
    let alone = json!({"type": "host-local", "dataDir": stage.state().join("alone")});
    let chain = json!({
        "type": "ipam-delegated",
        "delegates": ["ipam-ds-static", "host-local"],
        "dataDir": stage.state().join("chain"),
        "stateDir": stage.state().join("state"),
    });
    let chain = network(chain, pool());
    let site = Alone(callers([
        ("host-local", plugins.plugin(network(alone, pool()))),
        ("chain", plugins.plugin(chain.clone())),
        ("ipam-ds-static", plugins.tool("ipam-ds-static", Vec::new()).given(chain)),
    ]));
    vec![Box::new(site)]
}

impl Site for Alone {
    fn callers(&self) -> &Callers {
        &self.0
    }

    fn round(&self, turn: &mut Turn<'_>) {
        turn.pair(&self.0, "host-local");
        turn.pair(&self.0, "chain");
        turn.push("ipam-ds-static ADD", self.0["ipam-ds-static"].call("ADD", turn.container));
    }
}
