//! Three nodes, twenty workers and random kills, on a cluster whose members are killed, cut off and
//! stopped all the while: no address ever has two holders, every call ends, and nothing is left in
//! the end.
//!
//! Every day a tenth of it runs, and a twentieth beside old nodes; `IPAM_DELEGATED_TESTS=full` runs all of it, `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ipam_testkit::etcd::{Cluster, Etcd};
use ipam_testkit::history::Verb;
use ipam_testkit::history::cluster::{
    Lease, Nodes, Store, assert_bug_of_old_nodes_is_found, assert_lost_leases_are_found,
    assert_planted_double_is_found, assert_released_through_restarts, assert_sound_through_faults,
};
use ipam_testkit::history::old_nodes::OldNode;
use ipam_testkit::old::Done;
use ipam_testkit::old::whereabouts::InEtcd;
use serde_json::{Map, Value, json};

/// The pools of the network.
const RANGES: [&str; 2] = ["10.5.0.0/26", "fd05::/120"];

/// What the keys of the network begin with.
const NETWORK: &str = "/ipam-delegated/networks/net/";

/// Our keys, looked at by a member while all is well.
struct Keys<'a>(&'a Etcd);

impl Keys<'_> {
    #[track_caller]
    fn values(&self, kind: &str) -> Vec<Value> {
        let prefix = format!("{NETWORK}{kind}/");
        let text = self.0.etcdctl(&["get", "--prefix", "--print-value-only", "--", &prefix]);
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Store for Keys<'_> {
    const NAME: &'static str = "etcd";

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        let sets = RANGES.map(|range| json!([{ "subnet": range }]));
        ipam.insert("ranges".to_owned(), json!(sets));
        ipam.insert("etcd".to_owned(), json!({"endpoints": endpoints, "timeout": timeout}));
    }

    fn leases(&self) -> Vec<Lease> {
        let lease = |value: &Value| {
            let text = |key: &str| value[key].as_str().unwrap().to_owned();
            let address = text("address").split('/').next().unwrap().parse().unwrap();
            Lease { node: text("node"), container: text("container"), address }
        };
        self.values("leases").iter().map(lease).collect()
    }

    fn owners(&self) -> Vec<Value> {
        self.values("owners")
    }

    fn forget_leases(&self) {
        self.0.etcdctl(&["del", "--prefix", &format!("{NETWORK}leases/")]);
    }

    /// All keys of the store but the one that every network keeps.
    fn holdings(&self) -> Vec<String> {
        let mut keys = self.0.keys("");
        keys.retain(|key| *key != format!("{NETWORK}latest"));
        keys
    }
}

#[test]
fn no_address_ever_has_two_holders_whatever_happens_to_the_cluster() {
    let cluster = Cluster::start(3);
    let endpoints = cluster.members().iter().map(Etcd::endpoint).collect();
    let nodes = Nodes::new(endpoints, Keys(cluster.member(0)));
    assert_sound_through_faults(&cluster, &nodes, &[]);
}

/// What the ids of old nodes' containers begin with.
const OLD: &str = "old";

/// A node with whereabouts, which knows one member of a cluster, and the first pool.
struct Whereabouts<'a> {
    members: &'a [Etcd],
    number: usize,
    program: InEtcd,
}

impl<'a> Whereabouts<'a> {
    fn new(members: &'a [Etcd], number: usize) -> Self {
        let program = InEtcd::new(&members[number % members.len()], &json!({"range": RANGES[0]}));
        Self { members, number, program }
    }

    /// Ends the session of a call that has not done so, as etcd does after 60 s.
    fn expire(&self, session: i64) {
        let is_gone = |member: &Etcd| match member.requests().revoke(session) {
            Ok(()) => true,
            Err(error) => error.contains("not found"),
        };
        while !self.members.iter().any(is_gone) {
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all members answer again, so that a request which has failed takes effect no
    /// more.
    fn wait_for_members(&self) {
        while !self.members.iter().all(|member| member.answers().is_ok()) {
            sleep(Duration::from_millis(100));
        }
        sleep(Duration::from_secs(1));
    }
}

impl OldNode for Whereabouts<'_> {
    fn name(&self) -> String {
        format!("{OLD}{}", self.number)
    }

    fn call(
        &self,
        verb: Verb,
        container: &str,
        killed_after: Option<usize>,
    ) -> Option<Result<Vec<IpAddr>, String>> {
        let mut call = match verb {
            Verb::Add => self.program.add(container),
            Verb::Del => self.program.del(container),
        };
        let requests: Vec<Done> = call.by_ref().take(killed_after.unwrap_or(usize::MAX)).collect();
        let ended = match killed_after {
            None => Some(call.run()),
            Some(_) => {
                drop(call);
                sleep(Duration::from_millis(100));
                None
            }
        };
        if matches!(&ended, Some(Err(text)) if !text.contains("Could not allocate")) {
            self.wait_for_members();
        }
        if let Some(Done::Granted { lease, .. }) = requests.first()
            && !requests.contains(&Done::Revoked)
        {
            self.expire(*lease);
        }
        ended
    }
}

/// Ends the sessions of our calls that were killed in the queue of a mutex, as etcd does after 10 s:
/// a call that lives is the first of a queue for a moment only, or gets another place.
fn expire_places(members: &[Etcd], is_over: &Receiver<()>) {
    let mut first: [(i64, Instant); 2] = [(0, Instant::now()); 2];
    while is_over.recv_timeout(Duration::from_millis(200)) == Err(RecvTimeoutError::Timeout) {
        for (range, first) in RANGES.iter().zip(&mut first) {
            let queue = |member: &Etcd| member.requests().list(&format!("/whereabouts/{range}/"));
            let queue = members.iter().find_map(|member| queue(member).ok()).unwrap_or_default();
            let Some(oldest) = queue.iter().min_by_key(|entry| entry.created) else { continue };
            if first.0 != oldest.created {
                *first = (oldest.created, Instant::now());
            } else if oldest.value == "ipam-delegated" && first.1.elapsed().as_millis() > 500 {
                let session = oldest.key.rsplit('/').next().unwrap();
                let session = i64::from_str_radix(session, 16).unwrap();
                members.iter().any(|member| member.requests().revoke(session).is_ok());
            }
        }
    }
}

/// The values of whereabouts, whose lines our keys explain.
struct Pools<'a>(&'a Etcd);

impl Pools<'_> {
    #[track_caller]
    fn below(&self, prefix: &str) -> Vec<(String, String)> {
        let entries = self.0.requests().list(prefix).unwrap();
        entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
    }

    /// The address and the container of each line.
    fn lines(&self) -> Vec<(IpAddr, String)> {
        let mut lines = Vec::new();
        for (key, value) in self.below("/whereabouts/") {
            let is_pool = key.rsplit_once('/').is_some_and(|(_, length)| length.len() < 4)
                && !key.contains("ipam-delegated");
            for line in value.lines().filter(|_| is_pool) {
                let (address, id) = line.split_once(' ').unwrap();
                lines.push((address.parse().unwrap(), id.to_owned()));
            }
        }
        lines
    }
}

impl Store for Pools<'_> {
    const NAME: &'static str = "etcd";

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        Keys(self.0).configure(ipam, endpoints, timeout);
        ipam["etcd"]["layout"] = "whereabouts".into();
    }

    fn leases(&self) -> Vec<Lease> {
        let owners = self.owners();
        let lease = |(address, container): (IpAddr, String)| {
            let is_listed = |owner: &&Value| {
                let mut items = owner["leases"].as_array().unwrap().iter();
                let text = format!("{address}/");
                owner["container"] == *container
                    && items.any(|item| item["address"].as_str().unwrap().starts_with(&text))
            };
            let owner = owners.iter().find(is_listed);
            let node = owner.map_or("", |owner| owner["node"].as_str().unwrap()).to_owned();
            Lease { node, container, address }
        };
        let ours = self.lines().into_iter().filter(|(_, id)| !id.starts_with(OLD));
        ours.map(lease).collect()
    }

    fn owners(&self) -> Vec<Value> {
        let owners = self.below("/whereabouts/ipam-delegated/owners/");
        owners.iter().map(|(_, value)| serde_json::from_str(value).unwrap()).collect()
    }

    fn forget_leases(&self) {
        self.0.etcdctl(&["del", "--prefix", "/whereabouts/10.5.0.0/26"]);
    }

    /// All lines and owners, and the keys of mutexes.
    fn holdings(&self) -> Vec<String> {
        let lines = self.lines().into_iter().map(|(address, id)| format!("{address} {id}"));
        let keys = self.below("/whereabouts/").into_iter().map(|(key, _)| key);
        let is_of_network = |key: &str| key.contains("/latest/") || key.contains("/written/");
        let ours = keys.filter(|key| {
            key.contains("/owners/") || (key.matches('/').count() == 4 && !is_of_network(key))
        });
        lines.chain(ours).collect()
    }
}

#[test]
fn no_address_of_a_value_ever_has_two_holders_whatever_happens_to_the_cluster() {
    let cluster = Cluster::start(3);
    let endpoints = cluster.members().iter().map(Etcd::endpoint).collect();
    let nodes = Nodes::new(endpoints, Pools(cluster.member(0)));
    let old: Vec<Whereabouts<'_>> =
        (0..3).map(|number| Whereabouts::new(cluster.members(), number)).collect();
    let old: Vec<&dyn OldNode> = old.iter().map(|node| node as &dyn OldNode).collect();
    let (end, is_over) = channel();
    thread::scope(|scope| {
        let members = cluster.members();
        scope.spawn(move || expire_places(members, &is_over));
        let _end: Sender<()> = end;
        assert_sound_through_faults(&cluster, &nodes, &old);
    });
}

#[test]
fn a_whereabouts_that_takes_no_mutex_is_found() {
    let server = [Etcd::start()];
    let nodes = Nodes::new(vec![server[0].endpoint()], Pools(&server[0]));
    let node = |number| {
        let mut node = Whereabouts::new(&server, number);
        node.program = node.program.without_mutex().delay(Duration::from_millis(10));
        node
    };
    let old: Vec<Whereabouts<'_>> = (0..3).map(node).collect();
    let old: Vec<&dyn OldNode> = old.iter().map(|node| node as &dyn OldNode).collect();
    assert_bug_of_old_nodes_is_found(&nodes, &old);
}

#[test]
fn a_planted_double_in_a_real_history_is_found() {
    let server = Etcd::start();
    assert_planted_double_is_found(&Nodes::new(vec![server.endpoint()], Keys(&server)));
}

#[test]
fn an_address_that_is_given_twice_is_found() {
    let server = Etcd::start();
    assert_lost_leases_are_found(&Nodes::new(vec![server.endpoint()], Keys(&server)));
}

/// Servers that are all killed, and start with what they have written.
#[track_caller]
fn assert_released_through_restarts_of(servers: u8) {
    let cluster = Cluster::start(servers);
    let endpoints: Vec<String> = cluster.members().iter().map(Etcd::endpoint).collect();
    let member = cluster.member(0);
    assert_released_through_restarts(&cluster, &endpoints, &Keys(member));
}

#[test]
fn what_is_released_while_the_only_server_restarts_is_released() {
    assert_released_through_restarts_of(1);
}

#[test]
fn what_is_released_while_all_servers_restart_is_released() {
    assert_released_through_restarts_of(3);
}
