//! How a record leads to its store: its servers, files and secrets, and those of the present configuration.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;

use ipam_testkit::world::{World, with};
use serde_json::{Value, json};

/// A chain whose allocator has a store behind servers.
fn network(world: &World, servers: &[&str], token: &str) -> Value {
    let mut network = world.network(json!(["ipam-da-x"]));
    network["ipam"]["consul_servers"] = json!(servers);
    network["ipam"]["consul"] = json!({"token": token});
    network
}

fn world() -> World {
    let world = World::new();
    world.allocator("ipam-da-x", "10.0.0.2/24");
    world
}

trait Aging {
    /// What the allocator was given since the last look: verb and token of each call.
    fn tokens(&self) -> Vec<(String, String)>;
    /// Takes out of a record what older programs did not write.
    fn make_old(&self, container: &str);
}

impl Aging for World {
    fn tokens(&self) -> Vec<(String, String)> {
        let calls = self.calls().into_iter().filter(|call| call["delegate"] == "ipam-da-x");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let tokens = calls
            .map(|call| (text(&call["verb"]), text(&call["stdin"]["ipam"]["consul"]["token"])))
            .collect();
        self.take_calls();
        tokens
    }

    fn make_old(&self, container: &str) {
        let lines: Vec<String> = self
            .lines(container)
            .into_iter()
            .map(|mut line| {
                line.as_object_mut().unwrap().remove("configured");
                line.to_string() + "\n"
            })
            .collect();
        fs::write(self.record(container), lines.concat()).unwrap();
    }
}

fn given(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(verb, token)| ((*verb).to_owned(), (*token).to_owned())).collect()
}

const SITE: [&str; 2] = ["http://10.1.1.1:8500", "http://10.1.1.2:8500"];

#[test]
fn a_secret_of_the_configuration_does_not_go_to_servers_that_a_selector_named() {
    let world = world();
    let patch = json!({"consul_servers": ["http://10.9.9.9:80"], "consul": {"token": "theirs"}});
    let answer = json!({"cniVersion": "1.0.0", "pools": [{"name": "blue"}], "ipam": patch});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.delegate(
        "ipam-da-z",
        "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }",
    );
    let mut network = network(&world, &SITE, "REAL");
    let selector = json!({"type": "ipam-ds-x", "sets": ["consul", "consul_servers"]});
    network["ipam"]["delegates"] = json!([selector, "ipam-da-x", "ipam-da-z"]);
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 100);
    assert_eq!(world.tokens(), given(&[("ADD", "theirs"), ("DEL", "theirs")]));
    network["ipam"]["delegates"] = json!([selector, "ipam-da-x"]);
    world.call("ADD", "c2", &network).success();
    world.call("CHECK", "c2", &network).success();
    world.call("DEL", "c2", &network).success();
    let expected = [("ADD", "theirs"), ("CHECK", "theirs"), ("DEL", "theirs")];
    assert_eq!(world.tokens(), given(&expected));
}

#[test]
fn a_rotated_secret_goes_to_recorded_servers_that_the_configuration_still_names() {
    let world = world();
    let three = [SITE[1], "http://10.1.1.3:8500", "HTTP://10.1.1.1:8500/"];
    for (servers, token) in [
        (&SITE[..], "new"),
        (&three[..], "new"),
        (&SITE[..1], "old"),
        (&["https://10.1.1.1:8500", "http://10.1.1.2:8500"], "old"),
        (&["http://10.1.1.1:8501", "http://10.1.1.2:8500"], "old"),
    ] {
        world.call("ADD", "c1", &network(&world, &SITE, "old")).success();
        world.make_old("c1");
        world.take_calls();
        let today = network(&world, servers, "new");
        world.call("CHECK", "c1", &today).success();
        world.call("DEL", "c1", &today).success();
        assert_eq!(world.tokens(), given(&[("CHECK", token), ("DEL", token)]), "{servers:?}");
    }
}

#[test]
fn a_rotated_secret_goes_to_servers_that_the_configuration_named_at_the_add() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}]));
    let chained = |servers: &[&str], token: &str| {
        let mut network = network(&world, servers, token);
        network["ipam"]["delegates"] = json!(["ipam-ds-x", "ipam-da-x"]);
        network
    };
    world.call("ADD", "c1", &chained(&SITE, "old")).success();
    let replaced = chained(&["http://10.2.2.2:8500"], "new");
    world.call("DEL", "c1", &replaced).success();
    assert_eq!(world.tokens(), given(&[("ADD", "old"), ("DEL", "new")]));
}

#[test]
fn a_refusal_after_a_withheld_secret_names_both_lists_and_forget() {
    let world = world();
    world.call("ADD", "c1", &network(&world, &SITE, "old")).success();
    world.make_old("c1");
    world.delegate("ipam-da-x", "printf '{\"code\":103,\"msg\":\"HTTP 403\"}'; exit 1");
    let replaced = network(&world, &["http://user:pw@10.2.2.2:8500"], "new");
    let (code, text) = world.call("DEL", "c1", &replaced).failure();
    assert_eq!(code, 103);
    for words in [
        "recorded: 10.1.1.1:8500, 10.1.1.2:8500; configured now: 10.2.2.2:8500",
        "the recorded secret was used",
        "ipam-delegated forget net c1 eth0 --yes",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("pw@"), "{text}");
}

#[test]
fn lint_counts_records_whose_way_to_their_store_is_not_todays() {
    let world = world();
    let network = network(&world, &SITE, "old");
    for container in ["c1", "c2"] {
        world.call("ADD", container, &network).success();
    }
    let warnings = |network: &Value| {
        world.conflist("10-net.conflist", network);
        let told = world.typed(&["lint", "net", "--json"]).stdout;
        let told: Value = serde_json::from_str(&told).unwrap();
        let findings = told[0]["findings"].as_array().unwrap().clone();
        let messages =
            findings.into_iter().map(|finding| finding["message"].as_str().unwrap().to_owned());
        messages.filter(|message| message.contains("other servers or files")).collect::<Vec<_>>()
    };
    let mut rotated = network.clone();
    rotated["ipam"]["consul"]["token"] = json!("new");
    assert_eq!(warnings(&rotated), [""; 0]);
    let mut moved = rotated;
    moved["ipam"]["consul_servers"] = json!(["http://10.2.2.2:8500"]);
    moved["ipam"]["consul"]["caFile"] = json!("/etc/ca.pem");
    let told = warnings(&moved);
    assert_eq!(told.len(), 1, "{told:?}");
    for words in ["2 records name", "ipam.consul.caFile, ipam.consul_servers", "such as c1/eth0"] {
        assert!(told[0].contains(words), "{told:?}");
    }
    std::fs::remove_file(world.record("c2")).unwrap();
    assert!(warnings(&moved)[0].starts_with("1 record names other servers"));
}

#[test]
fn a_key_that_steers_the_chain_is_no_other_way_to_a_store() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}]));
    let mut network = network(&world, &SITE, "t");
    let allocator =
        json!({"type": "ipam-da-x", "answers": "any", "timeout": "9s", "serves": ["blue"]});
    network["ipam"]["delegates"] = json!(["ipam-ds-x", allocator]);
    world.call("ADD", "c1", &network).success();
    world.call("CHECK", "c1", &network).success();
    world.call("DEL", "c1", &network).success();
    let calls = world.calls();
    let mut later = calls.iter().filter(|call| call["verb"] != "ADD");
    assert!(later.all(|call| call["stdin"]["prevResult"].get("present").is_none()), "{calls:?}");
}

#[test]
fn a_configuration_without_the_store_that_a_selector_named_is_no_other_way_to_it() {
    let world = world();
    let answer = json!({"pools": [{"name": "blue"}], "ipam": {"kube": {"kubeconfig": "/k"}}});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    let mut network = world.network(json!([{"type": "ipam-ds-x", "sets": ["kube"]}, "ipam-da-x"]));
    network["ipam"]["kubernetes"] = json!({"kubeconfig": "/k"});
    world.call("ADD", "c1", &network).success();
    let present = |network: &Value| {
        world.call("CHECK", "c1", network).success();
        let call = world.calls().pop().unwrap();
        call["stdin"]["prevResult"].get("present").is_some()
    };
    assert!(!present(&network));
    network["ipam"]["kube"] = json!({"kubeconfig": "/other"});
    assert!(present(&network));
}

#[test]
fn a_recorded_file_that_is_gone_is_replaced_by_todays_of_the_same_key() {
    let world = world();
    let files = |folder: &str| {
        fs::create_dir_all(world.path(folder)).unwrap();
        let file = |name: &str| {
            let path = world.path(folder).join(name);
            fs::write(&path, "x").unwrap();
            path
        };
        json!({"certFile": file("cert"), "keyFile": file("key"), "caFile": file("ca"), "timeout": folder})
    };
    let named = |section: &Value| with(&network(&world, &SITE, ""), "consul", section.clone());
    let before = files("one");
    world.call("ADD", "c1", &named(&before)).success();
    let after = files("two");
    let given = |verb: &str| {
        world.take_calls();
        world.call(verb, "c1", &named(&after)).success();
        world.calls()[0]["stdin"]["ipam"]["consul"].clone()
    };
    assert_eq!(given("CHECK"), before);
    // The key alone is gone: the certificate goes with it.
    fs::remove_file(world.path("one/key")).unwrap();
    assert_eq!(given("DEL"), with_timeout(&after, "one"));
}

fn with_timeout(section: &Value, timeout: &str) -> Value {
    let mut section = section.clone();
    section["timeout"] = json!(timeout);
    section
}

#[test]
fn no_allocator_looks_elsewhere_if_the_selector_of_its_store_fails() {
    let world = world();
    world.delegate("ipam-ds-x", r#"printf '{"code":7,"msg":"the file is broken"}'; exit 1"#);
    for (sets, runs) in [(json!(["kube"]), false), (json!(["idle"]), false), (Value::Null, true)] {
        let mut selector = json!({"type": "ipam-ds-x"});
        if !sets.is_null() {
            selector["sets"] = sets;
        }
        let mut network = world.network(json!([selector, "ipam-da-x"]));
        let given = [json!({"address": "10.0.0.2/24"})];
        network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": given});
        world.take_calls();
        let outcome = world.call("DEL", "c1", &network);
        assert_eq!(outcome.exit == Some(0), runs, "{outcome:?}");
        let calls = world.take_calls();
        assert_eq!(calls.contains(&"ipam-da-x DEL".to_owned()), runs, "{calls:?}");
    }
}
