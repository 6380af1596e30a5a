//! The networks of `examples/` work as they say.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam_kit::cni::address::parse_cidr;
use ipam_testkit::certificates::Certificates;
use ipam_testkit::etcd::{Etcd, Tls};
use ipam_testkit::world::{World, binary, host_local, names, without};
use serde_json::{Value, json};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
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
            "68-ipam-delegated-openwisp.conflist",
            "69-ipam-delegated-phpipam.conflist",
            "70-ipam-delegated-nomad.conflist",
            "75-ipam-delegated-kube-node.conflist",
            "75-ipam-delegated-kube.conflist",
            "80-ipam-delegated-node-annotation.conflist"
        ]
    );
}

/// Two of them in one folder disturb neither each other nor podman, whose networks begin at
/// 10.88.0.0 and go upwards.
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
    // Seven conflists have ranges, four of them in both families, and the quick start has five.
    assert_eq!(subnets.len(), 16);

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
    assert_eq!(names.len(), 26);
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
