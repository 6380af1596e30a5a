//! A secret in the wrong place, or that a server repeats, is in no error, no log and no report.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use ipam_testkit::world::{Host, World, binary, wait};
use serde_json::{Value, json};

const SECRET: &str = "S3cr3tAbcdefGhijkLmnop0123456789";

/// As a number, which serde shows otherwise than a text.
const NUMBER: u64 = 47_114_242_424_711;

/// A piece of a secret of eight characters or more in a text.
#[track_caller]
fn assert_hidden(text: &str, of: impl std::fmt::Debug) {
    for secret in [SECRET, &NUMBER.to_string()] {
        for piece in secret.as_bytes().windows(8) {
            let piece = std::str::from_utf8(piece).unwrap();
            assert!(!text.contains(piece), "{of:?} shows {piece}: {text}");
        }
    }
}

/// Configurations with the secret where it does not belong: a delegate, and members of the network.
fn misplaced() -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    let wrong = [json!(SECRET), json!(NUMBER), json!([SECRET]), json!({"password": SECRET})];
    for (delegate, sections) in [
        ("ipam-da-consul", &["consul"][..]),
        ("ipam-da-etcd", &["etcd", "etcdConfig"]),
        ("ipam-da-kube", &["kube"]),
        ("ipam-da-openwisp", &["openwisp"]),
        ("ipam-da-phpipam", &["phpipam"]),
        ("ipam-ds-nomad", &["nomad"]),
        ("ipam-ds-static", &["ranges", "pools", "routes"]),
    ] {
        for section in sections {
            for value in &wrong {
                all.push((delegate, json!({"ipam": {*section: value}})));
                if delegate == "ipam-ds-static" {
                    all.push((delegate, json!({"ipam": {*section: [value]}})));
                }
            }
        }
    }
    // Objects and numbers in the place of a text, and the reverse.
    for value in [json!(NUMBER), json!([[SECRET]]), json!({"password": SECRET})] {
        for (delegate, ipam) in [
            ("ipam-da-consul", json!({"consul": {"token": value}})),
            ("ipam-da-consul", json!({"consul_servers": value})),
            ("ipam-da-consul", json!({"consul_servers": [value]})),
            ("ipam-da-etcd", json!({"etcd": {"username": value}})),
            ("ipam-da-etcd", json!({"etcd": {"endpoints": [value]}})),
            ("ipam-da-etcd", json!({"endpoints": value})),
            ("ipam-da-etcd", json!({"certfile": value})),
            ("ipam-da-kube", json!({"kube": {"kubeconfig": value}})),
            ("ipam-da-kube", json!({"kube": {"namespace": value}})),
            ("ipam-da-kube", json!({"kube": {"token": value}})),
            ("ipam-da-openwisp", json!({"openwisp": {"token": value}})),
            ("ipam-da-openwisp", json!({"openwisp": {"username": "u", "password": value}})),
            ("ipam-da-openwisp", json!({"openwisp": {"organization": value}})),
            ("ipam-da-phpipam", json!({"phpipam": {"token": value}})),
            ("ipam-da-phpipam", json!({"phpipam": {"username": "u", "password": value}})),
            ("ipam-da-phpipam", json!({"phpipam": {"appId": value}})),
            ("ipam-da-phpipam", json!({"phpipam": {"providerFile": value}})),
            ("ipam-ds-nomad", json!({"nomad": {"token": value}})),
            ("ipam-ds-nomad", json!({"nomad_servers": value})),
            ("ipam-ds-kube-node", json!({"kubeconfig": value})),
            ("ipam-ds-kube-node", json!({"annotation": value})),
            ("ipam-ds-kube-pod", json!({"pod": value})),
            ("ipam-ds-kube-pod", json!({"pod": {"sticky": value}})),
            ("ipam-ds-kube-pod", json!({"pod": {"pools": [value]}})),
            ("ipam-ds-kube-pod", json!({"pod": {"kubeconfig": value, "addresses": true}})),
            ("ipam-ds-whereabouts", json!({"etcd_host": value})),
            ("ipam-ds-whereabouts", json!({"kubernetes": value})),
            ("ipam-da-local", json!({"dataDir": value})),
            ("ipam-da-local", json!({"takeover": value})),
            ("ipam-ds-static", json!({"rangeRules": value})),
            ("ipam-ds-static", json!({"resolvConf": value})),
            ("ipam-ds-static", json!({"timeout": value})),
            ("ipam-ds-static", json!({"stateDir": value})),
            ("ipam-ds-static", json!({"delegates": value})),
            ("ipam-ds-static", json!({"delegates": [value]})),
            ("ipam-ds-static", json!({"delegates": [{"type": value}]})),
            ("ipam-ds-static", json!({"delegates": [{"type": "ipam-da-local", "timeout": value}]})),
            ("ipam-ds-static", json!({"delegates": [{"type": "ipam-da-local", "serves": value}]})),
            ("ipam-ds-static", json!({"delegates": [{"type": "ipam-ds-static", "sets": value}]})),
        ] {
            all.push((delegate, json!({"ipam": ipam})));
        }
        for members in [
            json!({"name": value}),
            json!({"cniVersion": value}),
            json!({"ipam": value}),
            json!({"args": {"cni": {"ips": value}}}),
            json!({"args": {"cni": {"ips": [value]}}}),
            json!({"runtimeConfig": {"ips": [value]}}),
            json!({"runtimeConfig": {"ipRanges": value}}),
        ] {
            all.push(("ipam-ds-static", members));
        }
    }
    for members in [json!({"ipam": SECRET}), json!({"ipam": {"delegates": SECRET}})] {
        all.push(("ipam-ds-static", members));
    }
    for url in [
        format!("http://user:{SECRET}@127.0.0.1:1"),
        format!("htps://user:{SECRET}@127.0.0.1:1"),
        format!("user:{SECRET}@127.0.0.1:1"),
        format!("http://127.0.0.1:1/?token={SECRET}"),
        format!("127.0.0.1:1?token={SECRET}"),
        format!("http://127.0.0.1:1#{SECRET}"),
    ] {
        all.push(("ipam-da-consul", json!({"ipam": {"consul_servers": [url]}})));
        all.push(("ipam-ds-nomad", json!({"ipam": {"nomad_servers": [url]}})));
        all.push(("ipam-da-etcd", json!({"ipam": {"etcd": {"endpoints": [url]}}})));
        all.push(("ipam-da-etcd", json!({"ipam": {"endpoints": [url]}})));
        all.push(("ipam-da-etcd", json!({"ipam": {"etcdConfig": {"etcdURL": url}}})));
    }
    all
}

#[test]
fn a_secret_in_the_wrong_place_is_in_no_error_and_no_log() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"stateDir": world.path("state"), "verbose": true}));
    for name in [
        "ipam-da-consul",
        "ipam-da-etcd",
        "ipam-da-kube",
        "ipam-da-local",
        "ipam-da-openwisp",
        "ipam-da-phpipam",
        "ipam-ds-kube-node",
        "ipam-ds-kube-pod",
        "ipam-ds-nomad",
        "ipam-ds-static",
        "ipam-ds-whereabouts",
    ] {
        world.install(&binary(name));
    }
    let mut failed = 0;
    for (delegate, members) in misplaced() {
        let last = if delegate.starts_with("ipam-ds-") { "ipam-da-local" } else { delegate };
        let mut network = world.network(json!(["ipam-ds-static", delegate, last]));
        if delegate == last {
            network["ipam"]["delegates"] = json!([delegate]);
        }
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.remove("stateDir");
        ipam.extend(json!({"timeout": "3s", "subnet": "10.1.2.0/24"}).as_object().unwrap().clone());
        for (key, value) in members.as_object().unwrap() {
            match (key.as_str(), value.as_object()) {
                ("ipam", Some(members)) if !members.contains_key("password") => {
                    network["ipam"].as_object_mut().unwrap().extend(members.clone());
                }
                _ => network[key] = value.clone(),
            }
        }
        let mut alone = network.clone();
        if alone["ipam"].is_object() {
            alone["ipam"]["type"] = delegate.into();
        }
        for (program, network) in [("ipam-delegated", &network), (delegate, &alone)] {
            let mut command = host.enter(binary(program));
            let id = "d4f9e6fa-8a0f-4c0f-9d6b-111111111111";
            let outside = world.command_of(&binary(program), "ADD", id);
            command.env_clear();
            command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
            command.env("IPAM_DELEGATED_LOG", "debug");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let outcome = wait(ipam_testkit::world::start(command, network));
            failed += usize::from(outcome.exit == Some(1));
            let printed = format!("{}\n{}", outcome.stdout, outcome.stderr);
            assert_hidden(&printed, (program, &members));
        }
    }
    assert!(failed > 200, "{failed} calls failed");
    for log in ipam_testkit::world::names(&host.path("/var/log/cni")) {
        let text = fs::read_to_string(host.path("/var/log/cni").join(&log)).unwrap();
        assert!(text.contains("[ERROR]"), "{log}");
        assert_hidden(&text, log);
    }
}

#[test]
fn a_token_that_a_server_repeats_is_hidden_wherever_its_words_are_cut() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let token = format!("{SECRET}/{SECRET}");
    let body = |pad: usize| {
        // White space is read, but not shown.
        let pad = [" ".repeat(pad - pad.min(100)), "x".repeat(pad.min(100))].concat();
        format!("{pad}nomad-token: {SECRET}/{SECRET}; again: {SECRET}/{SECRET}{}", " ".repeat(200))
    };
    let (sender, pads) = std::sync::mpsc::channel::<usize>();
    let server = std::thread::spawn(move || {
        for pad in pads {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            let body = body(pad);
            let head = format!(
                "HTTP/1.1 403 No\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    let world = World::new();
    let mut network = world.network(json!(["ipam-ds-nomad"]));
    network["ipam"]["type"] = "ipam-ds-nomad".into();
    network["ipam"]["nomad_servers"] = json!([format!("http://{address}")]);
    network["ipam"]["nomad"] = json!({"token": token, "timeout": "2s"});
    let mut shown = 0;
    // Up to the end of what is read of such an answer, and beyond.
    for pad in (0..200).step_by(9).chain((900..1300).step_by(5)) {
        sender.send(pad).unwrap();
        let id = "d4f9e6fa-8a0f-4c0f-9d6b-111111111111";
        let mut command = world.command_of(&binary("ipam-ds-nomad"), "ADD", id);
        command.env("IPAM_DELEGATED_LOG", "debug");
        let outcome = wait(ipam_testkit::world::start(command, &network));
        let printed = format!("{}\n{}", outcome.stdout, outcome.stderr);
        assert!(printed.contains("HTTP 403"), "{printed}");
        assert_hidden(&printed, pad);
        shown += usize::from(printed.contains("nomad-token: …"));
    }
    assert!(shown > 20, "{shown} answers were shown");
    drop(sender);
    server.join().unwrap();
}

#[test]
fn a_password_and_a_token_that_etcd_repeats_are_hidden() {
    let world = World::new();
    world.install(&binary("ipam-da-etcd"));
    fs::write(world.path("password"), SECRET).unwrap();
    for (status, said) in [
        (2, "no such user: "),
        (3, "etcdserver: authentication failed for "),
        (9, "etcdserver: "),
        (14, "gateway: "),
    ] {
        let server =
            ipam_testkit::fake_grpc::refusing(status, &format!("{said}{SECRET}, {SECRET}"));
        let mut network = world.network(json!(["ipam-da-etcd"]));
        network["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/24"}]]);
        network["ipam"]["etcd"] = json!({
            "endpoints": [server], "timeout": "1s", "username": "u",
            "passwordFile": world.path("password"),
        });
        let mut command = world.command("ADD", "c1");
        command.env("IPAM_DELEGATED_LOG", "debug");
        let outcome = wait(ipam_testkit::world::start(command, &network));
        let printed = format!("{}\n{}", outcome.stdout, outcome.stderr);
        assert!(printed.contains(&format!("{said}…, …")), "{printed}");
        assert_hidden(&printed, said);
    }
}

#[test]
fn explain_and_lint_mask_what_others_call_their_secrets() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("ipam-da-x", "10.0.0.2/24");
    let mut network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    let keys = [
        "apiKey",
        "api_key",
        "X-Api-Key",
        "passphrase",
        "credentials",
        "bearer",
        "tokens",
        "privateKey",
        "dbPassword",
        "clientSecrets",
    ];
    for key in keys {
        network["ipam"]["central"][key] = json!([SECRET]);
    }
    network["ipam"]["central"]["server"] = json!(format!("https://user:{SECRET}@ipam.test/api"));
    let list = format!("http://user:{SECRET}@ipam.test:1,http://user:{SECRET}@ipam.test:2");
    network["ipam"]["central"]["servers"] = json!(list);
    let url = format!("https://ipam.test/v2?Access-Token={SECRET}&site=1#passphrase={SECRET}");
    network["ipam"]["central"]["callback"] = json!([url]);
    network["ipam"]["central"]["keyFile"] = json!("/etc/central/key");
    world.conflist("10-net.conflist", &network);
    for words in [
        &["explain", "net"][..],
        &["explain", "net", "--json"],
        &["lint", "net"],
        &["lint", "net", "--json"],
    ] {
        let outcome = world.typed(words);
        let printed = format!("{}\n{}", outcome.stdout, outcome.stderr);
        assert_hidden(&printed, words);
        assert!(printed.contains("https://…@ipam.test/api"), "{printed}");
        assert!(printed.contains("/v2?Access-Token=…&site=1#passphrase=…"), "{printed}");
        assert!(printed.contains("/etc/central/key"), "{printed}");
    }
}
