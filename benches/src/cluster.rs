//! What the systems have in common whose leases lie in a store of the whole cluster.

use std::any::Any;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::caller::Callers;
use crate::network::{NETWORK, extend};
use crate::plot::{Class, Curves, Scale};
use crate::site::{Site, Turn};
use crate::table::Table;

/// The node of the floor.
pub const NODE: &str = "00000000-0000-4000-8000-000000000000";

pub const TABLES: &[Table] = &[Table::Held(&[
    ("floor ADD", None),
    ("alone ADD", Some("floor ADD")),
    ("cold ADD", None),
    ("chain ADD", Some("floor ADD")),
    ("floor DEL", None),
    ("alone DEL", Some("floor DEL")),
    ("DEL without a record", None),
    ("chain DEL", Some("floor DEL")),
    ("passcod's chain ADD", Some("floor ADD")),
    ("passcod's chain DEL", Some("floor DEL")),
])];

/// The callers that are run 20 at a time.
pub const CROWD: &[&str] = &["floor", "alone", "chain"];

pub const fn drawing(allocator: &'static str) -> (Scale, Curves) {
    let curves = [
        (Class::Floor, "a bare transaction", "floor ADD", None),
        (Class::Alone, allocator, "alone ADD", None),
        (Class::Chain, "the chain", "chain ADD", None),
    ];
    (Scale::FromZero, curves)
}

/// A store with leases of other nodes in it, spread over the pool, and who uses it: `floor`,
/// `alone`, `chain` and, where it takes part, `passcod's chain`.
pub struct Store {
    pub callers: Callers,
    /// What `alone` remembers of pools, where it does.
    pub pools: Option<PathBuf>,
    /// It is stopped when this is dropped.
    pub _server: Box<dyn Any>,
}

impl Site for Store {
    fn callers(&self) -> &Callers {
        &self.callers
    }

    fn round(&self, turn: &mut Turn<'_>) {
        turn.pair(&self.callers, "floor");
        let alone = &self.callers["alone"];
        let (time, answer) = alone.answer("ADD", turn.container);
        turn.push("alone ADD", time);
        let recorded = alone.given(recorded(&alone.network, &answer));
        turn.push("alone DEL", recorded.call("DEL", turn.container));
        if let Some(pools) = &self.pools {
            fs::remove_dir_all(pools).unwrap();
        }
        let time = alone.call("ADD", turn.container);
        if self.pools.is_some() {
            turn.push("cold ADD", time);
        }
        turn.push("DEL without a record", alone.call("DEL", turn.container));
        turn.pair(&self.callers, "chain");
        if self.callers.contains_key("passcod's chain") {
            turn.pair(&self.callers, "passcod's chain");
        }
    }
}

/// What an allocator is given for a DEL by a chain that recorded this answer to the ADD.
pub fn recorded(network: &Value, answer: &[u8]) -> Value {
    let mut network = network.clone();
    let pools = network["prevResult"]["pools"].take();
    network["prevResult"] = serde_json::from_slice(answer).unwrap();
    network["prevResult"]["pools"] = pools;
    assert!(network["prevResult"]["leases"].is_array(), "{network}");
    network
}

/// The value of the floor's keys, like a delegate's.
pub fn owner(leases: Value) -> Value {
    let mut owner = json!({
        "network": NETWORK, "node": NODE, "container": "bench-1", "ifname": "eth0",
        "generation": 1, "confirmed": 1_700_000_000_000_u64,
    });
    extend(&mut owner, leases);
    owner
}
