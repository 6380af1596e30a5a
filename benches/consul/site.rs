use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::subnet::{SUBNET, spread};
use ipam_testkit::consul::{Consul, encode};

/// A store with as many leases of other nodes in it, spread over the pool, and the networks that use
/// it.
pub struct Site {
    pub held: usize,
    server: Consul,
    /// What the chain is given, and what `ipam-da-consul` alone.
    pub chain: Value,
    pub alone: Value,
    /// The state folder of the latter.
    state: PathBuf,
}

const NETWORK: &str = "bench";
const POOL: &str = "bench";

impl Site {
    /// Starts a server and fills its store by the program `fill`.
    pub fn holding(state: &Path, fill: &Path, held: usize) -> Self {
        let server = Consul::start();
        let folder = |name: &str| state.join(format!("{name}-{held}"));
        let network = |name: &str, kind: Value| {
            let mut network =
                json!({"cniVersion": "1.0.0", "name": NETWORK, "type": "bridge", "ipam": kind});
            network["ipam"]["stateDir"] = json!(folder(name));
            network["ipam"]["consul_servers"] = json!([server.url()]);
            network["ipam"]["pools"] = json!([{"name": POOL}]);
            network
        };
        let delegates = ["ipam-ds-static", "ipam-da-consul"];
        let chain = network("chain", json!({"type": "ipam-delegated", "delegates": delegates}));
        let mut alone = network("alone", json!({"type": "ipam-da-consul"}));
        alone["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [], "pools": [{"name": POOL}]});
        let site = Self { held, server, chain, alone, state: folder("alone") };
        site.fill(fill);
        site
    }

    /// What `ipam-da-consul` is given for a DEL by a chain that recorded this answer to the ADD.
    pub fn recorded(&self, answer: &[u8]) -> Value {
        let mut network = self.alone.clone();
        network["prevResult"] = serde_json::from_slice(answer).unwrap();
        network["prevResult"]["pools"] = self.alone["prevResult"]["pools"].clone();
        assert!(network["prevResult"]["leases"].is_array(), "{network}");
        network
    }

    /// Makes `ipam-da-consul` forget what it knows of pools, as it does after a minute.
    pub fn forget_pools(&self) {
        fs::remove_dir_all(self.state.join("consul/pools")).unwrap();
    }

    /// The arguments of the program `floor`, with keys and a value like the delegate's.
    pub fn floor(&self, verb: &str, container: &str) -> [String; 5] {
        let node = "00000000-0000-4000-8000-000000000000";
        let value = json!({
            "network": NETWORK, "node": node, "container": container, "ifname": "eth0",
            "generation": 1, "confirmed": 1_700_000_000_000_u64,
            "leases": [{"address": "10.77.0.2/16", "pool": POOL, "taken": 1_700_000_000_000_u64}],
        });
        [
            verb.to_owned(),
            self.server.endpoint(),
            format!("ipam/.owners/floor/{node}/{container}/eth0"),
            format!("ipam/floor/{container}"),
            encode(&value.to_string()),
        ]
    }

    fn fill(&self, program: &Path) {
        let mut command = Command::new(program);
        command
            .args([self.server.endpoint().as_str(), NETWORK, POOL, SUBNET])
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(spread(self.held).as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "fill");
    }
}
