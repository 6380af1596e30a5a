//! Misspelt keys in an annotation.

use std::fs;

use ipam_testkit::world::Outcome;
use serde_json::json;

use crate::common::{ANNOTATION, SELECTOR, Site};

const RIGHT: &str = r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#;
const MISSPELT: &str =
    r#""ranges": [[{"subnet": "172.16.5.0/24", "rangeStat": "172.16.5.9", "vlan": 7}]]"#;

/// What a call has logged about keys.
fn warnings(outcome: &Outcome) -> Vec<&str> {
    outcome.stderr.lines().filter(|line| line.contains(" is ignored (did you mean ")).collect()
}

#[test]
fn the_preset_serves_it_with_one_warning() {
    let site = Site::new(MISSPELT);
    let mut network = site.network();
    network["cniVersion"] = "1.1.0".into();
    for (verb, container) in [("ADD", "c1"), ("STATUS", "")] {
        let outcome = site.call_with(verb, container, &network);
        let told = warnings(&outcome);
        let words = "pools[0].ranges[0].rangeStat is ignored (did you mean rangeStart?)";
        assert!(told.len() == 1 && told[0].contains(words), "{verb}: {told:#?}");
        assert!(told[0].contains(SELECTOR), "{told:#?}");
        outcome.ended_well();
    }
    assert_eq!(site.leases("net"), ["172.16.5.2"]);
    let outcome = site.call_with("DEL", "c1", &network);
    assert_eq!(warnings(&outcome), [""; 0]);
}

#[test]
fn a_chain_of_ones_own_refuses_it_on_add_and_status() {
    let site = Site::new(RIGHT);
    let mut network = site.chain("ipam-da-local");
    network["cniVersion"] = "1.1.0".into();
    let result = site.call_with("ADD", "c1", &network).success();
    site.annotate(MISSPELT);
    let place = format!(
        "{SELECTOR}: annotation {ANNOTATION} of node {}: ipam.ranges[0][0].rangeStat: unknown key (did you mean rangeStart?)",
        site.node
    );
    for (verb, container) in [("ADD", "c2"), ("STATUS", "")] {
        let (_, text) = site.call_with(verb, container, &network).failure();
        assert!(text.starts_with(&place), "{verb}: {text}");
    }
    // Without a record the chain runs as it is configured.
    fs::remove_dir_all(site.world.path("state/attachments")).unwrap();
    let mut checked = network.clone();
    checked["prevResult"] = json!({"cniVersion": "1.1.0", "ips": result["ips"]});
    site.call_with("CHECK", "c1", &checked).ended_well();
    site.call_with("DEL", "c1", &network).ended_well();
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn one_in_the_hosts_file_is_warned_of_once() {
    let site = Site::new(RIGHT);
    site.conf(&json!({"nextIpam": "/opt/cni/bin/host-local", "comment": "x"}));
    let outcome = site.call("ADD", "c1");
    let told = warnings(&outcome);
    let words = "/etc/cni/node-annotation.conf.nextIpam is ignored (did you mean nextipam?)";
    assert!(told.len() == 1 && told[0].contains(words), "{told:#?}");
    outcome.ended_well();
    assert_eq!(warnings(&site.call("DEL", "c1")), [""; 0]);
}
