use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A network that host-local and the chain serve, each from a folder of its own with as many
/// leases of other owners in it.
pub struct Site {
    pub held: usize,
    root: PathBuf,
    /// The configurations, by who reads them.
    pub host_local: Value,
    pub chain: Value,
    pub preset: Value,
    /// What the chain gives `ipam-da-local`.
    pub allocator: Value,
}

const NETWORK: &str = "bench";

/// The first address that is given out of 10.77.0.0/16: the one before is the gateway.
const FIRST: u32 = 0x0A4D_0002;

/// How many addresses can be given out.
const SIZE: u32 = (1 << 16) - 3;

impl Site {
    /// As many leases, given one after another.
    pub fn holding(root: &Path, held: usize) -> Self {
        Self::new(root.join(held.to_string()), (0..u32::try_from(held).unwrap()).collect())
    }

    /// A pool in which only each 1100th address is free.
    pub fn nearly_full(root: &Path) -> Self {
        Self::new(root.join("full"), (0..SIZE).filter(|n| n % 1100 != 1099).collect())
    }

    fn new(root: PathBuf, taken: Vec<u32>) -> Self {
        let network = |data: &str, ipam: Value| {
            let mut network =
                json!({"cniVersion": "1.0.0", "name": NETWORK, "type": "bridge", "ipam": ipam});
            network["ipam"]["dataDir"] = json!(root.join(data));
            network["ipam"]["stateDir"] = json!(root.join("state"));
            network["ipam"]["ranges"] = json!([[{"subnet": "10.77.0.0/16"}]]);
            network["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
            network
        };
        let delegates = ["ipam-ds-static", "ipam-da-local"];
        let mut allocator = network("chain", json!({"type": "ipam-da-local", "node": "bench"}));
        allocator["prevResult"] = json!({
            "cniVersion": "1.0.0",
            "ips": [],
            "pools": [{"ranges": [{"subnet": "10.77.0.0/16"}], "index": 0}],
        });
        let site = Self {
            host_local: network("host-local", json!({"type": "host-local"})),
            chain: network("chain", json!({"type": "ipam-delegated", "delegates": delegates})),
            preset: network("chain", json!({"type": "host-local"})),
            allocator,
            held: taken.len(),
            root,
        };
        for data in ["host-local", "chain"] {
            site.fill(&site.root.join(data).join(NETWORK), &taken);
        }
        site
    }

    /// Lets the next call of the chain see the leases for the first time.
    pub fn forget(&self) {
        fs::remove_dir_all(self.root.join("state")).unwrap();
    }

    /// Takes or releases an address beside the chain, as host-local would.
    pub fn foreign_write(&self) {
        let path = self.root.join("chain").join(NETWORK).join(address(SIZE - 1));
        if fs::remove_file(&path).is_err() {
            fs::write(path, "foreign\r\neth0").unwrap();
        }
    }

    fn fill(&self, folder: &Path, taken: &[u32]) {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).unwrap();
        for n in taken {
            fs::write(folder.join(address(*n)), format!("foreign-{n:056}\r\neth0")).unwrap();
        }
        if let Some(last) = taken.last() {
            fs::write(folder.join("last_reserved_ip.0"), address(*last)).unwrap();
        }
        fs::write(folder.join("lock"), "").unwrap();
    }
}

fn address(n: u32) -> String {
    Ipv4Addr::from(FIRST + n).to_string()
}
