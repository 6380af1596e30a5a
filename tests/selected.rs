//! What a selector's answer may set: addresses, and nothing that a secret or a file of root's could leave by.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::world::{Host, World, binary, host_local};
use serde_json::{Map, Value, json};

/// A chain of a selector that answers these settings on every verb, and an allocator in shell.
fn chain(world: &World, set: &Value, last: &str) -> Value {
    world.allocator(last, "10.0.0.9/24");
    answering(world, set);
    world.network(json!(["ipam-ds-x", last]))
}

/// Makes the selector, which answers these settings.
fn answering(world: &World, set: &Value) {
    let answer = json!({"cniVersion": "1.0.0", "pools": [{"name": "p"}], "ipam": set});
    fs::write(world.path("answer"), answer.to_string()).unwrap();
    world.delegate("ipam-ds-x", &format!("cat '{}'", world.path("answer").display()));
}

/// What a delegate was given as `ipam`, less what is the chain's.
fn given(world: &World, delegate: &str) -> Map<String, Value> {
    let calls = world.calls();
    let call = calls.iter().rfind(|call| call["delegate"] == delegate).unwrap();
    let mut ipam = call["stdin"]["ipam"].as_object().unwrap().clone();
    for key in ["type", "delegates", "stateDir", "dataDir", "node"] {
        ipam.remove(key);
    }
    ipam
}

#[test]
fn what_an_answer_says_of_the_call_reaches_no_delegate_and_no_record() {
    let world = World::new();
    let store = json!({"type": "ipam-da-x", "consul": {"servers": ["http://192.0.2.1:8500"]}});
    let answer = json!({
        "cniVersion": "1.0.0", "pools": [{"name": "p"}],
        "present": store, "undo": true, "fence": {"after": 0}, "reassert": true,
    });
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.allocator("ipam-da-x", "10.0.0.9/24");
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    let told = world.call("ADD", "c1", &network).success();
    world.call("DEL", "c1", &network).success();
    let calls = world.calls();
    let mut seen = vec![&told];
    seen.extend(calls.iter().filter_map(|call| call["stdin"].get("prevResult")));
    assert!(calls.iter().any(|call| call["verb"] == "DEL"), "{calls:?}");
    for result in seen {
        for key in ["present", "undo", "fence", "reassert"] {
            assert!(result.get(key).is_none(), "{key}: {result}");
        }
    }
}

const STORES: [&str; 20] = [
    "etcd",
    "etcdConfig",
    "endpoints",
    "certfile",
    "keyfile",
    "trustedcafile",
    "consul",
    "consul_servers",
    "nomad",
    "nomad_servers",
    "kubeconfig",
    "kube",
    "kubernetes",
    "annotation",
    "takeover",
    "gcGrace",
    "statusExhaustion",
    "serves",
    "Ranges",
    "datadir",
];

#[test]
fn what_is_not_a_selectors_to_set_is_refused_by_name_before_any_allocator_runs() {
    for key in STORES {
        let world = World::new();
        let mut network = chain(&world, &json!({key: "/var/lib/cni/x"}), "ipam-da-x");
        let (code, error) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 110, "{key}: {error}");
        assert!(error.starts_with(&format!("ipam-ds-x: its answer sets ipam.{key}: ")), "{error}");
        assert_eq!(world.take_calls(), ["ipam-ds-x ADD"], "{key}");
        // A standard plugin between the two is not run, either.
        world.allocator("between", "10.0.1.9/24");
        network["ipam"]["delegates"] = json!(["ipam-ds-x", "between", "ipam-da-x"]);
        assert_eq!(world.call("ADD", "c2", &network).failure().0, 110, "{key}");
        assert_eq!(world.take_calls(), ["ipam-ds-x ADD"], "{key}");
        assert_eq!(world.held(), [""; 0]);
    }
}

#[test]
fn an_allocator_of_ours_gets_the_addresses_that_a_selector_chose() {
    let world = World::new();
    let set = json!({
        "ranges": [[{"subnet": "10.0.0.0/24"}]], "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.1",
        "rangeEnd": "10.0.0.9", "gateway": "10.0.0.1", "exclude": [], "pools": [{"name": "p"}],
        "routes": [{"dst": "0.0.0.0/0"}], "rangeRules": "own",
    });
    let network = chain(&world, &set, "ipam-da-x");
    world.call("ADD", "c1", &network).success();
    assert_eq!(Value::Object(given(&world, "ipam-da-x")), set);
}

#[test]
fn a_null_takes_no_store_away_from_an_allocator_of_ours() {
    let world = World::new();
    let set =
        json!({"etcd": null, "consul_servers": null, "x": null, "subnet": null, "ranges": []});
    let mut network = chain(&world, &set, "ipam-da-x");
    let store = json!({
        "etcd": {"endpoints": ["10.0.0.1:2379"]}, "consul_servers": ["http://a"], "x": 1, "subnet": "10.0.0.0/24",
    });
    network["ipam"].as_object_mut().unwrap().extend(store.as_object().unwrap().clone());
    world.call("ADD", "c1", &network).success();
    let mut expected = store.as_object().unwrap().clone();
    expected.remove("subnet");
    expected.insert("ranges".to_owned(), json!([]));
    assert_eq!(given(&world, "ipam-da-x"), expected);
    // A standard plugin sees none of them, as before.
    let plain = World::new();
    let mut network = chain(&plain, &set, "plain");
    network["ipam"].as_object_mut().unwrap().extend(store.as_object().unwrap().clone());
    plain.call("ADD", "c1", &network).success();
    assert_eq!(Value::Object(given(&plain, "plain")), json!({"ranges": []}));
}

#[test]
fn the_network_opens_a_section_by_name() {
    let world = World::new();
    let set = json!({"etcd": {"endpoints": ["b"], "gone": null}, "kube": {"a": 1}});
    let mut network = chain(&world, &set, "ipam-da-x");
    network["ipam"]["etcd"] = json!({"prefix": "/p", "gone": 1});
    let open = |sets: Value| {
        let mut network = network.clone();
        network["ipam"]["delegates"][0] = json!({"type": "ipam-ds-x", "sets": sets});
        network
    };
    let (code, error) = world.call("ADD", "c1", &open(json!(["kube"]))).failure();
    assert!(
        code == 110 && error.contains("ipam.etcd: ipam-da-x accepts it only from the"),
        "{error}"
    );
    assert!(error.contains(r#"{"type": "ipam-ds-x", "sets": ["etcd"]}"#), "{error}");
    world.call("ADD", "c1", &open(json!(["kube", "etcd"]))).success();
    let expected = json!({"etcd": {"prefix": "/p", "endpoints": ["b"]}, "kube": {"a": 1}});
    assert_eq!(Value::Object(given(&world, "ipam-da-x")), expected);
    // It steers the chain, and is not for the selector.
    assert!(given(&world, "ipam-ds-x").get("sets").is_none());
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.held(), [""; 0]);
}

#[test]
fn nothing_opens_what_is_the_chains() {
    let world = World::new();
    let set = json!({"node": "n", "log_level": "debug"});
    let mut network = chain(&world, &set, "ipam-da-x");
    for key in ["node", "delegates", "NODE", "logFile", "log_level", "stateDir"] {
        network["ipam"]["delegates"][0] = json!({"type": "ipam-ds-x", "sets": ["etcd", key]});
        let (code, error) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 7, "{error}");
        assert!(
            error.starts_with(&format!("ipam.delegates[0].sets: no selector may set {key}, ")),
            "{error}"
        );
    }
    for sets in [json!("etcd"), json!([1]), json!({"etcd": true})] {
        network["ipam"]["delegates"][0]["sets"] = sets;
        let (code, error) = world.call("ADD", "c1", &network).failure();
        assert!(code == 7 && error.starts_with("ipam.delegates[0].sets: expected"), "{error}");
    }
    network["ipam"]["delegates"] = json!(["ipam-ds-x", {"type": "ipam-da-x", "sets": ["etcd"]}]);
    let (code, error) = world.call("ADD", "c1", &network).failure();
    assert!(code == 7 && error.starts_with("ipam.delegates[1].sets: only a selector"), "{error}");
    assert_eq!(world.take_calls(), [""; 0]);
}

#[test]
fn a_standard_plugin_gets_any_key_but_the_chains_and_logs_in_whatever_letters() {
    for key in [
        "log\u{1b}[2J",
        "Type",
        "DELEGATES",
        "statedir",
        "LOG_FILE",
        "logLevel",
        "Log",
        "delegate\u{17f}",
    ] {
        let world = World::new();
        let network = chain(&world, &json!({key: "/etc/cron.d/x"}), "plain");
        let (code, error) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 110, "{key}: {error}");
        let shown = key.escape_debug();
        let said = format!("ipam-ds-x: its answer sets ipam.{shown}: ");
        assert!(error.starts_with(&said), "{error}");
        assert_eq!(world.take_calls(), ["ipam-ds-x ADD"], "{key}");
    }
    let world = World::new();
    let set = json!({"etcd": {"endpoints": ["b"]}, "anything": 1});
    let network = chain(&world, &set, "plain");
    world.call("ADD", "c1", &network).success();
    assert_eq!(Value::Object(given(&world, "plain")), set);
}

#[test]
fn a_folder_outside_of_the_allowed_ones_is_refused_in_any_letters() {
    for key in ["dataDir", "datadir", "DATADIR"] {
        let world = World::new();
        world.install(&host_local());
        let outside = world.path("outside");
        answering(&world, &json!({key: outside, "subnet": "10.5.0.0/24"}));
        let mut network = world.network(json!(["ipam-ds-x", "host-local"]));
        network["ipam"].as_object_mut().unwrap().remove("dataDir");
        let (code, error) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 110, "{key}: {error}");
        assert!(error.contains("outside the allowed folders"), "{error}");
        assert!(!outside.exists());
    }
}

#[test]
fn a_second_spelling_of_a_key_is_refused() {
    let world = World::new();
    let mut network = chain(&world, &json!({"Subnet": "10.5.0.0/24"}), "plain");
    network["ipam"]["subnet"] = json!("10.6.0.0/24");
    let (code, error) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 110, "{error}");
    assert!(error.contains("ipam.Subnet: subnet is set, too"), "{error}");
    answering(&world, &json!({"gateway": "10.6.0.1", "GATEWAY": "10.6.0.2"}));
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 110);
    assert_eq!(world.take_calls(), ["ipam-ds-x ADD", "ipam-ds-x ADD"]);
}

/// The stores that an attacker could send a secret to, with the file that the secret is in.
fn thieves(server: &str, file: &Path) -> Vec<(&'static str, Value)> {
    let http = format!("http://{server}");
    vec![
        ("ipam-da-consul", json!({"consul_servers": [http], "consul": {"tokenFile": file}})),
        ("ipam-da-consul", json!({"consul": {"tokenFile": file}})),
        (
            "ipam-da-etcd",
            json!({"etcd": {"endpoints": [server], "username": "x", "passwordFile": file}}),
        ),
        ("ipam-da-etcd", json!({"endpoints": [server], "certfile": file, "keyfile": file})),
        ("ipam-da-etcd", json!({"etcdConfig": {"etcdURL": http}})),
        ("ipam-da-kube", json!({"kube": {"kubeconfig": file}})),
    ]
}

#[test]
fn no_file_of_roots_is_sent_to_a_server_that_a_selector_names() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let world = World::new();
    let file = world.path("secret");
    fs::write(&file, "topsecret-0123456789").unwrap();
    for allocator in ["ipam-da-consul", "ipam-da-etcd", "ipam-da-kube"] {
        world.install(&binary(allocator));
    }
    for (allocator, mut set) in thieves(&server, &file) {
        let key = set.as_object().unwrap().keys().next().unwrap().clone();
        set["ranges"] = json!([[{"subnet": "10.1.2.0/24"}]]);
        answering(&world, &set);
        let mut network = world.network(json!(["ipam-ds-x", allocator]));
        network["ipam"]["timeout"] = json!("5s");
        let outcome = world.call("ADD", "c1", &network);
        let printed = format!("{outcome:?}");
        let (code, error) = outcome.failure();
        assert_eq!(code, 110, "{allocator}: {error}");
        assert!(error.starts_with(&format!("ipam-ds-x: its answer sets ipam.{key}: ")), "{error}");
        assert!(!printed.contains("topsecret"), "{printed}");
        world.call("DEL", "c1", &network);
        assert!(listener.accept().is_err(), "{allocator} connected by {key}");
    }
}

#[test]
fn a_selector_names_a_file_for_name_resolution_only_where_the_host_allows_it() {
    let (world, host) = (World::new(), Host::new());
    let settings = |dirs: Value| {
        host.settings(&json!({"stateDir": world.path("state"), "resolvDirs": dirs}));
    };
    settings(json!([]));
    fs::write(world.path("secrets"), "options apikey=SECRET123\n").unwrap();
    fs::write(host.path("/etc/cni/resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    symlink(world.path("secrets"), host.path("/etc/cni/link")).unwrap();
    world.install(&binary("ipam-da-local"));
    let ask = |last: &str, key: &str, file: &Path| {
        let set = json!({key: file, "ranges": [[{"subnet": "10.5.0.0/24"}]]});
        let answer = json!({"cniVersion": "1.0.0", "ipam": set});
        world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
        let mut network = world.network(json!(["ipam-ds-x", last]));
        network["ipam"].as_object_mut().unwrap().remove("stateDir");
        let outcome = host.call(&world, "ADD", "c1", &network);
        assert!(!format!("{outcome:?}").contains("SECRET123"), "{outcome:?}");
        let released = host.call(&world, "DEL", "c1", &network);
        assert_eq!(released.exit, Some(0), "{released:?}");
        outcome
    };
    world.install(&host_local());
    for last in ["ipam-da-local", "host-local"] {
        let of = |name: &str| world.path(name);
        let mut errors = Vec::new();
        for file in
            [of("secrets"), of("nothing"), of("data"), "/etc/cni/link".into(), "/etc/cni".into()]
        {
            let (code, error) = ask(last, "resolvConf", &file).failure();
            assert_eq!(code, 110, "{error}");
            errors.push(error.replace(&format!("{file:?}"), "FILE"));
        }
        // The error does not tell which files exist.
        errors.dedup();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let result = ask(last, "resolvConf", Path::new("/etc/cni/resolv.conf")).success();
        assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.1"]), "{last}");
    }
    assert_eq!(ask("host-local", "RESOLVCONF", &world.path("secrets")).failure().0, 110);
    fs::write(world.path("secrets"), "nameserver 192.0.2.2\n").unwrap();
    settings(json!([world.path("")]));
    let result = ask("ipam-da-local", "resolvConf", &world.path("secrets")).success();
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.2"]));
}
