//! The README says what the program and Consul do: its commands are run, its networks are used.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use ipam_testkit::certificates::Certificates;
use ipam_testkit::consul::Consul;
use ipam_testkit::pages::{CONFLIST, Page, Shell};
use ipam_testkit::world::without;
use serde_json::{Value, json};

const TOKEN: &str = "/etc/cni/consul.token";
const BACKUP: &str = "/var/backups/consul.snap";

const POOL: &str = r#"[{"subnet": "10.216.0.0/16", "gateway": "10.216.0.1"}]"#;

fn readme() -> Page {
    Page::read("delegates/ipam-da-consul/README.md")
}

/// A shell in which `consul` talks to a server.
fn shell_of(consul: &Consul) -> Shell {
    let mut shell = Shell::new("ipam-da-consul");
    let program = shell.world.path("bin/consul");
    std::os::unix::fs::symlink(ipam_testkit::consul::program(), program).unwrap();
    shell.set("CONSUL_HTTP_ADDR", &consul.endpoint());
    shell.keep(TOKEN);
    shell.keep(BACKUP);
    shell
}

fn network(shell: &Shell, consul: &Consul, node: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": "racknet", "type": "bridge", "ipam": {
        "type": "ipam-da-consul", "pools": [{"name": "web"}], "node": node,
        "stateDir": shell.world.path(node), "consul_servers": [consul.url()]}})
}

#[test]
fn the_commands_print_what_is_shown() {
    let consul = Consul::start();
    let shell = shell_of(&consul);
    shell.try_all(&readme().commands_of("Example", "consul kv put"));
    assert_eq!(consul.get("ipam/web").as_deref(), Some(POOL));
    for (container, node, address) in [
        ("3f9c1e", "rack1-7", "10.216.0.2"),
        ("c0ffee", "rack2-1", "10.216.0.3"),
        ("77ab02", "rack1-7", "10.216.0.7"),
    ] {
        let mut network = network(&shell, &consul, node);
        network["ipam"]["pools"][0]["requested-ip"] = json!(address);
        shell.call("ipam-da-consul", "ADD", container, &network).success();
    }
    let mut plugin = network(&shell, &consul, "rack1-7");
    plugin.as_object_mut().unwrap().remove("name");
    let conflist = json!({"cniVersion": "1.0.0", "name": "racknet", "plugins": [plugin]});
    fs::write(shell.file(CONFLIST), conflist.to_string()).unwrap();

    shell.try_all(&readme().commands_of("State", "consul kv"));
    shell.try_all(&readme().commands_of("Running Consul for it", "consul"));
    shell.try_all(&readme().commands_of("Verbs", "/opt/cni/bin/ipam-da-consul "));
    assert_eq!(consul.keys("ipam/web/").len(), 3);
    // The table names every key that is there.
    let page = readme();
    let table = page.section("State");
    let is_other = |key: &str| ["10.216.0.2", "3f9c1e", "rack2-1"].iter().any(|o| key.ends_with(o));
    let keys = consul.keys("ipam/");
    for key in keys.iter().filter(|key| !is_other(key.trim_end_matches("/eth0"))) {
        assert!(table.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn each_policy_lets_everything_be_done() {
    for (policy, is_indexed) in [("ipam", true), ("ipam-web", true), ("ipam-web-alone", false)] {
        let consul = Consul::builder().acl().start();
        let mut shell = shell_of(&consul);
        shell.set("CONSUL_HTTP_TOKEN", &consul.management().secret);
        for key in ["ipam/", "ipam/web/"] {
            consul.put(key, "");
        }
        consul.put("ipam/web", POOL);
        consul.put("ipam/web/10.216.0.9", r#"{"target": "before"}"#);
        shell.try_all(&readme().commands_of("Rights", "consul acl policy"));
        // The token of the page has the first policy.
        let (command, printed) = readme().commands_of("Rights", "consul acl token").remove(0);
        let command = command.replace("-policy-name ipam ", &format!("-policy-name {policy} "));
        shell.try_all(&[(command, printed)]);

        let mut network = network(&shell, &consul, "rack1-7");
        network["ipam"]["consul"] =
            json!({"tokenFile": shell.file(TOKEN), "resultCache": shell.world.path("results")});
        let call = |verb: &str, container: &str, ifname: &str, network: &Value| {
            shell.call_for(verb, [container, ifname], network)
        };
        let [first, second] =
            ["eth0", "eth1"].map(|ifname| call("ADD", "c1", ifname, &network).ips());
        assert_ne!(first, second, "{policy}");
        network["prevResult"] = call("ADD", "c1", "eth0", &network).success();
        assert_eq!(network["prevResult"]["ips"][0]["address"], *first[0], "{policy}");
        call("CHECK", "c1", "eth0", &network).success();
        network.as_object_mut().unwrap().remove("prevResult");
        call("DEL", "c1", "eth0", &network).success();
        assert_eq!(call("ADD", "c1", "eth1", &network).ips(), second, "{policy}");
        call("DEL", "before", "eth0", &network).success();
        assert_eq!(consul.keys("ipam/web/").len(), 2, "{policy}");
        assert_eq!(consul.keys("ipam/.owners/").is_empty(), !is_indexed, "{policy}");

        network["cniVersion"] = json!("1.1.0");
        call("STATUS", "", "", &network).success();
        network["cni.dev/valid-attachments"] = json!([]);
        call("GC", "", "", &network).success();
        let listed = shell.list(&network);
        assert!(String::from_utf8(listed.stdout).unwrap().contains("rack1-7"), "{policy}");

        // And nothing else.
        let mut other = network.clone();
        other["ipam"]["pools"] = json!([{"name": "db"}]);
        consul.put("ipam/db", POOL);
        let outcome = call("ADD", "c2", "eth0", &other);
        assert_eq!(outcome.exit == Some(0), policy == "ipam", "{policy}: {outcome:?}");
        if policy != "ipam" {
            let (code, text) = outcome.failure();
            assert!(code == 103 && text.contains("the Consul token may not "), "{code}: {text}");
        }
    }
}

#[test]
fn the_networks_work() {
    let consul = Consul::start();
    consul.put("ipam/web", POOL);
    let shell = shell_of(&consul);
    let page = readme();
    let networks = page.blocks("Example", "json");
    assert_eq!(networks.len(), 2, "in a chain, and without one");
    for (i, network) in (2..).zip(networks) {
        let mut network: Value = serde_json::from_str(network).unwrap();
        let program = network["ipam"]["type"].as_str().unwrap().to_owned();
        network["ipam"]["consul_servers"] = json!([consul.url()]);
        network["ipam"]["stateDir"] = json!(shell.world.path("state"));
        let given = shell.call(&program, "ADD", &program, &network).success();
        assert_eq!(given["ips"][0]["address"], format!("10.216.0.{i}/16"), "{program}");
        assert_eq!(given["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.216.0.1"}]), "{program}");
    }
}

#[test]
fn the_example_works_with_a_token_over_tls() {
    let certificates = Certificates::make();
    let server = certificates.server();
    let tls = ipam_testkit::consul::Tls {
        authority: certificates.authority(),
        certificate: server.certificate,
        key: server.key,
        verify_incoming: false,
    };
    let consul = Consul::builder().acl().tls(tls).start();
    consul.put("ipam/web", POOL);
    let shell = shell_of(&consul);
    let example = "../../examples/65-ipam-delegated-consul.conflist";
    let example = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(example)).unwrap();
    let conflist: Value = serde_json::from_slice(&example).unwrap();
    let mut network = conflist["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        network[key] = conflist[key].clone();
    }
    let token = consul.create_token(r#"key_prefix "ipam/" { policy = "write" }"#);
    fs::write(shell.file(TOKEN), &token.secret).unwrap();
    let ipam = &mut network["ipam"];
    ipam["stateDir"] = json!(shell.world.path("state"));
    ipam["consul_servers"] = json!([consul.url()]);
    ipam["consul"]["tokenFile"] = json!(shell.file(TOKEN));
    ipam["consul"]["caFile"] = json!(certificates.authority());

    let call = |verb: &str, network: &Value| shell.call("ipam-delegated", verb, "c1", network);
    let result = call("ADD", &network).success();
    assert_eq!(result["ips"][0]["address"], "10.216.0.2/16");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.216.0.1"}]));
    network["prevResult"] = result;
    call("CHECK", &network).success();
    // The record knows the store.
    network.as_object_mut().unwrap().remove("prevResult");
    call("DEL", &without(&network, &["pools", "consul", "consul_servers", "delegates"])).success();
    assert_eq!(consul.keys("ipam/web/"), ["ipam/web/"]);
}

#[test]
fn a_definition_gives_what_is_said_of_it() {
    let consul = Consul::start();
    let shell = shell_of(&consul);
    let page = readme();
    consul.put("ipam/web", page.blocks("Pools", "json")[0]);
    let mut network = network(&shell, &consul, "rack1-7");
    let call =
        |container: &str, network: &Value| shell.call("ipam-da-consul", "ADD", container, network);
    assert_eq!(call("c0", &network).ips(), ["10.216.21.100/23"]);
    for (address, refused) in [
        ("10.216.21.150", false),
        ("10.216.21.151", true),
        ("10.216.20.1", true),
        ("10.217.0.0", true),
        ("10.217.0.1", false),
        ("10.217.0.53", true),
        ("10.217.9.7", true),
        ("10.217.255.254", false),
        ("10.217.255.255", true),
    ] {
        network["ipam"]["pools"][0]["requested-ip"] = json!(address);
        let outcome = call(address, &network);
        if refused {
            assert_eq!(outcome.failure().0, 101, "{address}");
        } else {
            assert!(outcome.ips()[0].starts_with(&format!("{address}/")), "{address}");
        }
    }
}

#[test]
fn a_requested_address_is_taken_over_where_the_pool_says_so() {
    let consul = Consul::start();
    consul.put("ipam/web", POOL);
    let shell = shell_of(&consul);
    let mut network = network(&shell, &consul, "rack1-7");
    for (key, value) in readme().keys("A requested address") {
        network["ipam"][key] = value;
    }
    let call =
        |container: &str, network: &Value| shell.call("ipam-da-consul", "ADD", container, network);
    assert_eq!(call("first", &network).ips(), ["10.216.0.7/16"]);
    let mut plain = network.clone();
    plain["ipam"].as_object_mut().unwrap().remove("takeover");
    let (code, text) = call("second", &plain).failure();
    assert!(code == 102 && text.contains("first/eth0 of node rack1-7"), "{code}: {text}");
    let second = call("second", &network);
    assert!(second.stderr.contains("takes over 10.216.0.7"), "{second:?}");
    assert_eq!(second.ips(), ["10.216.0.7/16"]);
    plain["ipam"]["pools"][0]["takeover"] = json!(true);
    assert_eq!(call("third", &plain).failure().0, 102);
    consul.put("ipam/web/10.216.0.7", "by hand");
    let (code, text) = call("fourth", &network).failure();
    assert!(code == 102 && text.contains("ipam/web/10.216.0.7"), "{code}: {text}");
}

#[test]
fn after_a_restore_the_commands_give_nothing_away_that_is_held() {
    let consul = Consul::start();
    consul.put("ipam/web", POOL);
    let shell = shell_of(&consul);
    let given = shell.assert_reasserted(
        &network(&shell, &consul, ""),
        &readme().commands_of("A restored store", "/opt/cni/bin/ipam-delegated reassert"),
        || consul.snapshot(),
        |snapshot| consul.restore(snapshot),
        || consul.keys("ipam/web/10"),
    );
    assert!(!["10.216.0.2/16", "10.216.0.3/16"].contains(&given[0].as_str()), "{given:?}");
}

#[test]
fn every_key_of_the_section_is_in_the_table() {
    readme().assert_table_is_of("Keys", "ipam-da-consul", "consul");
}
