use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::subnet::{SUBNET, spread};
use ipam_testkit::etcd::Etcd;

/// On whose keys the leases are, and what is asked of them there.
#[derive(Debug, PartialEq)]
pub struct Layout {
    pub title: &'static str,
    /// As `fill` and `etcd.layout` call it.
    pub name: &'static str,
    prefix: &'static str,
    /// Under which name the chain is started.
    pub program: &'static str,
    /// The most that an ADD of `ipam-da-etcd` alone may be of the floor, where that is asked.
    pub alone: Option<f64>,
    /// The most that one of the chain may be, built static and not.
    pub chain: [f64; 2],
    /// The most that an ADD at 50,000 leases may be of one at none.
    pub growth: f64,
}

/// Our own.
pub const NATIVE: Layout = Layout {
    title: "our own keys",
    name: "native",
    prefix: "/ipam-delegated",
    program: "ipam-delegated",
    alone: Some(1.4),
    chain: [2.2, 3.0],
    growth: 1.2,
};

/// cni-ipam-etcd's, whose program is called `etcd`.
pub const PRESET: Layout = Layout {
    title: "the preset etcd, on cni-ipam-etcd's keys",
    name: "cni-ipam-etcd",
    prefix: "/etcd-cni",
    program: "etcd",
    alone: None,
    chain: [2.4, 3.2],
    growth: 1.3,
};

/// A store with as many leases of other nodes in it, spread over the pool, and the networks that use
/// it.
pub struct Site {
    pub held: usize,
    pub layout: &'static Layout,
    server: Etcd,
    /// What the chain is given, and what `ipam-da-etcd` alone.
    pub chain: Value,
    pub alone: Value,
}

const NETWORK: &str = "bench";

impl Site {
    /// Starts a server and fills its store by the program `fill`.
    pub fn holding(state: &Path, fill: &Path, held: usize, layout: &'static Layout) -> Self {
        // As servers run that are not a test's.
        let calm = Etcd::builder().flag("--heartbeat-interval=100").flag("--election-timeout=1000");
        let server = calm.start();
        let network = |name: &str, kind: Value| {
            let mut network =
                json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bridge", "ipam": kind});
            network["ipam"]["stateDir"] = json!(state.join(format!("{name}-{held}")));
            network["ipam"]["etcd"] =
                json!({"endpoints": [server.endpoint()], "layout": layout.name});
            network["ipam"]["ranges"] = json!([[{"subnet": SUBNET}]]);
            network["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
            network
        };
        let delegates = ["ipam-ds-static", "ipam-da-etcd"];
        let mut chain = network("chain", json!({"type": layout.program, "delegates": delegates}));
        if layout.program == PRESET.program {
            // As it was written for the plugin whose place the preset takes.
            let ipam = chain["ipam"].as_object_mut().unwrap();
            ipam.retain(|key, _| !["delegates", "etcd"].contains(&key.as_str()));
            ipam.insert("etcdConfig".to_owned(), json!({"etcdURL": server.url()}));
        }
        let mut alone = network("alone", json!({"type": "ipam-da-etcd"}));
        alone["prevResult"] = json!({
            "cniVersion": "1.1.0",
            "ips": [],
            "pools": [{"ranges": [{"subnet": SUBNET}], "index": 0}],
        });
        let site = Self { held, layout, server, chain, alone };
        site.fill(fill);
        site
    }

    /// What `ipam-da-etcd` is given for a DEL by a chain that recorded this answer to the ADD.
    pub fn recorded(&self, answer: &[u8]) -> Value {
        let mut network = self.alone.clone();
        network["prevResult"] = serde_json::from_slice(answer).unwrap();
        network["prevResult"]["pools"] = self.alone["prevResult"]["pools"].clone();
        assert!(network["prevResult"]["leases"].is_array(), "{network}");
        network
    }

    /// The arguments of the program `floor`, with keys and a value like the delegate's.
    pub fn floor(&self, verb: &str, container: &str) -> [String; 5] {
        let network = format!("{}/networks/floor", self.layout.prefix);
        let node = "00000000-0000-4000-8000-000000000000";
        let value = json!({
            "network": NETWORK, "node": node, "container": container, "ifname": "eth0",
            "generation": 1, "confirmed": 1_700_000_000_000_u64, "leases": 1,
            "address": "10.77.0.2/16", "gateway": "10.77.0.1", "taken": 1_700_000_000_000_u64,
        });
        [
            verb.to_owned(),
            self.server.url(),
            format!("{network}/owners/{node}/{container}/eth0"),
            format!("{network}/leases/4/{container}"),
            value.to_string(),
        ]
    }

    fn fill(&self, program: &Path) {
        let mut command = Command::new(program);
        let Layout { prefix, name, .. } = self.layout;
        command
            .args([self.server.url().as_str(), prefix, NETWORK, SUBNET, name])
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(spread(self.held).as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "fill");
    }
}
