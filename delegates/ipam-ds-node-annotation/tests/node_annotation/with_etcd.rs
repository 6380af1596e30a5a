//! The annotation as the head of a chain that ends in etcd: the ranges are the annotation's, the store is
//! the network configuration's.

use std::fs;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::world::binary;
use serde_json::{Value, json};

use crate::common::{SELECTOR, Site};

const DUAL: &str = r#""ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]], "routes": [{"dst": "0.0.0.0/0"}]"#;

/// How a network names the store: in our own section, and as the replaced plugins do.
fn spellings(etcd: &Etcd) -> [(&'static str, Value); 4] {
    [
        ("ours", json!({"etcd": {"endpoints": [etcd.endpoint()]}})),
        ("ours, below a prefix", json!({"etcd": {"endpoints": [etcd.url()], "prefix": "/here"}})),
        (
            "cni-ipam-etcd's",
            json!({"etcdConfig": {"etcdURL": etcd.url()}, "etcd": {"layout": "cni-ipam-etcd"}}),
        ),
        ("host-etcd's", json!({"endpoints": [etcd.endpoint()], "etcd": {"layout": "host-etcd"}})),
    ]
}

fn network(site: &Site, name: &str, store: &Value) -> Value {
    let mut network = site.chain("ipam-da-etcd");
    network["name"] = name.into();
    for (key, value) in store.as_object().unwrap() {
        network["ipam"][key] = value.clone();
    }
    network
}

/// Every key that says that something is held: cursors, ranges and the latest claim stay.
fn holdings(etcd: &Etcd) -> Vec<String> {
    let stays = ["/latest", "/lastReserved/", "/last_reserved_ip"];
    let mut keys = etcd.keys("");
    keys.retain(|key| {
        !key.ends_with("/networks/net2") && !stays.iter().any(|part| key.contains(part))
    });
    keys
}

#[test]
fn the_store_of_the_configuration_stays_whatever_the_annotation_says() {
    let etcd = Etcd::start();
    for (number, (name, store)) in spellings(&etcd).into_iter().enumerate() {
        let site = Site::new(DUAL);
        site.world.install(&binary("ipam-da-etcd"));
        let network = network(&site, &format!("net{number}"), &store);
        let result = site.call_with("ADD", "c1", &network).success();
        let ips = result["ips"].as_array().unwrap().iter();
        let ips: Vec<_> = ips.map(|ip| ip["address"].as_str().unwrap()).collect();
        assert_eq!(ips, ["10.9.0.2/24", "fd09::2/64"], "{name}");
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0"}]), "{name}");
        assert_eq!(site.call_with("ADD", "c1", &network).success()["ips"], result["ips"], "{name}");
        let mut checked = network.clone();
        checked["prevResult"] = result;
        site.call_with("CHECK", "c1", &checked).success();
        assert_eq!(site.call_with("ADD", "c2", &network).ips().len(), 2, "{name}");
        assert!(holdings(&etcd).len() >= 4, "{name}: {:?}", holdings(&etcd));
        site.call_with("DEL", "c1", &network).success();
        // Neither node object nor selector is asked, nor what the network says of the store.
        site.kube.delete_node(&site.node);
        fs::remove_file(site.world.path("bin").join(SELECTOR)).unwrap();
        let mut stripped = network.clone();
        stripped["ipam"] = json!({"type": "ipam-delegated"});
        site.call_with("DEL", "c2", &stripped).success();
        assert_eq!(holdings(&etcd), [""; 0], "{name}");
        let left =
            ipam_testkit::world::names(&site.world.path(&format!("state/attachments/net{number}")));
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}

#[test]
fn an_annotation_that_names_a_store_is_refused_before_any_request() {
    let (etcd, other) = (Etcd::start(), Etcd::start());
    let endpoint = other.endpoint();
    for text in [
        format!(r#"{DUAL}, "etcd": {{"endpoints": ["{endpoint}"]}}"#),
        format!(r#"{DUAL}, "endpoints": ["{endpoint}"]"#),
        format!(r#"{DUAL}, "etcdConfig": {{"etcdURL": "http://{endpoint}"}}"#),
    ] {
        let site = Site::new(&text);
        site.world.install(&binary("ipam-da-etcd"));
        let store = json!({"etcd": {"endpoints": [etcd.endpoint()]}});
        let network = network(&site, "net", &store);
        let (code, error) = site.call_with("ADD", "c1", &network).failure();
        assert!(code == 110 && error.contains("etcd") || error.contains("endpoints"), "{error}");
        site.call_with("DEL", "c1", &network).success();
        assert_eq!((etcd.keys(""), other.keys("")), (vec![], vec![]));
    }
}
