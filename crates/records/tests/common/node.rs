//! A node that calls the ledger on a server in memory.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipam_kit::allocate::Allocate;
use ipam_kit::cni::Environment;
use ipam_kit::delegate::{Reply, answer};
use ipam_kit::host::Settings;
use ipam_records::RecordLedger;
use ipam_records::server::AddressRecord;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Fake, Kind, Store};

/// A node with a store.
#[derive(Clone)]
pub struct Node {
    pub store: Store,
    /// The time of a call.
    pub time: Duration,
    name: &'static str,
    fake: String,
    folder: Arc<TempDir>,
}

impl Node {
    pub fn new(kind: Kind) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let fake = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
        let store = Store::new(&fake, kind);
        Self {
            store,
            time: Duration::from_secs(60),
            name: "n1",
            fake,
            folder: Arc::new(TempDir::new().unwrap()),
        }
    }

    /// Another node on the same store.
    pub fn other(&self) -> Self {
        Self { name: "n2", folder: Arc::new(TempDir::new().unwrap()), ..self.clone() }
    }

    pub fn call(&self, verb: &str, container: &str, pools: Value, more: Value) -> Reply {
        self.call_of(verb, container, pools, more, "")
    }

    /// The same with `CNI_ARGS`.
    pub fn call_of(
        &self,
        verb: &str,
        container: &str,
        pools: Value,
        more: Value,
        args: &str,
    ) -> Reply {
        // The chain's own DEL.
        let (verb, undo) = if verb == "UNDO" { ("DEL", true) } else { (verb, false) };
        let mut ipam = json!({
            "fake": self.fake, "stateDir": self.folder.path(), "node": self.name, "type": "x",
        });
        ipam.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut config = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam});
        config["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [], "pools": pools});
        if undo {
            config["prevResult"]["fence"] = json!({"after": 1});
        }
        let time = self.time.as_millis().to_string();
        let variables = [
            ("IPAM_DELEGATED_DEADLINE_MS", &*time),
            ("CNI_ARGS", args),
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/x"),
            ("CNI_PATH", "/x"),
        ];
        let delegate = Allocate::<RecordLedger<Fake>>::default();
        let settings = Settings::default();
        answer(&delegate, Environment::new(variables), config.to_string().as_bytes(), settings)
    }

    /// The address of an ADD, or the code and the message of its error.
    pub fn add(&self, container: &str, pool: Value) -> Result<String, (u64, String)> {
        self.add_with(container, pool, json!({}))
    }

    pub fn add_with(
        &self,
        container: &str,
        pool: Value,
        more: Value,
    ) -> Result<String, (u64, String)> {
        let reply = self.call("ADD", container, json!([pool]), more);
        let said: Value = serde_json::from_str(&reply.stdout).unwrap();
        match reply.exit {
            0 => Ok(said["ips"][0]["address"].as_str().unwrap().to_owned()),
            _ => Err((said["code"].as_u64().unwrap(), said["msg"].as_str().unwrap().to_owned())),
        }
    }

    pub fn del(&self, container: &str) {
        let reply = self.call("DEL", container, json!([]), json!({}));
        assert_eq!(reply.exit, 0, "{}", reply.stdout);
    }

    /// A call that is killed in a request whose [`super::Between`] panics.
    pub fn killed(&self, verb: &str, container: &str, pool: Value) {
        let call = || self.call(verb, container, json!([pool]), json!({}));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        assert!(outcome.is_err(), "the call has ended");
    }

    /// The addresses of all records, in order.
    pub fn recorded(&self) -> Vec<String> {
        let state = self.store.state();
        let records = state.records.values().flatten();
        let mut addresses: Vec<_> = records.map(|record| record.address).collect();
        addresses.sort_unstable();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// The records whose text begins so.
    pub fn records_of(&self, start: &str) -> Vec<AddressRecord> {
        let state = self.store.state();
        let records = state.records.values().flatten();
        records.filter(|record| record.text.starts_with(start)).cloned().collect()
    }

    /// The files of the node's memory whose names begin so.
    pub fn files(&self, start: &str) -> Vec<PathBuf> {
        let (mut folders, mut files) = (vec![self.folder.path().to_owned()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false if entry.file_name().to_str().unwrap().starts_with(start) => {
                        files.push(entry.path());
                    }
                    false => {}
                }
            }
        }
        files
    }

    /// Moves the times at which subnets were seen into the past.
    pub fn age_sights(&self, by: Duration) {
        for path in self.files("site.json") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut site: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            for seen in site["seen"].as_object_mut().unwrap().values_mut() {
                *seen = json!(seen.as_u64().unwrap() - u64::try_from(by.as_millis()).unwrap());
            }
            std::fs::write(path, format!("{site}\n")).unwrap();
        }
    }

    pub fn lose_memory(&self) {
        std::fs::remove_dir_all(self.folder.path()).unwrap();
        std::fs::create_dir(self.folder.path()).unwrap();
    }

    pub fn between(&self, call: impl FnOnce(IpAddr) + Send + 'static) {
        self.store.state().between.push_back(Box::new(call));
    }
}

pub fn pool() -> Value {
    json!({"ranges": [{"subnet": "10.1.2.0/29"}]})
}

pub fn named() -> Value {
    json!({"ranges": [{"subnet": "10.1.2.0/29"}], "sticky": "web", "keep": "1h"})
}
