//! One network of whereabouts with the datastore `etcd`, on nodes that run whereabouts and nodes that
//! run the preset `whereabouts`: while pods start and end, nodes move over one by one, and back.
//!
//! Every day a small part of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::fleet::{Fleet, Node, OldProgram, PODS, Store, network};
use ipam_testkit::old::whereabouts::InEtcd;
use ipam_testkit::world::full_size;
use serde_json::json;

const PREFIX: &str = "/whereabouts/";

/// Whereabouts 0.5.4. It releases any interface of a container, so its pods have one.
struct Old(InEtcd);

impl OldProgram for Old {
    fn ifnames(&self, _: usize) -> &'static [&'static str] {
        &["net1"]
    }

    fn add(&self, container: &str, _: &str) -> Result<Vec<IpAddr>, String> {
        self.0.add(container).run()
    }

    fn del(&self, container: &str, _: &str) {
        self.0.del(container).run().unwrap();
    }
}

/// The store with one pool.
struct Pool(Etcd);

impl Pool {
    /// The addresses and containers of all lines.
    fn lines(&self) -> Vec<(String, String)> {
        let value = self.0.get(&format!("{PREFIX}192.168.2.0/24")).unwrap_or_default();
        let lines = value.lines().map(|line| line.split_once(' ').unwrap());
        lines.map(|(address, id)| (address.to_owned(), id.to_owned())).collect()
    }
}

impl Store for Pool {
    fn holds(&self, container: &str, _: &str) -> bool {
        self.lines().iter().any(|(_, id)| id == container)
    }

    fn assert_distinct(&self) {
        let mut seen = BTreeSet::new();
        for (address, id) in self.lines() {
            assert!(seen.insert(address.clone()), "{address} of {id} is held twice");
        }
    }

    fn assert_empty(&self) {
        assert_eq!(self.lines(), []);
        let mut keys = self.0.keys(PREFIX);
        // A network keeps these two.
        keys.retain(|key| !key.contains("/latest/") && !key.contains("/written/"));
        assert_eq!(keys, [format!("{PREFIX}192.168.2.0/24")]);
    }
}

#[test]
fn nodes_move_over_and_back_while_pods_start_and_end() {
    let store = Pool(Etcd::start());
    // The flat file names the store, for the DELs that Multus strips; on some nodes the network does,
    // too.
    let flat_file = json!({"datastore": "etcd", "etcd_host": store.0.endpoint()});
    let node = |number| {
        let mut network = network();
        if number % 2 == 0 {
            network["ipam"].as_object_mut().unwrap().extend(flat_file.as_object().unwrap().clone());
        }
        let old = Old(InEtcd::new(&store.0, &network["ipam"]));
        Node::new(old, "ipam-da-etcd", &network, &flat_file)
    };
    let nodes: Vec<Node> = (0..4).map(node).collect();
    let fleet = Fleet::new(nodes, store);
    // A pod that is being replaced at a move may count for either program.
    fleet.run(if full_size() { 100 } else { PODS + 1 });
    fleet.assert_sound();
}
