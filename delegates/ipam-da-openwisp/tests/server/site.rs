//! A subnet of a server with those who use it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ipam_testkit::node::{self, given, within};
use ipam_testkit::openwisp::{ORGANIZATION, OpenWisp, Record, TOKEN};
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

/// A node that calls the program.
pub type Node = node::Node<OpenWisp>;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-openwisp");

/// The verbs that runtimes call.
pub const VERBS: [&str; 4] = node::VERBS;

/// A subnet that no other test uses.
pub struct Site<'a> {
    pub server: &'a OpenWisp,
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
        Self::on(OpenWisp::shared(), &format!("10.99.{count}.0/{bits}"))
    }
}

impl<'a> Site<'a> {
    #[track_caller]
    pub fn on(server: &'a OpenWisp, cidr: &str) -> Self {
        let subnet = server.subnet(Some(ORGANIZATION), cidr, &format!("of {cidr}"));
        Self { server, subnet, cidr: cidr.to_owned() }
    }

    /// A node that knows the subnet by its id.
    pub fn node(&self) -> Node {
        self.node_at(&self.server.url())
    }

    /// The same through another endpoint.
    pub fn node_at(&self, url: &str) -> Node {
        let node = Node::at(&[url.to_owned()]).with_pools(&[&self.subnet]);
        // A server in Python is slow while other tests run.
        node.with("organization", ORGANIZATION).patient()
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

    /// Adds a second record of an address, as two requests at once leave it: the application looks, and
    /// the database does not.
    pub fn twin(&self, address: &str, description: &str) {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let id =
            format!("{:032x}", 0xabcdef00_u32 + u32::from(COUNT.fetch_add(1, Ordering::Relaxed)));
        self.server.sql(&format!(
            "INSERT INTO openwisp_ipam_ipaddress (id, created, modified, ip_address, description, subnet_id) \
             SELECT '{id}', created, modified, ip_address, '{description}', subnet_id \
             FROM openwisp_ipam_ipaddress WHERE ip_address = '{address}' LIMIT 1"
        ));
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
/// [`VERBS`], tells these parts, and shows no token.
#[track_caller]
pub fn assert_told(node: &Node, what: &str, result: &Value, codes: [u64; 4], parts: &[&str]) {
    for (verb, code) in VERBS.into_iter().zip(codes) {
        let known = if verb == "ADD" { json!({}) } else { given(result) };
        let outcome = brief(node, verb, &known);
        let all = format!("{outcome:?}");
        assert!(!all.contains(TOKEN), "{what}: {verb} shows the token: {all}");
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
