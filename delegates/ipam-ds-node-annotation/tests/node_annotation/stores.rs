//! The delegate before an allocator for a whole cluster: the network names the store, the annotation the addresses.

use ipam_testkit::etcd::Etcd;
use ipam_testkit::world::binary;
use serde_json::{Value, json};

use crate::common::{SELECTOR, Site};

const RANGES: &str = r#"ranges: [[{subnet: "10.44.0.0/24"}]]"#;

/// A network whose store is in etcd, in our own form and in that of host-etcd.
fn networks(site: &Site, etcd: &Etcd) -> [Value; 2] {
    let network = |name: &str, store: Value| {
        let mut network = site.chain("ipam-da-etcd");
        network["name"] = name.into();
        network["ipam"].as_object_mut().unwrap().extend(store.as_object().unwrap().clone());
        network
    };
    [
        network("ours", json!({"etcd": {"endpoints": [etcd.url()]}})),
        network("theirs", json!({"endpoints": [etcd.url()], "etcd": {"layout": "host-etcd"}})),
    ]
}

#[test]
fn the_networks_store_serves_the_addresses_of_the_annotation() {
    let etcd = Etcd::start();
    let site = Site::new(RANGES);
    site.world.install(&binary("ipam-da-etcd"));
    for network in networks(&site, &etcd) {
        let before = etcd.keys("").len();
        let result = site.call_with("ADD", "c1", &network).success();
        assert_eq!(result["ips"][0]["address"], "10.44.0.2/24", "{result}");
        assert!(etcd.keys("").len() > before, "{:?}", etcd.keys(""));
        let mut checked = network.clone();
        checked["prevResult"] = result;
        site.call_with("CHECK", "c1", &checked).success();
        // An annotation that names another store moves no lease, and stops no DEL.
        site.annotate(&format!(r#"{RANGES}, etcd: {{endpoints: ["127.0.0.1:1"]}}"#));
        let (code, error) = site.call_with("ADD", "c2", &network).failure();
        assert_eq!(code, 110, "{error}");
        let said =
            format!("{SELECTOR}: its answer sets ipam.etcd: ipam-da-etcd accepts it only from ");
        assert!(error.starts_with(&said), "{error}");
        site.call_with("DEL", "c1", &network).success();
        site.annotate(RANGES);
        assert_eq!(site.call_with("CHECK", "c1", &checked).failure().0, 104);
    }
}
