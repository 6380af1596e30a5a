//! What outlasts a change of the host: secrets that are exchanged, a memory of the store that is
//! lost.

use std::fs;

use serde_json::{Value, json};

use crate::node::{Node, Store};
use crate::world::{Host, Outcome, World, binary, start, wait};

/// A node on a host whose settings say where its state is, for the chain of an allocator.
pub struct Rotation {
    pub world: World,
    host: Host,
    allocator: &'static str,
}

impl Rotation {
    pub fn new(allocator: &'static str) -> Self {
        let (world, host) = (World::new(), Host::new());
        world.install(&binary("ipam-ds-static")).install(&binary(allocator));
        host.settings(&json!({"stateDir": world.path("state")}));
        Self { world, host, allocator }
    }

    /// A network whose chain has these members of `ipam`, too.
    pub fn network(&self, members: Value) -> Value {
        let mut network = stripped();
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.insert("delegates".to_owned(), json!(["ipam-ds-static", self.allocator]));
        ipam.append(&mut serde_json::from_value(members).unwrap());
        network
    }

    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.host.command(&self.world, verb, container), network))
    }

    /// A DEL after which neither the node nor the store, which holds these keys, knows the
    /// container.
    #[track_caller]
    pub fn release(&self, container: &str, network: &Value, held: impl Fn() -> Vec<String>) {
        self.call("DEL", container, network).success();
        assert!(!self.world.record(container).exists());
        let left = held();
        assert!(left.iter().all(|key| !key.contains(container)), "{left:?}");
    }
}

/// What a runtime sends that keeps no more than the type.
pub fn stripped() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
}

/// A node that forgot the store or cannot remember it works: `c1`, `c2` and `c5` are held then.
#[track_caller]
pub fn assert_works_without_memory(node: &Node<impl Store>, garbage: &[&str]) {
    node.add("c1");
    fs::remove_file(node.memory()).unwrap();
    node.add("c2");
    for garbage in garbage {
        fs::write(node.memory(), garbage).unwrap();
        let outcome = node.call("ADD", "c3");
        assert!(!outcome.stderr.contains("cannot be written"), "{outcome:?}");
        outcome.success();
        node.del("c3");
    }
    // A folder in its place cannot be written, by root neither.
    fs::remove_file(node.memory()).unwrap();
    fs::create_dir(node.memory()).unwrap();
    let outcome = node.call("ADD", "c4");
    let warning = format!("{} cannot be written", node.memory().display());
    assert!(outcome.stderr.contains(&warning), "{outcome:?}");
    outcome.success();
    node.call("STATUS", "").success();
    node.del("c4");
    fs::remove_dir(node.memory()).unwrap();
    fs::remove_dir_all(node.memory().parent().unwrap()).unwrap();
    fs::write(node.memory().parent().unwrap(), "no folder").unwrap();
    let outcome = node.call("ADD", "c5");
    assert!(outcome.stderr.contains("cannot be written"), "{outcome:?}");
    outcome.success();
}
