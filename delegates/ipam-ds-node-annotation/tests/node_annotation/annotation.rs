//! What an annotation says, in every form, and what it cannot make anybody do.

use std::fs;
use std::net::TcpListener;

use ipam_testkit::world::{binary, with};
use serde_json::{Value, json};

use crate::common::{ANNOTATION, SELECTOR, Site};

const SUBNET: &str = r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#;

/// The code of an ADD's error, and its text, in which the annotation and its node are named.
#[track_caller]
fn refused(site: &Site, text: &str) -> (u64, String) {
    let (code, error) = site.annotate(text).call("ADD", "c1").failure();
    let place = format!("{SELECTOR}: annotation {ANNOTATION} of node {}: ", site.node);
    assert!(error.starts_with(&place), "{text}: {error}");
    (code, error[place.len()..].to_owned())
}

/// Nothing is held, and nobody was run who might.
#[track_caller]
fn assert_untouched(site: &Site) {
    assert_eq!(site.leases("net"), [""; 0]);
    assert!(site.world.events("c1").iter().all(|event| event != "running"));
}

#[test]
fn every_form_of_the_same_settings_gives_the_same() {
    let site = Site::new(SUBNET);
    let expected = site.select(&site.network()).success();
    assert_eq!(expected["pools"][0]["ranges"][0]["subnet"], "172.16.5.0/24");
    assert_eq!(expected["ipam"]["ranges"][0][0]["subnet"], "172.16.5.0/24");
    assert_eq!(expected["ipam"]["annotation"], Value::Null);
    for text in [
        r#"ranges: [[{"subnet": "172.16.5.0/24"}]]"#,
        r#"{"ranges": [[{"subnet": "172.16.5.0/24"}]]}"#,
        r#"{ranges: [[{subnet: "172.16.5.0/24"}]]}"#,
        "\n\t \"ranges\" :\n[\r\n[ {\n\"subnet\"\t: \"172.16.5.0/24\" } ] ]\n\n",
        "ranges:[[{subnet:\"172.16.5.0/24\"}]]",
        r#""subnet": "172.16.5.0/24""#,
        r#"subnet: "172.16.5.0/24""#,
    ] {
        let answer = site.annotate(text).select(&site.network()).success();
        assert_eq!(answer, expected, "{text}");
    }
    assert_eq!(site.call("ADD", "c1").ips(), ["172.16.5.2/24"]);
}

#[test]
fn every_setting_of_host_local_counts() {
    let site = Site::new("");
    let resolv = "/etc/cni/resolv.conf";
    fs::write(site.host.path(resolv), "nameserver 192.0.2.3\nsearch a.test\n").unwrap();
    let settings = [
        r#"ranges: [
            [{ subnet: "10.1.0.0/24", rangeStart: "10.1.0.10", rangeEnd: "10.1.0.20", gateway: "10.1.0.254", exclude: ["10.1.0.10/31"] },
             { subnet: "10.2.0.0/24" }],
            [{ "subnet": "fd00:1::/64" }]
        ],
        routes: [{ dst: "0.0.0.0/0" }, { dst: "192.168.0.0/16", gw: "10.1.0.1" }],
        resolvConf: ""#,
        resolv,
        "\"",
    ];
    let result = site.annotate(&settings.concat()).call("ADD", "c1").success();
    let expected = json!({
        "cniVersion": "1.0.0",
        "ips": [
            {"address": "10.1.0.12/24", "gateway": "10.1.0.254"},
            {"address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.1.0.1"}],
        "dns": {"nameservers": ["192.0.2.3"], "search": ["a.test"]},
    });
    assert_eq!(result, expected);
    let old = r#""subnet": "10.3.0.0/24", "rangeStart": "10.3.0.7", "rangeEnd": "10.3.0.8", "gateway": "10.3.0.9""#;
    let ips = site.annotate(old).call("ADD", "c2").success()["ips"].clone();
    assert_eq!(ips, json!([{"address": "10.3.0.7/24", "gateway": "10.3.0.9"}]));
    let addresses = ["10.1.0.12", "10.3.0.7", "fd00:1::2"];
    assert_eq!(site.leases("net"), addresses);
    for container in ["c1", "c2"] {
        site.call("DEL", container).success();
    }
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn leases_lie_where_the_annotation_says_if_the_host_allows_it() {
    let site = Site::new("");
    let text = |folder: &str| format!(r#"{SUBNET}, "dataDir": "{folder}""#);
    let inside = site.annotate(&text("/var/lib/cni/elsewhere")).call("ADD", "c1").ips();
    assert_eq!(inside, ["172.16.5.2/24"]);
    let leases = site.host.path("/var/lib/cni/elsewhere/net");
    assert!(leases.join("172.16.5.2").exists());
    let outside = site.world.path("outside").display().to_string();
    for folder in [&outside, "/var/lib/cni/../../../tmp/x", "var/lib/cni", "", "/var/lib/cnix"] {
        let (code, error) = site.annotate(&text(folder)).call("ADD", "c2").failure();
        assert_eq!(code, 7, "{folder}: {error}");
        let place = format!("annotation {ANNOTATION} of node {}: dataDir: ", site.node);
        assert!(error.contains(&place), "{error}");
        assert!(error.contains("dataDirs in /etc/cni/ipam-delegated.json"), "{error}");
    }
    assert!(!site.world.path("outside").exists());
    let settings =
        json!({"stateDir": site.world.path("state"), "dataDirs": ["/var/lib/cni", outside]});
    site.host.settings(&settings);
    site.annotate(&text(&outside)).call("ADD", "c2").success();
    assert!(site.world.path("outside/net/172.16.5.2").exists());
    // DEL goes to where the ADD went.
    site.annotate(SUBNET);
    site.call("DEL", "c1").success();
    site.call("DEL", "c2").success();
    assert!(!leases.join("172.16.5.2").exists());
    assert!(!site.world.path("outside/net/172.16.5.2").exists());
}

#[test]
fn settings_without_a_range_give_no_address_and_say_so() {
    let site = Site::new("");
    let resolv = "/etc/cni/resolv.conf";
    fs::write(site.host.path(resolv), "nameserver 192.0.2.3\n").unwrap();
    for text in [
        format!("resolvConf: {}", json!(resolv)),
        r#""routes": [{"dst": "0.0.0.0/0"}]"#.to_owned(),
        r#""ranges": []"#.to_owned(),
        r#""ranges": null"#.to_owned(),
    ] {
        let (code, error) = site.annotate(&text).call("ADD", "c1").failure();
        assert_eq!(code, 7, "{text}: {error}");
        assert!(error.contains("no selector runs before this delegate"), "{text}: {error}");
        assert_eq!(site.leases("net"), [""; 0]);
    }
}

#[test]
fn a_flat_list_of_ranges_is_refused_by_our_allocator_and_passed_to_another_as_it_is_written() {
    let site = Site::new(r#""ranges": [{"subnet": "16.0.0.0/24"}]"#);
    let flat = json!([{"subnet": "16.0.0.0/24"}]);
    let (code, error) = site.call("ADD", "c1").failure();
    assert_eq!(code, 7, "{error}");
    assert!(error.starts_with("ipam-da-local: ipam.ranges[0]: "), "{error}");
    assert!(error.contains(r#"such as "ranges": [[{"subnet": "10.1.2.0/24"}]]"#), "{error}");
    let real = ipam_testkit::world::host_local();
    let next =
        site.elsewhere("host-local", &format!("printf '%s' \"$in\" | exec {}", real.display()));
    site.conf(&json!({"nextipam": next}));
    let (_, error) = site.call("ADD", "c1").failure();
    assert!(error.starts_with("host-local: ") && error.contains("cannot unmarshal"), "{error}");
    assert_eq!(
        site.world.calls()[0]["stdin"]["ipam"],
        json!({"type": "host-local", "ranges": flat})
    );
    site.annotate(r#""ranges": [[{"subnet": "16.0.0.0/24"}]]"#);
    assert_eq!(site.call("ADD", "c2").ips(), ["16.0.0.2/24"]);
    site.call("DEL", "c2").success();
    assert_eq!(site.leases("net"), [""; 0]);
}

/// What would run in a shell or in jq, with `HERE` for a file that it would make.
const INJECTIONS: [&str; 26] = [
    "$(touch HERE)",
    "`touch HERE`",
    "\"; touch HERE; \"",
    "ranges: $(touch HERE)",
    "ranges: `touch HERE`",
    r#""ranges": []} | halt_error | {"a": 1"#,
    r#""ranges": [[{"subnet": "10.0.0.0/24"}]]} | env | {"a": .PATH"#,
    r#"ranges: [[{subnet: "\(env.PATH)"}]]"#,
    r#"ranges: [[{subnet: "\(1)0.0.0.0/24"}]]"#,
    "ranges: env",
    "ranges: $ENV.PATH",
    "ranges: [[{subnet: $ENV.PATH}]]",
    "ranges: input",
    "ranges: [inputs]",
    "ranges: [[{subnet: (\"10.77.\" + \"0.0/24\")}]]",
    "ranges: halt_error",
    "ranges: (\"touch HERE\" | @sh)",
    "ranges: @sh \"touch HERE\"",
    "ranges: input_filename",
    "ranges: [[.]]",
    "ranges: .name",
    "(\"ranges\"): []",
    "\"ranges\": [], \"a\": 1}}, {{\"b\": 2",
    "} # ",
    "ranges: [[{subnet: \"10.0.0.0/24\"}]] # comment",
    "ranges: [[{'subnet': '10.0.0.0/24'}]]",
];

#[test]
fn nothing_in_an_annotation_runs() {
    let site = Site::new("");
    let here = site.world.path("here");
    for text in INJECTIONS {
        let (code, error) = refused(&site, &text.replace("HERE", here.to_str().unwrap()));
        assert_eq!(code, 7, "{text}: {error}");
        assert!(error.starts_with("invalid JSON: "), "{text}: {error}");
        assert!(error.contains(r#"for example "ranges": [[{"subnet": "#), "{text}: {error}");
        // Nothing was put in for what stands for something else.
        assert!(!error.contains("/usr/sbin"), "{text}: {error}");
        assert_untouched(&site);
    }
    // What is only a text goes on as that text.
    for text in ["$(touch HERE)", "`touch HERE`", "'; touch HERE; '", "$ENV", "${PATH}", "@sh"] {
        let text = text.replace("HERE", here.to_str().unwrap());
        let settings = format!(r#"ranges: [[{{subnet: "{text}"}}]]"#);
        let (code, error) = refused(&site, &settings);
        assert_eq!(code, 7, "{text}: {error}");
        assert!(error.contains("ipam.ranges[0][0].subnet") && error.contains(&text), "{error}");
        assert_untouched(&site);
        let settings = format!(r#"{SUBNET}, "x": "{text}""#);
        let answer = site.annotate(&settings).select(&site.network()).success();
        assert_eq!(answer["ipam"]["x"], json!(text));
    }
    assert!(!here.exists());
}

#[test]
fn the_name_of_an_annotation_is_a_name() {
    let site = Site::new(SUBNET);
    let here = site.world.path("here");
    for name in [
        "$(touch HERE)",
        "`touch HERE`",
        "\"; touch HERE; \"",
        "a\" | env | \"",
        "../spec",
        "a/b/c",
    ] {
        let name = name.replace("HERE", here.to_str().unwrap());
        let network = with(&site.network(), "annotation", name.as_str());
        let (code, error) = site.call_with("ADD", "c1", &network).failure();
        assert_eq!(code, 7, "{error}");
        let place = format!("{SELECTOR}: annotation {name} of node {}: missing", site.node);
        assert!(error.starts_with(&place), "{error}");
        let typed = site.typed(&site.preset(), &["get_annotation", &name], "").failure();
        assert!(typed.1.starts_with(&format!("annotation {name} of node ")), "{typed:?}");
        let typed = site.typed(&site.preset(), &["error_quit", &name], "").failure();
        assert!(typed.1.starts_with(&format!("FAILED: {name}")), "{typed:?}");
    }
    assert!(!here.exists());
}

#[test]
fn what_decides_about_the_chain_is_no_setting() {
    let site = Site::new("");
    for key in [
        "delegates",
        "stateDir",
        "timeout",
        "node",
        "verbose",
        "logDir",
        "logFile",
        "LOG_FILE",
        "StateDir",
        "logLevel",
    ] {
        for value in [r#""x""#, "[]", "{}"] {
            site.annotate(&format!(r#"{SUBNET}, "{key}": {value}"#));
            let (code, error) = site.call("ADD", "c1").failure();
            assert_eq!(code, 7, "{key}: {error}");
            let said = format!("annotation {ANNOTATION} of node {}: {key}: only the ", site.node);
            assert!(error.contains(&said), "{error}");
            assert_eq!(site.leases("net"), [""; 0]);
        }
    }
    // What is refused is not remembered, and who comes next has a name of its own.
    site.annotate(&format!(r#"{{{SUBNET}, "type": "host-local"}}"#)).call("ADD", "c1").success();
}

#[test]
fn the_whole_section_is_replaced_for_a_standard_plugin_and_the_store_stays_for_ours() {
    let site = Site::new(r#"ranges: [[{subnet: "10.9.0.0/24"}]], deep: {a: {b: 1}}, list: [1]"#);
    let conf = json!({
        "kubeconfig": site.world.path("kubeconfig"), "nodeName": site.node, "cacheTtl": "1s",
    });
    let replaced = json!({
        "ranges": [[{"subnet": "10.8.0.0/24"}]], "subnet": "10.7.0.0/24", "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/var/lib/cni/own", "deep": {"a": {"c": 2, "d": {"e": 3}}, "f": 4}, "list": {"g": 5},
    });
    let stores = json!({"etcd": {"endpoints": ["a"]}, "consul_servers": ["b"], "loglevel": "x"});
    let range = json!({"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.1", "rangeEnd": "10.9.0.254", "gateway": "10.9.0.1"});
    for last in ["ipam-da-x", "plain"] {
        site.world.allocator(last, "10.9.0.9/24");
        let mut network = site.chain(last);
        let ipam = network["ipam"].as_object_mut().unwrap();
        for keys in [&conf, &replaced, &stores] {
            ipam.extend(keys.as_object().unwrap().clone());
        }
        ipam["delegates"][0] = json!({"type": SELECTOR, "sets": ["deep", "list"]});
        assert_eq!(site.call_with("ADD", "c1", &network).ips(), ["10.9.0.9/24"]);
        let calls = site.world.calls();
        let mut given = calls[calls.len() - 1]["stdin"]["ipam"].as_object().unwrap().clone();
        assert!(given.remove("node").unwrap().is_string());
        let mut expected = json!({
            "type": last, "delegates": network["ipam"]["delegates"], "ranges": [[range]],
            "deep": {"a": {"b": 1}}, "list": [1],
        });
        match last {
            // The network's author decides on every key that a selector may not set.
            "ipam-da-x" => {
                expected["annotation"] = json!(ANNOTATION);
                for keys in [&conf, &stores] {
                    for (key, value) in keys.as_object().unwrap() {
                        expected[key] = value.clone();
                    }
                }
            }
            // It writes logs nowhere else because of an annotation.
            _ => expected["loglevel"] = json!("x"),
        }
        assert_eq!(Value::Object(given), expected, "{last}");
        site.call_with("DEL", "c1", &network).success();
    }
    assert_eq!(site.world.held(), [""; 0]);
}

#[test]
fn an_annotation_sends_nothing_of_roots_to_a_server_of_its_author() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = listener.local_addr().unwrap();
    let site = Site::new("");
    let file = site.world.path("token");
    fs::write(&file, "topsecret-kubelet-bootstrap-token").unwrap();
    let file = file.display();
    for (allocator, key, text) in [
        (
            "ipam-da-consul",
            "consul",
            format!(
                r#""consul_servers": ["http://{server}"], "consul": {{"tokenFile": "{file}"}}"#
            ),
        ),
        (
            "ipam-da-etcd",
            "etcd",
            format!(
                r#""etcd": {{"endpoints": ["{server}"], "username": "x", "passwordFile": "{file}"}}"#
            ),
        ),
        (
            "ipam-da-etcd",
            "certfile",
            format!(
                r#""endpoints": ["https://{server}"], "certfile": "{file}", "keyfile": "{file}""#
            ),
        ),
        ("ipam-da-kube", "kube", format!(r#""kube": {{"kubeconfig": "{file}"}}"#)),
        ("ipam-da-local", "takeover", "\"takeover\": true".to_owned()),
    ] {
        if !site.world.path("bin").join(allocator).exists() {
            site.world.install(&binary(allocator));
        }
        site.annotate(&format!("{SUBNET}, {text}"));
        let mut network = site.chain(allocator);
        network["ipam"]["timeout"] = json!("5s");
        let outcome = site.call_with("ADD", "c1", &network);
        let printed = format!("{outcome:?}");
        assert!(!printed.contains("topsecret"), "{printed}");
        let (code, error) = outcome.failure();
        assert_eq!(code, 110, "{error}");
        let said =
            format!("{SELECTOR}: its answer sets ipam.{key}: {allocator} accepts it only from ");
        assert!(error.starts_with(&said), "{error}");
        site.call_with("DEL", "c1", &network);
        assert!(listener.accept().is_err(), "{allocator} connected");
    }
    assert_untouched(&site);
}

#[test]
fn a_file_of_roots_is_not_read_for_name_resolution() {
    let site = Site::new("");
    let file = site.world.path("secrets");
    fs::write(&file, "options apikey=SECRET123\n").unwrap();
    let place = format!("{SELECTOR}: annotation {ANNOTATION} of node {}: ", site.node);
    let mut said = Vec::new();
    for path in [file.clone(), site.world.path("nothing")] {
        site.annotate(&format!("{SUBNET}, \"resolvConf\": {path:?}"));
        let outcome = site.call("ADD", "c1");
        assert!(!format!("{outcome:?}").contains("SECRET123"), "{outcome:?}");
        let (code, error) = outcome.failure();
        assert!(code == 7 && error.starts_with(&format!("{place}resolvConf: ")), "{error}");
        said.push(error.replace(path.to_str().unwrap(), "FILE"));
        // It holds up no DEL.
        let released = site.call("DEL", "c1");
        assert!(!format!("{released:?}").contains("SECRET123"), "{released:?}");
        assert_eq!(released.exit, Some(0), "{released:?}");
    }
    assert_eq!(said[0], said[1], "which files exist is told");
    let folder = file.parent().unwrap();
    let settings = json!({"stateDir": site.world.path("state"), "resolvDirs": [folder]});
    site.host.settings(&settings);
    site.annotate(&format!("{SUBNET}, \"resolvConf\": {file:?}"));
    let result = site.call("ADD", "c1").success();
    assert_eq!(result["dns"]["options"], json!(["apikey=SECRET123"]));
}

#[test]
fn an_annotation_that_says_nothing_is_told_by_its_name() {
    let site = Site::new(" ");
    for text in ["", " \n\t"] {
        let (code, error) = refused(&site, text);
        assert_eq!((code, error.split(": ").next().unwrap()), (7, "empty"), "{error}");
    }
    for text in ["{}", " { } "] {
        let (code, error) = refused(&site, text);
        assert_eq!((code, error.split(": ").next().unwrap()), (7, "no settings"), "{error}");
    }
    for text in
        ["this is not jq", "[]", "null", "5", "\"a\"", "ranges", "ranges:", "a: b: c", "\u{0}"]
    {
        let (code, error) = refused(&site, text);
        assert_eq!((code, error.split(": ").next().unwrap()), (7, "invalid JSON"), "{error}");
    }
    site.kube.annotate_node(&site.node, ANNOTATION, None);
    let (code, error) = site.call("ADD", "c1").failure();
    let said = format!("{SELECTOR}: annotation {ANNOTATION} of node {}: missing", site.node);
    assert!(code == 7 && error.starts_with(&said), "{error}");
    let advice = format!("kubectl annotate node {} {ANNOTATION}=", site.node);
    assert!(error.contains(&advice), "{error}");
    assert_untouched(&site);
}

#[test]
fn an_annotation_of_two_hundred_kilobytes_is_read_and_its_errors_stay_short() {
    let site = Site::new(SUBNET);
    let (code, error) = refused(&site, &"x".repeat(200_000));
    assert!(code == 7 && error.len() < 4096, "{} bytes", error.len());
    let deep = format!("ranges: {}", "[".repeat(100_000));
    assert_eq!(refused(&site, &deep).0, 7);
    // Unknown members of a route, and two thousand ranges.
    let ranges: Vec<Value> =
        (0..2000).map(|n| json!({"subnet": format!("10.{}.{}.0/24", n / 256, n % 256)})).collect();
    let text = format!(
        "ranges: {}, routes: [{{dst: \"0.0.0.0/0\", x: \"{}\"}}]",
        json!([ranges]),
        "x".repeat(160_000)
    );
    assert!(text.len() > 200_000);
    assert_eq!(site.annotate(&text).call("ADD", "c1").ips(), ["10.0.0.2/24"]);
    site.call("DEL", "c1").success();
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn a_network_that_names_no_annotation_or_a_machine_that_is_no_node_is_told() {
    let site = Site::new(SUBNET);
    for (value, said) in [
        (Value::Null, "ipam.annotation: missing"),
        (json!(""), "ipam.annotation: missing"),
        (json!(["a"]), "ipam.annotation: expected a string, found an array"),
    ] {
        let network = with(&site.network(), "annotation", value);
        let (code, error) = site.call_with("ADD", "c1", &network).failure();
        assert!(code == 7 && error.starts_with(&format!("{SELECTOR}: {said}")), "{error}");
    }
    assert_eq!(site.asked(), 0);
    site.kube.delete_node(&site.node);
    let (code, error) = site.call("ADD", "c1").failure();
    assert_eq!(code, 103, "{error}");
    let said = format!("{SELECTOR}: node {} not found in the cluster of ", site.node);
    assert!(error.starts_with(&said) && error.contains("nodeName names it"), "{error}");
    assert_untouched(&site);
}
