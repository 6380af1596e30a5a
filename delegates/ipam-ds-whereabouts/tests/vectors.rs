//! What whereabouts and its fork gave, case by case, and where we differ, with the reason:
//! `vectors.json`. The allocator is ours, over a store in memory. The file also names the tests
//! that play the other cases.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ipam_kit::Allocate;
use ipam_kit::cni::{Environment, IpConfig, IpamResult};
use ipam_kit::delegate::{Delegate, answer};
use ipam_kit::host::Settings;
use ipam_suites::memory::MemoryLedger;
use ipam_testkit::vectors::{Comparison, Difference};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct RecordedCases {
    reasons: BTreeMap<String, String>,
    /// The cases that tests of other files play, by `PATH::TEST`.
    elsewhere: BTreeMap<String, Vec<String>>,
    /// The cases of what is not replaced.
    unsupported: BTreeMap<String, Vec<String>>,
    vectors: Vec<RecordedCase>,
}

/// ADDs of as many containers, with one configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RecordedCase {
    id: String,
    about: String,
    ipam: Map<String, Value>,
    #[serde(default = "usual_version")]
    cni_version: String,
    #[serde(default)]
    args: String,
    /// The flat file: a text, or an object.
    #[serde(default)]
    flat: Value,
    /// Addresses that others hold.
    #[serde(default)]
    held: Vec<String>,
    adds: usize,
    recorded: Value,
    #[serde(default)]
    differences: Vec<Difference>,
}

fn usual_version() -> String {
    "0.3.1".to_owned()
}

/// The answer of a delegate: a JSON object, or the code of its error.
fn call(delegate: &dyn Delegate, args: &str, container: &str, stdin: &Value) -> Result<Value, u64> {
    let environment = Environment::new([
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", container),
        ("CNI_IFNAME", "net1"),
        ("CNI_NETNS", "/run/netns/c"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", args),
    ]);
    let reply = answer(delegate, environment, stdin.to_string().as_bytes(), Settings::default());
    let printed: Value = serde_json::from_str(&reply.stdout).unwrap();
    if reply.exit == 0 { Ok(printed) } else { Err(printed["code"].as_u64().unwrap()) }
}

impl RecordedCases {
    fn read() -> Self {
        serde_json::from_str(include_str!("vectors.json")).unwrap()
    }
}

impl RecordedCase {
    /// What the containers get.
    fn play(&self) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("whereabouts.conf");
        let flat = self.flat.as_str().map_or_else(|| self.flat.to_string(), str::to_owned);
        fs::write(&file, if self.flat.is_null() { "{}" } else { &flat }).unwrap();
        let mut config = json!({
            "cniVersion": self.cni_version, "name": "mynet", "type": "macvlan", "ipam": self.ipam,
        });
        config["ipam"]["configuration_path"] = file.to_str().into();
        if config["ipam"]["kubernetes"].is_object() {
            // Any file that exists: no server is asked.
            config["ipam"]["kubernetes"]["kubeconfig"] = file.to_str().into();
        }
        config["ipam"]["memory"] = self.id.as_str().into();
        config["ipam"]["node"] = "node-1".into();
        for address in &self.held {
            let range = json!({
                "subnet": self.ipam["range"], "rangeStart": address, "rangeEnd": address,
                "rules": "whereabouts",
            });
            self.allocate(&config, address, &json!({"pools": [{"ranges": [range]}]})).unwrap();
        }
        let mut given = Vec::new();
        let mut observed = json!({});
        for number in 0..self.adds {
            let container = format!("c{number}");
            let selector = ipam_ds_whereabouts::delegate();
            let chosen = call(&selector, &self.args, &container, &config);
            let got = chosen.and_then(|chosen| {
                observed.as_object_mut().unwrap().extend(self.choice(&chosen));
                self.allocate(&config, &container, &chosen)
            });
            match got {
                Ok(result) => given.extend(result.ips.iter().map(shown)),
                Err(code) => given.push(format!("error {code}")),
            }
        }
        observed["given"] = json!(given);
        observed
    }

    /// What was recorded of the choice.
    fn choice(&self, chosen: &Value) -> Map<String, Value> {
        assert_ne!(chosen["ipam"]["kube"]["overlapCheck"], json!(false), "{}", self.id);
        let mut choice = Map::new();
        if !self.id.contains("fork") {
            let ranges = chosen["pools"].as_array().unwrap().iter().map(|pool| {
                let [subnet, start, end] = ["subnet", "rangeStart", "rangeEnd"]
                    .map(|member| pool["ranges"][0][member].as_str().unwrap());
                format!("{subnet} {start}-{end}")
            });
            choice.insert("ranges".to_owned(), ranges.collect());
        }
        let result = IpamResult::parse(chosen, "its answer").unwrap();
        if !result.routes.is_empty() {
            let routes = result.routes.iter().map(|route| route.dst.to_string());
            choice.insert("routes".to_owned(), routes.collect());
        }
        choice
    }

    fn allocate(&self, config: &Value, container: &str, chosen: &Value) -> Result<IpamResult, u64> {
        let mut config = config.clone();
        config["prevResult"] = chosen.clone();
        let result = call(&Allocate::<MemoryLedger>::default(), "", container, &config)?;
        Ok(IpamResult::parse(&result, "its answer").unwrap())
    }
}

fn shown(ip: &IpConfig) -> String {
    match ip.gateway {
        None => ip.address.to_string(),
        Some(gateway) => format!("{} via {gateway}", ip.address),
    }
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_with_whereabouts() {
    let cases = RecordedCases::read();
    let mut comparison = Comparison::with(&cases.reasons);
    for case in &cases.vectors {
        let name = format!("{} ({})", case.id, case.about);
        comparison.add(&name, case.recorded.clone(), &case.differences, &case.play());
    }
    comparison.finish();
}

#[test]
fn each_recorded_case_is_played_by_a_test_or_listed_as_unsupported() {
    let cases = RecordedCases::read();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for place in cases.elsewhere.keys() {
        let (path, test) = place.split_once("::").unwrap();
        let text = fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let begins = format!("fn {test}() {{");
        assert!(lines.windows(2).any(|two| two == ["#[test]", &begins]), "{place}");
    }
    let listed = cases.elsewhere.values().chain(cases.unsupported.values()).flatten();
    let played = cases.vectors.iter().map(|case| &case.id);
    let all: Vec<&String> = listed.chain(played).collect();
    assert_eq!(all.len(), 51 + 30);
    assert_eq!(BTreeSet::from_iter(&all).len(), all.len());
}
