//! Keys without a reader, as `lint` names them, and what delegates say of the keys that they read.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use ipam_testkit::world::{World, binary, host_local, with, without};
use serde_json::{Value, json};

const SELECTORS: [&str; 6] = [
    "ipam-ds-static",
    "ipam-ds-nomad",
    "ipam-ds-kube-node",
    "ipam-ds-kube-pod",
    "ipam-ds-node-annotation",
    "ipam-ds-whereabouts",
];

const ALLOCATORS: [&str; 6] = [
    "ipam-da-local",
    "ipam-da-etcd",
    "ipam-da-consul",
    "ipam-da-kube",
    "ipam-da-openwisp",
    "ipam-da-phpipam",
];

/// A world with every delegate, and a network on two of them.
fn world() -> (World, Value) {
    let world = World::new();
    for name in SELECTORS.iter().chain(&ALLOCATORS) {
        world.install(&binary(name));
    }
    let network = world.network(json!(["ipam-ds-static", "ipam-da-local"]));
    (world, with(&network, "ranges", json!([[{"subnet": "10.210.0.0/24"}]])))
}

/// What `lint` says of keys.
#[track_caller]
fn told(world: &World, network: &Value) -> Vec<String> {
    let file = world.config("10-net.conflist", network);
    let cache = format!("--cache-dir={}", world.path("results").display());
    let outcome = world.typed(&["lint", file.to_str().unwrap(), "--json", &cache]);
    let reports = outcome.json();
    let findings = reports.as_array().unwrap().iter().flat_map(|it| it["findings"].as_array());
    let of_keys = |finding: &Value| {
        let message = finding["message"].as_str().unwrap();
        let words = [": did you mean", "read it: remove", "reads it: remove", "only together with"];
        let is_of_keys = words.iter().any(|words| message.contains(words));
        is_of_keys.then(|| {
            assert_eq!(finding["level"], "warning", "{message}");
            message.to_owned()
        })
    };
    findings.flatten().filter_map(of_keys).collect()
}

#[test]
fn a_key_of_ipam_that_no_delegate_reads_is_named_with_the_nearest() {
    let (world, network) = world();
    assert!(told(&world, &network).is_empty());
    let misspelt = with(&network, "rouets", json!([{"dst": "0.0.0.0/0"}]));
    let misspelt = with(&with(&misspelt, "timeot", "5s"), "colour", "blue");
    assert_eq!(
        told(&world, &misspelt),
        [
            "ipam.colour: no delegate of the chain reads it: remove it, or correct its name",
            "ipam.rouets: no delegate of the chain reads it: did you mean routes?",
            "ipam.timeot: no delegate of the chain reads it: did you mean timeout?",
        ]
    );
    let cache = format!("--cache-dir={}", world.path("results").display());
    let outcome = world.typed(&["lint", "net", &cache]);
    assert_eq!(outcome.exit, Some(0), "a warning fails nothing: {outcome:?}");
    assert!(outcome.stdout.contains("\nwarning: ipam.rouets: "), "{outcome:?}");
}

#[test]
fn a_key_that_looks_like_the_chains_is_named_where_no_delegate_is_known() {
    let (world, network) = world();
    let network = with(&without(&network, &["delegates"]), "delegate", json!(["ipam-ds-static"]));
    assert_eq!(told(&world, &network), ["ipam.delegate: did you mean delegates?"]);
}

#[test]
fn what_counts_beside_a_subnet_alone_is_named_without_one() {
    let (world, network) = world();
    let excluding = with(&network, "exclude", json!(["10.210.0.2/32"]));
    let excluding = with(&excluding, "gateway", "10.210.0.9");
    let message = |key: &str| {
        format!(
            "ipam.{key} has an effect only together with ipam.subnet: move it into the ranges that it is meant for"
        )
    };
    assert_eq!(told(&world, &excluding), [message("exclude"), message("gateway")]);
    let one = with(&without(&excluding, &["ranges"]), "subnet", "10.210.0.0/24");
    assert!(told(&world, &one).is_empty());
    // A selector may bring the subnet.
    let answer = json!({"cniVersion": "1.0.0", "ipam": {"subnet": "10.210.0.0/24"}});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    let later =
        without(&with(&excluding, "delegates", json!(["ipam-ds-x", "ipam-da-local"])), &["ranges"]);
    assert!(told(&world, &later).is_empty());
}

#[test]
fn a_key_of_a_reference_plugin_that_it_does_not_read_is_named() {
    let (world, mut network) = world();
    network["isGatway"] = true.into();
    network["ipmasq"] = true.into();
    network["vlanTag"] = 7.into();
    network["cni.dev/other"] = json!({});
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        network, {"type": "portmap", "snta": true, "capabilities": {"portMappings": true}},
    ]});
    let expected = [
        "bridge.isGatway: bridge does not read it: did you mean isGateway?",
        "bridge.vlanTag: bridge does not read it: remove it, or correct its name",
        "portmap.snta: portmap does not read it: did you mean snat?",
    ];
    assert_eq!(told(&world, &list), expected);
    // The keys of another plugin are not known: only those of CNI itself can be misspelt.
    network["type"] = "calico".into();
    network["capabilites"] = json!({});
    assert_eq!(told(&world, &network), ["calico.capabilites: did you mean capabilities?"]);
}

#[test]
fn beside_a_delegate_that_does_not_say_only_misspelt_keys_are_named() {
    let (world, network) = world();
    world.selector("ipam-ds-x", &json!([{"ranges": [{"subnet": "10.210.0.0/24"}]}]));
    let network = with(&with(&network, "rouets", json!([])), "colour", "blue");
    let network = with(&network, "server", "http://192.0.2.1");
    let chain = |chain: Value| told(&world, &with(&network, "delegates", chain));
    let misspelt = ["ipam.rouets: did you mean routes?"];
    assert_eq!(chain(json!(["ipam-ds-x", "ipam-da-local"])), misspelt);
    // A standard plugin is not asked, and not in the table.
    let asked = world.path("by-hand");
    let script = format!("#!/bin/sh\n[ -n \"$CNI_COMMAND\" ] || touch {}\n", asked.display());
    world.program("calico-ipam", &script);
    assert_eq!(chain(json!(["ipam-ds-static", "calico-ipam"])), misspelt);
    assert!(!asked.exists());
    // One that says it claims these and no others.
    world.program(
        "ipam-ds-y",
        "#!/bin/sh\n[ -n \"$CNI_COMMAND\" ] || printf '{\"keys\": {\"colour\": null, \"server\": null}}'\n",
    );
    assert_eq!(
        chain(json!(["ipam-ds-y", "ipam-da-local"])),
        ["ipam.rouets: no delegate of the chain reads it: did you mean routes?"]
    );
}

#[test]
fn the_keys_of_a_standard_plugin_are_in_the_table() {
    let (world, network) = world();
    world.install(&host_local());
    let chain = json!(["ipam-ds-static", "host-local"]);
    let network = with(&network, "delegates", chain);
    assert!(told(&world, &network).is_empty());
    assert_eq!(
        told(&world, &with(&network, "datadir", "/x")),
        ["ipam.datadir: no delegate of the chain reads it: did you mean dataDir?"]
    );
}

#[test]
fn a_key_of_a_delegates_object_that_the_delegate_does_not_read_is_named() {
    let (world, network) = world();
    let object = json!({"type": "ipam-da-local", "timeot": "3s", "dataDir": "/x", "answers": "any",
        "nomad_servers": []});
    let network = with(&network, "delegates", json!(["ipam-ds-static", object]));
    assert_eq!(
        told(&world, &network),
        [
            "ipam.delegates[1].nomad_servers: ipam-da-local does not read it: remove it, or correct its name",
            "ipam.delegates[1].timeot: ipam-da-local does not read it: did you mean timeout?",
        ]
    );
}

#[test]
fn configurations_of_replaced_systems_have_no_key_that_is_not_read() {
    let (world, _) = world();
    let sets = json!([[{"subnet": "10.210.0.0/24", "rangeStart": "10.210.0.9"}]]);
    let routes = json!([{"dst": "0.0.0.0/0", "gw": "10.210.0.1"}]);
    for ipam in [
        json!({"type": "host-local", "ranges": sets, "routes": routes, "dataDir": world.path("data"),
            "resolvConf": "/etc/resolv.conf"}),
        json!({"type": "host-local", "subnet": "10.210.0.0/24", "rangeStart": "10.210.0.9",
            "rangeEnd": "10.210.0.99", "gateway": "10.210.0.1"}),
        json!({"type": "etcd", "name": "net", "subnet": "10.210.0.0/24", "routes": routes,
            "etcdConfig": {"etcdURL": "http://127.0.0.1:1", "etcdCertFile": "", "etcdKeyFile": "",
                "etcdTrustedCAFileFile": ""}}),
        json!({"type": "host-etcd", "ranges": sets, "endpoints": ["127.0.0.1:1"], "certfile": "",
            "keyfile": "", "trustedcafile": ""}),
        json!({"type": "kube-node", "kubeconfig": "/none", "dataDir": world.path("data"),
            "annotation": "a/b", "ipv4-namespaces": ["x"], "logfile": "/x", "loglevel": "debug"}),
        json!({"type": "node-annotation", "annotation": "a/b", "kubeconfig": "/none"}),
    ] {
        let name = ipam["type"].as_str().unwrap();
        let link = world.path("bin").join(name);
        if !link.exists() {
            symlink(binary("ipam-delegated"), link).unwrap();
        }
        let network = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam});
        let network = with(&network, "timeout", "1s");
        assert_eq!(told(&world, &network), [""; 0], "{network}");
        assert_eq!(told(&world, &with(&network, "colour", 1)).len(), 1, "{network}");
    }
}

#[test]
fn shipped_examples_have_no_key_that_is_not_read() {
    let (world, _) = world();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    world.install(&host_local());
    world.install_as(&examples.join("ipam-ds-rack.sh"), "ipam-ds-rack");
    world.allocator("ipam-da-blue", "10.210.0.2/24");
    let mut seen = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|ending| ending == "conflist") {
            let mut list: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            // Its servers are not there.
            let plugins = list["plugins"].as_array().unwrap();
            let at = plugins.iter().position(|plugin| plugin["ipam"].is_object()).unwrap();
            list["plugins"][at]["ipam"]["timeout"] = "1s".into();
            assert_eq!(told(&world, &list), [""; 0], "{}", file.display());
            list["plugins"][at]["ipam"]["rouets"] = json!([]);
            assert_eq!(told(&world, &list).len(), 1, "{}", file.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}

#[test]
fn every_delegate_of_ours_says_which_keys_it_reads() {
    for (names, role) in [(&SELECTORS[..], "selector"), (&ALLOCATORS[..], "allocator")] {
        for name in names {
            let asked = |words: &[&str]| {
                let mut command = Command::new(binary(name));
                let output = command.env_clear().args(words).stdin(Stdio::null()).output().unwrap();
                assert!(output.status.success(), "{name} {words:?}: {output:?}");
                String::from_utf8(output.stdout).unwrap()
            };
            let about: Value = serde_json::from_str(&asked(&["about", "--json"])).unwrap();
            assert_eq!((&about["name"], &about["role"]), (&json!(name), &json!(role)));
            let keys = about["keys"].as_object().unwrap();
            let (own, section) = match *name {
                "ipam-ds-static" => ("ranges", json!("subnet")),
                "ipam-ds-nomad" => ("nomad", json!("tokenFile")),
                "ipam-ds-kube-node" => ("routes", json!("dst")),
                "ipam-ds-kube-pod" => ("pod", json!("sticky")),
                "ipam-ds-node-annotation" => ("annotation", Value::Null),
                "ipam-ds-whereabouts" => ("addresses", json!("gateway")),
                "ipam-da-local" => ("dataDir", Value::Null),
                "ipam-da-etcd" => ("etcdConfig", json!("etcdURL")),
                "ipam-da-kube" => ("kube", json!("kubeconfig")),
                "ipam-da-openwisp" => ("openwisp", json!("organization")),
                "ipam-da-phpipam" => ("phpipam", json!("appId")),
                _ => ("consul", json!("token")),
            };
            match section.as_str() {
                Some(inner) => assert_eq!(keys[own][inner], Value::Null, "{name}: {about}"),
                None => assert_eq!(keys[own], Value::Null, "{name}: {about}"),
            }
            assert_eq!(keys.contains_key("strategy"), role == "allocator", "{name}: {about}");
            assert!(asked(&["about"]).starts_with(&format!("{name} ")), "{name}");
        }
    }
}
