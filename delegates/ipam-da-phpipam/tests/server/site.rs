//! A subnet of a server with those who use it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ipam_testkit::node::{self, given, within};
use ipam_testkit::phpipam::{CODE, PASSWORD, PhpIpam, Record};
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

/// A node that calls the program.
pub type Node = node::Node<PhpIpam>;

/// The verbs that runtimes call.
pub const VERBS: [&str; 4] = node::VERBS;

/// The custom field of servers that have one.
pub const KEY: &str = "cni_key";

/// A subnet that no other test uses.
pub struct Site<'a> {
    pub server: &'a PhpIpam,
    /// The id of the subnet.
    pub subnet: String,
    pub cidr: String,
}

impl Site<'static> {
    /// 254 addresses on the server that all tests share.
    #[track_caller]
    pub fn new() -> Self {
        Self::of_bits(24)
    }

    /// Some of the first 256 addresses of a network of its own.
    #[track_caller]
    pub fn of_bits(bits: u8) -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::on(PhpIpam::shared(), &format!("10.99.{count}.0/{bits}"))
    }
}

impl<'a> Site<'a> {
    #[track_caller]
    pub fn on(server: &'a PhpIpam, cidr: &str) -> Self {
        let subnet = server.subnet(cidr, &format!("of {cidr}"));
        Self { server, subnet, cidr: cidr.to_owned() }
    }

    /// A node that knows the subnet by its id.
    pub fn node(&self) -> Node {
        self.node_at(&self.server.url())
    }

    /// The same through another endpoint.
    pub fn node_at(&self, url: &str) -> Node {
        Node::at(&[url.to_owned()]).with_pools(&[&self.subnet]).patient()
    }

    /// So many nodes, each with an identity of its own.
    pub fn nodes(&self, count: usize) -> Vec<Node> {
        (0..count).map(|n| self.node().named(&format!("node-{n}"))).collect()
    }

    #[track_caller]
    pub fn records(&self) -> Vec<Record> {
        self.server.records(&self.subnet)
    }

    /// How many records each address has.
    #[track_caller]
    pub fn addresses(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for record in self.records() {
            *counts.entry(record.address).or_default() += 1;
        }
        counts
    }

    #[track_caller]
    pub fn assert_empty(&self) {
        assert_eq!(self.records(), []);
    }

    /// The host of this number in the subnet.
    pub fn host(&self, number: u8) -> String {
        let (network, _) = self.cidr.rsplit_once('.').unwrap();
        format!("{network}.{number}")
    }
}

/// A call that ends by itself within four seconds; under load, one with less may be ended by its
/// own deadline.
#[track_caller]
pub fn brief(node: &Node, verb: &str, known: &Value) -> Outcome {
    let mut network = node.network();
    for (key, value) in known.as_object().unwrap() {
        network["prevResult"][key] = value.clone();
    }
    let mut command = node.command(verb, "c1");
    command.env("IPAM_DELEGATED_DEADLINE_MS", "4000");
    within(Duration::from_secs(30), || wait(start(command, &network)))
}

/// Every verb of an attachment that holds this result fails with the code of its place in
/// [`VERBS`], tells these parts, and shows no secret.
#[track_caller]
pub fn assert_told(node: &Node, what: &str, result: &Value, codes: [u64; 4], parts: &[&str]) {
    for (verb, code) in VERBS.into_iter().zip(codes) {
        let known = if verb == "ADD" { json!({}) } else { given(result) };
        let outcome = brief(node, verb, &known);
        let all = format!("{outcome:?}");
        let shown = [CODE, PASSWORD].into_iter().find(|secret| all.contains(secret));
        assert!(shown.is_none(), "{what}: {verb} shows a secret: {all}");
        let (found, text) = outcome.failure();
        // Under load, a call may be ended by its own deadline.
        let is_late = code == 11 && found == 111;
        assert!(found == code || is_late, "{what}: {verb}: {found} {text}");
        if is_late {
            continue;
        }
        for part in parts {
            assert!(text.contains(part), "{what}: {verb} without {part:?}: {text}");
        }
    }
}
