//! What stands in `examples/` works as it says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam_kit::cni::address::parse_cidr;
use ipam_testkit::certificates::Certificates;
use ipam_testkit::etcd::{Etcd, Tls};
use ipam_testkit::world::{Outcome, World, binary, host_local, names, start, wait, without};
use serde_json::{Value, json};

/// The same selector, three times.
fn selectors() -> [(&'static str, PathBuf); 3] {
    [
        ("Rust", binary("examples/ipam-ds-rack")),
        ("shell", example("ipam-ds-rack.sh")),
        ("Python", example("ipam-ds-rack.py")),
    ]
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Calls a program with `stdin` as it is.
fn call(world: &World, program: &Path, verb: &str, stdin: &str) -> Outcome {
    let mut command = world.command_of(program, verb, "c1");
    if matches!(verb, "GC" | "STATUS" | "VERSION") {
        // libcni sets them, empty.
        command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
    }
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    wait(child)
}

/// A result without members that say nothing.
fn plain(mut result: Value) -> Value {
    let nothing = [json!([]), json!({}), Value::Null];
    result.as_object_mut().unwrap().retain(|_, member| !nothing.contains(member));
    result
}

#[test]
fn a_selector_in_any_language_stands_in_a_chain() {
    for (language, program) in selectors() {
        let world = World::new();
        world.install_as(&program, "ipam-ds-rack");
        world.allocator("ipam-da-x", "10.1.0.2/24");
        fs::write(world.path("rack"), " r1\n").unwrap();
        let mut network = world.network(json!(["ipam-ds-rack", "ipam-da-x"]));
        network["ipam"]["rackFile"] = json!(world.path("rack"));
        network["ipam"]["racks"] = json!({"r1": {"name": "blue"}, "r2": {"name": "red"}});

        let result = world.call("ADD", "c1", &network).success();
        assert_eq!(
            result,
            json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}),
            "{language}"
        );
        assert_eq!(
            world.calls()[0]["stdin"]["prevResult"]["pools"],
            json!([{"name": "blue"}]),
            "{language}"
        );
        world.call("CHECK", "c1", &network).success();
        world.call("DEL", "c1", &network).success();
        assert!(world.held().is_empty(), "{language}");

        // Without a record the whole chain runs; its selector may fail.
        world.call("DEL", "c1", &network).success();
        fs::remove_file(world.path("rack")).unwrap();
        world.call("DEL", "c1", &network).success();
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 5, "{language}: {text}");
        assert!(text.starts_with("ipam-ds-rack: ipam.rackFile: cannot read"), "{language}: {text}");

        network["cniVersion"] = json!("1.1.0");
        network["cni.dev/valid-attachments"] = json!([]);
        fs::write(world.path("rack"), "r2").unwrap();
        for verb in ["STATUS", "GC"] {
            world.call(verb, "", &network).success();
        }
    }
}

#[test]
fn the_three_selectors_answer_alike() {
    let world = World::new();
    fs::write(world.path("rack"), "\n\tr1 \n").unwrap();
    fs::write(world.path("elsewhere"), "r9").unwrap();
    fs::write(world.path("empty"), "").unwrap();
    fs::write(world.path("two"), "r1\nr2\n").unwrap();
    let rack = world.path("rack");
    let config = |version: &str, ipam: Value, prev_result: Value| {
        let mut config = json!({"cniVersion": version, "name": "n", "type": "t", "ipam": ipam});
        if !prev_result.is_null() {
            config["prevResult"] = prev_result;
        }
        config.to_string()
    };
    let racks = json!({"r1": {"name": "blue"}, "r2": {"name": "red"}});
    let ipam = json!({"type": "ipam-ds-rack", "rackFile": rack, "racks": racks, "other": [1]});
    let full = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}, {"address": "fd00::2/64"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400}],
        "dns": {"nameservers": ["10.0.0.53"]},
        "pools": [{"name": "an earlier selector's"}],
        "leases": ["opaque"],
        "ofOthers": {"kept": true},
    });
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1"}});
    let blue = json!([{"name": "blue"}]);
    let behind = json!([{"name": "an earlier selector's"}, {"name": "blue"}]);
    let ranges = json!([{"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"}]);
    let with_ranges = json!([{"name": "blue", "ranges": ranges}]);
    let same = json!({"ips": [], "pools": [{"name": "blue", "requested-ip": "10.0.0.9"}]});
    let enriched = json!([{"name": "blue", "requested-ip": "10.0.0.9", "ranges": ranges}]);
    let mut of_ranges = ipam.clone();
    of_ranges["racks"] = json!({"r1": with_ranges[0], "r2": {"name": "red"}});
    let unnamed = json!([{"ranges": ranges}]);
    let mut of_unnamed = ipam.clone();
    of_unnamed["racks"] = json!({"r1": unnamed[0]});

    // Verb, stdin, and the pools or the code and the beginning of the message.
    let cases = [
        ("ADD", config("1.0.0", ipam.clone(), Value::Null), Ok(&blue)),
        ("ADD", config("1.0.0", ipam.clone(), json!({})), Ok(&blue)),
        ("ADD", config("1.0.0", ipam.clone(), full.clone()), Ok(&behind)),
        ("ADD", config("1.0.0", ipam.clone(), same.clone()), Ok(&same["pools"])),
        ("ADD", config("1.0.0", of_ranges.clone(), Value::Null), Ok(&with_ranges)),
        ("ADD", config("1.0.0", of_ranges, same.clone()), Ok(&enriched)),
        ("STATUS", config("1.1.0", of_unnamed, Value::Null), Ok(&unnamed)),
        ("ADD", config("0.2.0", ipam.clone(), old), Ok(&blue)),
        ("DEL", config("1.0.0", ipam.clone(), full.clone()), Ok(&behind)),
        ("CHECK", config("1.0.0", ipam.clone(), full), Ok(&behind)),
        ("STATUS", config("1.1.0", ipam.clone(), Value::Null), Ok(&blue)),
        ("ADD", String::new(), Err((6, ""))),
        ("ADD", "[]".to_owned(), Err((6, ""))),
        ("ADD", "{} {}".to_owned(), Err((6, ""))),
        ("ADD", "{".to_owned(), Err((6, ""))),
        ("ADD", config("1.0.0", json!("x"), Value::Null), Err((7, "ipam"))),
        ("ADD", config("1.0.0", json!({"racks": {}}), Value::Null), Err((7, "ipam"))),
        ("ADD", config("1.0.0", json!({"rackFile": rack}), Value::Null), Err((7, "ipam"))),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": 7, "racks": {}}), Value::Null),
            Err((7, "ipam.rackFile: ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": rack, "racks": []}), Value::Null),
            Err((7, "ipam.racks: ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": rack, "racks": {"r1": "blue"}}), Value::Null),
            Err((7, "ipam.racks.r1: expected an object with name or ranges")),
        ),
        (
            "ADD",
            config(
                "1.0.0",
                json!({"rackFile": rack, "racks": {"r2": {"name": "red"}}}),
                Value::Null,
            ),
            Err((7, "ipam.racks: no pool for rack \"r1\"")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": rack, "racks": {"r1": {"name": ""}}}), Value::Null),
            Err((7, "ipam.racks.r1: expected a")),
        ),
        (
            "STATUS",
            config(
                "1.1.0",
                json!({"rackFile": world.path("elsewhere"), "racks": racks}),
                json!({}),
            ),
            Err((7, "ipam.racks: no pool for rack \"r9\"")),
        ),
        (
            "DEL",
            config("1.0.0", json!({"rackFile": "/nonexistent/rack", "racks": racks}), json!({})),
            Err((5, "ipam.rackFile: cannot read /nonexistent/rack")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": world.path(""), "racks": racks}), json!({})),
            Err((5, "ipam.rackFile: cannot read ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": "", "racks": racks}), json!({})),
            Err((5, "ipam.rackFile: cannot read ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": world.path("empty"), "racks": racks}), json!({})),
            Err((7, "ipam.racks: no pool for rack \"\"")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": world.path("two"), "racks": racks}), json!({})),
            Err((7, "ipam.racks: no pool for rack \"r1")),
        ),
        ("FROB", "{}".to_owned(), Err((4, "unknown CNI_COMMAND: FROB"))),
    ];
    for (verb, stdin, expected) in cases {
        let outcomes = selectors().map(|(language, p)| (language, call(&world, &p, verb, &stdin)));
        match expected {
            Ok(pools) => {
                let [first, rest @ ..] =
                    outcomes.map(|(language, o)| (language, plain(o.success())));
                assert_eq!(&first.1["pools"], pools, "{stdin}");
                for (language, result) in rest {
                    assert_eq!(result, first.1, "{language}: {verb} {stdin}");
                }
            }
            Err((code, start)) => {
                for (language, outcome) in outcomes {
                    let (found, text) = outcome.failure();
                    assert_eq!(found, code, "{language}: {verb} {stdin}: {text}");
                    assert!(text.starts_with(start), "{language}: {verb} {stdin}: {text}");
                }
            }
        }
    }
}

#[test]
fn the_three_selectors_answer_version_whatever_stdin_is() {
    let world = World::new();
    let answers = selectors().map(|(_, p)| call(&world, &p, "VERSION", "").success());
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    for (language, program) in selectors() {
        assert!(call(&world, &program, "VERSION", "no JSON").success().is_object(), "{language}");
        // A person called.
        let mut command = world.command_of(&program, "ADD", "c1");
        command.env_remove("CNI_COMMAND");
        let outcome = wait(start(command, &json!({})));
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""), "{language}");
        assert!(outcome.stderr.starts_with("ipam-ds-rack"), "{language}: {}", outcome.stderr);
    }
}

#[test]
fn the_shell_selector_says_that_jq_is_missing() {
    let world = World::new();
    let mut command = world.command_of(&example("ipam-ds-rack.sh"), "ADD", "c1");
    command.env("PATH", "/nonexistent");
    let (code, text) = wait(start(command, &json!({}))).failure();
    assert_eq!(code, 5);
    assert!(text.starts_with("jq is not installed"), "{text}");
}

/// The plugins of a conflist as a runtime sends them, one configuration each.
fn plugins(conflist: &Value) -> Vec<Value> {
    let plugins = conflist["plugins"].as_array().expect("an array of plugins");
    plugins
        .iter()
        .map(|plugin| {
            let mut plugin = plugin.clone();
            plugin["cniVersion"] = conflist["cniVersion"].clone();
            plugin["name"] = conflist["name"].clone();
            plugin
        })
        .collect()
}

#[test]
fn every_conflist_runs_a_chain() {
    let mut names = Vec::new();
    for entry in fs::read_dir(example("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "conflist") {
            continue;
        }
        names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        let conflist: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let with_ipam: Vec<Value> =
            plugins(&conflist).into_iter().filter(|plugin| plugin["ipam"].is_object()).collect();
        assert_eq!(with_ipam.len(), 1, "{}", path.display());
        // containerd 1.6 and 1.7 refuse 1.1.0, and Nomad 1.0 what is above 0.4.0.
        assert_eq!(conflist["cniVersion"], "1.0.0", "{}", path.display());
        for (mut network, version) in
            with_ipam.iter().flat_map(|plugin| ["1.0.0", "0.4.0"].map(|v| (plugin.clone(), v)))
        {
            network["cniVersion"] = json!(version);
            assert_eq!(network["ipam"]["type"], "ipam-delegated", "{}", path.display());
            let world = World::new();
            let delegates = network["ipam"]["delegates"].as_array().unwrap().clone();
            // One pool for each allocator.
            let served = delegates.iter().filter_map(|delegate| delegate["serves"].get(0));
            let mut pools: Vec<Value> = served.map(|name| json!({"name": name})).collect();
            if pools.is_empty() {
                pools.push(json!({"name": "blue"}));
            }
            let pools = Value::from(pools);
            for (i, delegate) in delegates.iter().enumerate() {
                let name = delegate.as_str().or(delegate["type"].as_str()).unwrap();
                if name.starts_with("ipam-ds-") {
                    world.selector(name, &pools);
                } else if delegate["serves"].is_array() {
                    // Serves all it is shown.
                    let answer =
                        json!({"ips": [{"address": format!("10.0.{i}.2/24")}], "pools": []});
                    world.delegate(name, &format!("printf '%s' '{answer}'"));
                } else {
                    world.allocator(name, &format!("10.0.{i}.2/24"));
                }
            }
            network["ipam"]["stateDir"] = json!(world.path("state"));
            let allocators =
                delegates.iter().filter(|d| !d.as_str().unwrap_or("").contains("-ds-"));
            assert_eq!(
                world.call("ADD", "c1", &network).ips().len(),
                allocators.count(),
                "{}",
                path.display()
            );
            // The keys of the object form reach their delegate and nobody else.
            for (delegate, call) in delegates.iter().zip(world.calls()) {
                let Value::Object(own) = delegate else { continue };
                for (key, value) in own {
                    let seen = &call["stdin"]["ipam"][key];
                    let steers = matches!(key.as_str(), "serves" | "timeout" | "answers");
                    assert!(steers || seen == value, "{}: {key}: {seen}", path.display());
                }
            }
            world.call("DEL", "c1", &network).success();
        }
    }
    names.sort();
    assert_eq!(
        names,
        [
            "10-ipam-delegated-local.conflist",
            "20-ipam-delegated-dual-stack.conflist",
            "30-ipam-delegated-two-allocators.conflist",
            "40-ipam-delegated-host-local.conflist",
            "50-ipam-delegated-etcd.conflist",
            "60-ipam-delegated-cni-ipam-etcd.conflist",
            "65-ipam-delegated-consul.conflist",
            "70-ipam-delegated-nomad.conflist",
            "75-ipam-delegated-kube-node.conflist",
            "80-ipam-delegated-node-annotation.conflist"
        ]
    );
}

/// Whoever copies two of them has two networks that do not disturb each other, nor podman, whose
/// networks begin at 10.88.0.0 and go upwards.
#[test]
fn every_example_has_names_and_subnets_of_its_own() {
    let files = fs::read_dir(example("")).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<(PathBuf, String)> =
        files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();

    let subnets = texts.iter().flat_map(|(path, text)| {
        let named = text.split("\"subnet\": \"").skip(1);
        named.map(move |rest| (path, parse_cidr(rest.split('"').next().unwrap()).unwrap()))
    });
    let subnets: Vec<_> = subnets.collect();
    for (i, (path, subnet)) in subnets.iter().enumerate() {
        if let IpAddr::V4(address) = subnet.addr() {
            let [first, second, ..] = address.octets();
            assert!(first == 10 && (210..240).contains(&second), "{}: {subnet}", path.display());
        }
        for (_, other) in subnets[..i].iter().filter(|(earlier, _)| earlier != path) {
            let is_apart = !subnet.contains(&other.network()) && !other.contains(&subnet.network());
            assert!(is_apart, "{}: {subnet} overlaps {other}", path.display());
        }
    }
    // Six conflists have ranges, three of them in both families, and the quick start has five.
    assert_eq!(subnets.len(), 14);

    let mut names = Vec::new();
    for (path, text) in texts.iter().filter(|(path, _)| path.to_str().unwrap().ends_with("list")) {
        let conflist: Value = serde_json::from_str(text).unwrap();
        let plugins = conflist["plugins"].as_array().unwrap();
        let bridges = plugins.iter().filter_map(|plugin| plugin["bridge"].as_str());
        for name in bridges.chain(conflist["name"].as_str()) {
            assert!(!names.contains(&name.to_owned()), "{}: {name}", path.display());
            names.push(name.to_owned());
        }
    }
    assert_eq!(names.len(), 20);
}

#[test]
fn the_conflist_of_two_allocators_runs_on_their_two_stores() {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-local"));
    world.install(&host_local());
    let conflist = fs::read(example("30-ipam-delegated-two-allocators.conflist")).unwrap();
    let [mut network] = plugins(&serde_json::from_slice(&conflist).unwrap()).try_into().unwrap();
    network["ipam"]["stateDir"] = json!(world.path("state"));
    network["ipam"]["dataDir"] = json!(world.path("inside"));
    network["ipam"]["delegates"][2]["dataDir"] = json!(world.path("outside"));

    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(
        [&result["ips"][0]["address"], &result["ips"][1]["address"]],
        ["10.212.0.2/24", "fd00:212::2/64"]
    );
    let leases = |store: &str| {
        let mut names = names(&world.path(store).join("twostores"));
        names.retain(|name| name.parse::<IpAddr>().is_ok());
        names
    };
    assert_eq!([leases("inside"), leases("outside")], [["10.212.0.2"], ["fd00:212::2"]]);
    network["prevResult"] = result;
    world.call("CHECK", "c1", &network).success();
    network.as_object_mut().unwrap().remove("prevResult");
    world.call("DEL", "c1", &without(&network, &["pools", "delegates"])).success();
    assert_eq!([leases("inside"), leases("outside")], [[""; 0], [""; 0]]);

    // The second allocator fails, and what the first gave is free again.
    world.delegate("host-local", "[ $CNI_COMMAND = DEL ] || exit 1");
    world.call("ADD", "c1", &network).failure();
    assert_eq!(leases("inside"), [""; 0]);
}

#[test]
fn the_conflist_for_etcd_runs_on_a_real_one() {
    let certificates = Certificates::make();
    let [server, client] = [certificates.server(), certificates.client()];
    let etcd = Etcd::builder()
        .tls(Tls {
            authority: certificates.authority(),
            certificate: server.certificate,
            key: server.key,
            client_authority: Some(certificates.authority()),
            client: Some((client.certificate.clone(), client.key.clone())),
        })
        .start();
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-etcd"));
    let conflist = fs::read(example("50-ipam-delegated-etcd.conflist")).unwrap();
    let [mut network] = plugins(&serde_json::from_slice(&conflist).unwrap()).try_into().unwrap();
    network["ipam"]["stateDir"] = json!(world.path("state"));
    let section = &mut network["ipam"]["etcd"];
    section["endpoints"] = json!([etcd.endpoint()]);
    section["certFile"] = json!(client.certificate);
    section["keyFile"] = json!(client.key);
    section["trustedCaFile"] = json!(certificates.authority());

    let result = world.call("ADD", "c1", &network).success();
    let address = |i: usize| result["ips"][i]["address"].as_str();
    assert_eq!([address(0), address(1)], [Some("10.214.1.0/16"), Some("fd00:214::2/64")]);
    network["prevResult"] = result;
    world.call("CHECK", "c1", &network).success();
    assert_eq!(etcd.keys("/ipam-delegated/networks/clusternet/leases/").len(), 2);
    // The record knows the store.
    network.as_object_mut().unwrap().remove("prevResult");
    world.call("DEL", "c1", &without(&network, &["ranges", "etcd", "delegates"])).success();
    assert_eq!(etcd.keys(""), ["/ipam-delegated/networks/clusternet/latest"]);
}

#[test]
fn the_conflist_for_the_keys_of_cni_ipam_etcd_goes_on_where_that_was() {
    let etcd = Etcd::start();
    let used = "/etcd-cni/networks/sharednet/used/";
    etcd.put(&format!("{used}10.215.0.7"), "before");
    etcd.put("/etcd-cni/networks/sharednet/lastReserved/0", "10.215.0.7");
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-etcd"));
    let conflist = fs::read(example("60-ipam-delegated-cni-ipam-etcd.conflist")).unwrap();
    let [mut network] = plugins(&serde_json::from_slice(&conflist).unwrap()).try_into().unwrap();
    network["ipam"]["stateDir"] = json!(world.path("state"));
    network["ipam"]["etcd"]["endpoints"] = json!([etcd.url()]);
    network["ipam"]["etcd"]["resultCache"] = json!(world.path("results"));

    assert_eq!(world.call("ADD", "after", &network).ips(), ["10.215.0.8/16"]);
    assert_eq!(etcd.get(&format!("{used}10.215.0.8")).as_deref(), Some("after"));
    for container in ["after", "before"] {
        world.call("DEL", container, &network).success();
    }
    assert_eq!(etcd.keys(used), [""; 0]);
}
