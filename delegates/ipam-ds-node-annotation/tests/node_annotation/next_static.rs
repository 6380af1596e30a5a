//! The real `static` of the standard plugins as the program that the host's file names.

use std::fs;
use std::path::{Path, PathBuf};

use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use crate::common::{CONF, SELECTOR, Site};

/// Addresses, and ranges that have nothing to do with them: `static` reads no ranges.
const SETTINGS: &str = r#"
  "addresses": [{"address": "10.9.0.9/24", "gateway": "10.9.0.1"}, {"address": "fd09::9/64"}],
  "ranges": [[{"subnet": "10.1.0.0/24"}]],
  "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.9.0.53"]}"#;

/// Debian's static. A missing one fails the test: `tests/run.sh` installs it.
fn program() -> PathBuf {
    let path = PathBuf::from("/usr/lib/cni/static");
    assert!(path.exists(), "{path:?} is missing: apt-get install containernetworking-plugins");
    path
}

fn site(annotation: &str) -> Site {
    let site = Site::new(annotation);
    site.conf(&json!({"nextipam": program()}));
    site
}

fn check(site: &Site, container: &str, result: &Value) -> Outcome {
    let mut network = site.network();
    network["prevResult"] = result.clone();
    site.call_with("CHECK", container, &network)
}

fn stripped() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "node-annotation"}})
}

#[test]
fn the_addresses_of_the_annotation_are_given_checked_and_forgotten() {
    let site = site(SETTINGS);
    let result = site.call("ADD", "c1").success();
    let expected = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.9.0.9/24", "gateway": "10.9.0.1"}, {"address": "fd09::9/64"}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.9.0.53"]},
    });
    assert_eq!(result, expected);
    // It gives the same again, to anybody.
    assert_eq!(site.call("ADD", "c1").success(), expected);
    assert_eq!(site.call("ADD", "c2").success(), expected);
    check(&site, "c1", &result).success();
    let mut other = result.clone();
    other["ips"][0]["address"] = "10.9.0.10/24".into();
    let (_, text) = check(&site, "c1", &other).failure();
    assert!(text.starts_with("static gave 10.9.0.9/24"), "{text}");
    site.call("DEL", "c1").success();
    site.call("DEL", "c1").success();
    // Nothing leads to it any more.
    fs::remove_file(site.host.path(CONF)).unwrap();
    fs::remove_file(site.world.path("bin").join(SELECTOR)).unwrap();
    site.call_with("DEL", "c2", &stripped()).success();
    for container in ["c1", "c2"] {
        assert!(!site.world.record(container).exists(), "{container}");
    }
    assert!(!Path::new(&site.host.path("/var/lib/cni/networks/net")).exists());
}

#[test]
fn the_addresses_that_a_call_asks_for_come_before_the_annotations() {
    let site = site(SETTINGS);
    let mut network = site.network();
    network["args"] = json!({"cni": {"ips": ["10.9.0.33/24"]}});
    assert_eq!(site.call_with("ADD", "c1", &network).ips(), ["10.9.0.33/24"]);
    network["runtimeConfig"] = json!({"ips": ["10.9.0.44/24", "fd09::44/64"]});
    let both = site.call_with("ADD", "c2", &network).ips();
    assert_eq!(both, ["10.9.0.44/24", "fd09::44/64"]);
    let mut command = site.command("ADD", "c3");
    command.env("CNI_ARGS", "IP=10.9.0.55/24;GATEWAY=10.9.0.1");
    let result = wait(start(command, &site.network())).success();
    // Those of CNI_ARGS it adds to what it is configured with.
    assert_eq!(result["ips"].as_array().unwrap().len(), 3);
    assert_eq!(result["ips"][2], json!({"address": "10.9.0.55/24", "gateway": "10.9.0.1"}));
    for container in ["c1", "c2", "c3"] {
        site.call_with("DEL", container, &stripped()).success();
        assert!(!site.world.record(container).exists(), "{container}");
    }
}

#[test]
fn an_annotation_without_addresses_is_an_add_that_failed_and_holds_nothing() {
    let site = site(r#""ranges": [[{"subnet": "10.1.0.0/24"}]]"#);
    let (code, text) = site.call("ADD", "c1").failure();
    assert!(code == 112 && text.contains("without an address"), "{code} {text}");
    site.call_with("DEL", "c1", &stripped()).success();
    assert!(!site.world.record("c1").exists());
}
