//! A subnet of a server of address records, with those who use it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::node::{self, Node, Store, given, program, within};
use crate::openwisp::{self, ORGANIZATION, OpenWisp};
use crate::phpipam::{self, PhpIpam};
use crate::world::{Outcome, World, binary, start, wait};

/// The verbs that runtimes call.
pub const VERBS: [&str; 4] = node::VERBS;

/// A server of address records.
pub trait RecordServer: Store + Sized + 'static {
    type Record: Debug + PartialEq;

    /// No program shows these texts.
    const SECRETS: &'static [&'static str];

    /// The server that all tests of this binary share.
    fn of_all_tests() -> &'static Self;

    /// Makes a subnet, and returns its id.
    fn make_subnet(&self, cidr: &str, name: &str) -> String;

    fn records_in(&self, subnet: &str) -> Vec<Self::Record>;

    fn address_of(record: &Self::Record) -> &str;

    /// A node with the settings that the tests need.
    fn prepared(&self, node: Node<Self>) -> Node<Self> {
        node
    }
}

impl RecordServer for OpenWisp {
    type Record = openwisp::Record;

    const SECRETS: &'static [&'static str] = &[openwisp::TOKEN];

    fn of_all_tests() -> &'static Self {
        Self::shared()
    }

    fn make_subnet(&self, cidr: &str, name: &str) -> String {
        self.subnet(Some(ORGANIZATION), cidr, name)
    }

    fn records_in(&self, subnet: &str) -> Vec<openwisp::Record> {
        self.records(subnet)
    }

    fn address_of(record: &openwisp::Record) -> &str {
        &record.address
    }

    fn prepared(&self, node: Node<Self>) -> Node<Self> {
        node.with("organization", ORGANIZATION)
    }
}

impl RecordServer for PhpIpam {
    type Record = phpipam::Record;

    const SECRETS: &'static [&'static str] = &[phpipam::CODE, phpipam::PASSWORD];

    fn of_all_tests() -> &'static Self {
        Self::shared()
    }

    fn make_subnet(&self, cidr: &str, name: &str) -> String {
        self.subnet(cidr, name)
    }

    fn records_in(&self, subnet: &str) -> Vec<phpipam::Record> {
        self.records(subnet)
    }

    fn address_of(record: &phpipam::Record) -> &str {
        &record.address
    }

    fn prepared(&self, node: Node<Self>) -> Node<Self> {
        if !self.is_real() {
            return node;
        }
        // Others may have subnets of the same CIDRs in it.
        let (app, code) = self.app();
        node.with("appId", app).with("token", code).with("section", self.section(1))
    }
}

/// A subnet that no other test uses.
pub struct RecordSite<'a, S> {
    pub server: &'a S,
    /// The id of the subnet.
    pub subnet: String,
    pub cidr: String,
}

impl<S: RecordServer> RecordSite<'static, S> {
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
        Self::on(S::of_all_tests(), &format!("10.99.{count}.0/{bits}"))
    }
}

impl<'a, S: RecordServer> RecordSite<'a, S> {
    #[track_caller]
    pub fn on(server: &'a S, cidr: &str) -> Self {
        let subnet = server.make_subnet(cidr, &format!("of {cidr}"));
        Self { server, subnet, cidr: cidr.to_owned() }
    }

    /// A node that knows the subnet by its id.
    pub fn node(&self) -> Node<S> {
        self.node_at(&self.server.address())
    }

    /// The same through another endpoint.
    pub fn node_at(&self, url: &str) -> Node<S> {
        // The server may be slow while other tests run.
        let node = Node::at(&[url.to_owned()]).with_pools(&[&self.subnet]);
        self.server.prepared(node).patient()
    }

    /// A node whose owners no other test has. Without memory, a release looks for its owner in all
    /// subnets of the server, those of other tests too.
    pub fn lone_node(&self) -> Node<S> {
        self.node().named(&format!("node-of-{}", self.subnet))
    }

    /// So many nodes, each with an identity of its own.
    pub fn nodes(&self, count: usize) -> Vec<Node<S>> {
        (0..count).map(|n| self.node().named(&format!("node-{n}"))).collect()
    }

    /// A chain on a node of its own, and a network of it that asks for an address of the subnet.
    pub fn chain(&self) -> (World, Value) {
        let (world, program) = (World::new(), program::<S>());
        world.install(&binary("ipam-ds-static")).install(&binary(&program));
        let node = self.node();
        let mut network = world.network(json!(["ipam-ds-static", program]));
        network["cniVersion"] = json!("1.1.0");
        network["ipam"]["pools"] = node.pools;
        network["ipam"][S::NAME] = node.store[S::NAME].clone();
        (world, network)
    }

    #[track_caller]
    pub fn records(&self) -> Vec<S::Record> {
        self.server.records_in(&self.subnet)
    }

    /// How many records each address has.
    #[track_caller]
    pub fn addresses(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for record in self.records() {
            *counts.entry(S::address_of(&record).to_owned()).or_default() += 1;
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
pub fn brief<S: Store>(node: &Node<S>, verb: &str, known: &Value) -> Outcome {
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
pub fn assert_told<S: RecordServer>(
    node: &Node<S>,
    what: &str,
    result: &Value,
    codes: [u64; 4],
    parts: &[&str],
) {
    for (verb, code) in VERBS.into_iter().zip(codes) {
        let known = if verb == "ADD" { json!({}) } else { given(result) };
        let outcome = brief(node, verb, &known);
        let all = format!("{outcome:?}");
        let shown = S::SECRETS.iter().find(|secret| all.contains(**secret));
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

/// For the data of a call, in KiB; the kernel refuses more.
const MEMORY: u64 = 8 * 1024;

const HELD: u32 = 4_000;

/// The verbs fit into 8 MiB in a subnet with 4,000 addresses, which `hold` makes on the server.
#[track_caller]
pub fn assert_little_memory<S: RecordServer>(server: &S, hold: impl FnOnce(&str, Vec<String>)) {
    let site = RecordSite::on(server, "10.1.0.0/16");
    let first = u32::from(Ipv4Addr::new(10, 1, 0, 10));
    hold(&site.subnet, (first..first + HELD).map(|it| Ipv4Addr::from(it).to_string()).collect());
    let node = site.node();
    limited(&node, "ADD", &json!({})).success();
    limited(&node, "STATUS", &json!({})).success();
    let attachment = json!({"containerID": "c1", "ifname": "eth0"});
    limited(&node, "GC", &json!({"cni.dev/valid-attachments": [attachment]})).success();
    limited(&node, "DEL", &json!({})).success();
    assert_eq!(site.records().len(), HELD as usize);
}

/// A call with so much memory.
fn limited<S: Store>(node: &Node<S>, verb: &str, members: &Value) -> Outcome {
    let mut network = node.network();
    network.as_object_mut().unwrap().append(&mut members.as_object().unwrap().clone());
    let inside = node.command(verb, "c1");
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -d {MEMORY}; exec \"$@\""), "sh"]);
    limited.arg(inside.get_program()).env_clear();
    limited.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start(limited, &network))
}

/// A server whose database comes back from a backup gives no addresses until a person accepts it.
#[track_caller]
pub fn assert_refused_until_accepted<S: RecordServer, B>(
    server: &S,
    back_up: impl FnOnce() -> B,
    restore: impl FnOnce(&B),
) {
    let site = RecordSite::on(server, "10.1.0.0/24");
    let node = site.node();
    node.add("before");
    let backup = back_up();
    let result = node.add("after");
    restore(&backup);
    for (verb, container, codes) in
        [("ADD", "c3", &[11][..]), ("STATUS", "", &[50]), ("CHECK", "after", &[11, 104])]
    {
        let known = if verb == "CHECK" { given(&result) } else { json!({}) };
        let (code, text) = node.call_with(verb, container, &known).failure();
        assert!(codes.contains(&code), "{verb}: {code} {text}");
        assert!(verb == "CHECK" || text.contains("reassert"), "{verb}: {text}");
    }
    assert_eq!(site.records().len(), 1, "an address was given");
    // The server has nothing of it to release.
    node.del_known("after", &result).success();
    node.told(&["accept"]);
    node.add("c3");
    assert_eq!(site.records().len(), 2);
}

/// Whether a database that comes back lacks the latest records, or all of them, `reassert` on every
/// node makes them again under their addresses. `prepare` changes each network.
#[track_caller]
pub fn assert_reasserted<S: RecordServer, B>(
    server: &S,
    back_up: impl Fn() -> B,
    restore: impl Fn(&B),
    prepare: impl Fn(&mut Value),
) {
    for (cidr, is_emptied) in [("10.2.0.0/24", false), ("10.3.0.0/24", true)] {
        let site = RecordSite::on(server, cidr);
        let mut nodes = [site.chain(), site.chain()];
        for (world, network) in &mut nodes {
            prepare(network);
            world.conflist("10-net.conflist", network);
        }
        let succeed = |verb: &str, container: &str| {
            for (world, network) in &nodes {
                world.call(verb, container, network).success();
            }
        };
        let empty = back_up();
        succeed("ADD", "old");
        let some = back_up();
        succeed("ADD", "lost");
        let right = site.addresses();
        assert!(right.len() == 4 && right.values().all(|count| *count == 1), "{right:?}");

        restore(if is_emptied { &empty } else { &some });
        for words in [&["reassert", "--claim-only", "--yes"][..], &["reassert", "--yes"]] {
            for (world, _) in &nodes {
                let outcome = world.typed(words);
                assert_eq!(outcome.exit, Some(0), "{words:?}: {outcome:?}");
            }
            assert_eq!(site.addresses(), right, "{words:?}");
        }
        succeed("ADD", "new");
        let held = site.addresses();
        assert!(held.len() == 6 && held.values().all(|count| *count == 1), "{held:?}");
        for container in ["new", "lost", "old"] {
            succeed("DEL", container);
        }
        site.assert_empty();
    }
}
