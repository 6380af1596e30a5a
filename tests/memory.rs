//! What a server sends costs no more memory than what is kept of it, whatever it sends.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::{Command, Stdio};

use ipam_testkit::fake_grpc;
use ipam_testkit::fake_http::{Fake, Reply, answering, http};
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// What a call may use, in KiB. One without an answer to speak of needs less than one MiB.
const MEMORY: u64 = 32 * 1024;

/// Runs a call with so much memory for its data; the kernel refuses more.
fn run(command: &Command, network: &Value) -> Outcome {
    let mut limited = Command::new("sh");
    let script = format!("ulimit -d {MEMORY}; exec \"$@\"");
    limited.args(["-c", &script, "sh"]);
    limited.arg(command.get_program()).args(command.get_args()).env_clear();
    limited.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start(limited, network))
}

/// The error is not that there was too little memory: some reading says so instead of ending.
#[track_caller]
fn assert_fits(text: &str, what: &str) {
    assert!(!text.contains("memory"), "{what}: {text}");
}

/// A server of Kubernetes whose node `n` is this object, and whose list of nodes this one.
fn kube(object: &str, list: &str) -> Fake {
    let (object, list) = (http(200, object), http(200, list));
    let absent = http(
        404,
        r#"{"kind":"Status","apiVersion":"v1","reason":"NotFound","details":{"name":"x"}}"#,
    );
    answering(move |request, _| {
        let path = request.split(' ').nth(1).unwrap();
        Reply::Say(match path {
            "/api/v1/nodes/n" => object.clone(),
            _ if path.starts_with("/api/v1/nodes?") => list.clone(),
            _ => absent.clone(),
        })
    })
}

/// Writes the login of a server into a world.
fn write_kubeconfig(world: &World, server: &Fake) {
    let kubeconfig = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
    });
    fs::write(world.path("kubeconfig"), kubeconfig.to_string()).unwrap();
}

/// A call of the selector of pods, for a pod that is this object.
fn select_pod(object: &str) -> Outcome {
    let object = http(200, object);
    let server = answering(move |_, _| Reply::Say(object.clone()));
    let world = World::new();
    write_kubeconfig(&world, &server);
    let mut network = world.network(json!([]));
    network["ipam"]["type"] = "ipam-ds-kube-pod".into();
    network["ipam"]["kubeconfig"] = json!(world.path("kubeconfig"));
    network["ipam"]["pod"] = json!({"sticky": "name", "pools": ["blue"], "addresses": true});
    let mut command = world.command_of(&binary("ipam-ds-kube-pod"), "ADD", "c1");
    command.env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
    run(&command, &network)
}

/// A call of a selector for a node.
fn select(world: &World, program: &str, server: &Fake, name: Option<&str>) -> Outcome {
    let kubeconfig = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
    });
    fs::write(world.path("kubeconfig"), kubeconfig.to_string()).unwrap();
    let mut network = world.network(json!([]));
    network["ipam"]["type"] = program.into();
    network["ipam"]["kubeconfig"] = json!(world.path("kubeconfig"));
    network["ipam"]["cacheTtl"] = "0s".into();
    network["ipam"]["annotation"] = "a".into();
    if let Some(name) = name {
        network["ipam"]["nodeName"] = name.into();
    }
    run(&world.command_of(&binary(program), "ADD", "c1"), &network)
}

fn node(name: &str, metadata: &str, spec: &str) -> String {
    format!(
        r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"{name}"{metadata}}},"spec":{spec}}}"#
    )
}

fn list(items: &str) -> String {
    format!(r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{}},"items":[{items}]}}"#)
}

/// About so many bytes of this, with commas between.
fn many(what: &str, bytes: usize) -> String {
    vec![what; bytes / (what.len() + 1)].join(",")
}

const MIB: usize = 1024 * 1024;

/// One text of this size.
fn text(of: &str, bytes: usize) -> String {
    of.repeat(bytes / of.len())
}

/// What an error quotes at the greatest length.
const CONTROL: &str = "\u{7f}";

#[test]
fn a_list_of_nodes() {
    let long = |size| node(&text(CONTROL, size), "", "{}");
    for (what, items) in [
        ("empty nodes", many("{}", 24 * MIB)),
        ("numbers", many("1", MIB)),
        ("a long name", long(24 * MIB)),
        (
            "a long text",
            many(&format!(r#"{{"metadata":"{}"}}"#, text(CONTROL, MIB - 100)), 2 * MIB),
        ),
        ("a large node", node("x", &format!(r#","a":{{"b":{}}}"#, text("0", 8 * MIB)), "{}")),
        ("arrays", node("x", &format!(r#","a":[{}]"#, many("[]", 24 * MIB)), "{}")),
    ] {
        let server = kube("", &list(&items));
        let (code, text) = select(&World::new(), "ipam-ds-kube-node", &server, None).failure();
        assert!(code == 103 && text.contains(&server.url), "{what}: {code} {text}");
        assert_fits(&text, what);
    }
    // A server may ignore the limit that it is asked for, within reason.
    for (count, told) in
        [(500, "is not a node of the cluster"), (501, "sent more than 500 objects")]
    {
        let server = kube("", &list(&vec![node("x", "", "{}"); count].join(",")));
        let (_, text) = select(&World::new(), "ipam-ds-kube-node", &server, None).failure();
        assert!(text.contains(told), "{count}: {text}");
    }
    // What is not kept may be long.
    let pad = format!(r#","labels":{{"a":"{}"}}"#, text("x", 400_000));
    let server = kube("", &list(&many(&node("x", &pad, "{}"), 40 * 400_000)));
    let (_, text) = select(&World::new(), "ipam-ds-kube-node", &server, None).failure();
    assert!(text.contains("this machine is not a node of the cluster"), "{text}");
}

#[test]
fn a_node() {
    let annotations = |text: &str| node("n", &format!(r#","annotations":{text}"#), "{}");
    let keys: Vec<String> = (0..90_000).map(|i| format!(r#""{i}":"""#)).collect();
    for (what, object) in [
        ("arrays", node("n", "", &format!("[{}]", many("[]", 7 * MIB / 2)))),
        ("as many arrays as are read", node("n", "", &format!("[{}]", many("[]", 280_000)))),
        ("as many keys as are read", annotations(&format!("{{{}}}", keys.join(",")))),
        ("a long annotation", annotations(&format!(r#"{{"a":"{}"}}"#, text("x", 2 * MIB)))),
        ("a long text", annotations(&format!(r#""{}""#, text(CONTROL, MIB - 100)))),
        ("a long subnet", annotations(&format!(r#"{{"a":"{}"}}"#, text(CONTROL, MIB - 100)))),
    ] {
        for program in ["ipam-ds-kube-node", "ipam-ds-node-annotation"] {
            let server = kube(&object, "");
            let (code, text) = select(&World::new(), program, &server, Some("n")).failure();
            let named = text.contains(&server.url) || text.contains("of node n");
            assert!([7, 103].contains(&code) && named, "{what}: {code} {text}");
            assert_fits(&text, what);
        }
    }
    // A large one of the usual kind.
    let image = r#"{"names":["registry.example.com/image@sha256:0123456789"],"sizeBytes":12345}"#;
    let about = format!(r#""a":"10.1.2.0/24","b":"{}""#, text("x", 250_000));
    let object = annotations(&format!("{{{about}}}"));
    let object = object.trim_end_matches('}').to_owned()
        + &format!(r#"}},"status":{{"images":[{}]}}}}"#, many(image, 3 * MIB / 2));
    let server = kube(&object, "");
    let answer = select(&World::new(), "ipam-ds-kube-node", &server, Some("n")).success();
    assert_eq!(answer["pools"][0]["ranges"][0]["subnet"], "10.1.2.0/24", "{answer}");
}

#[test]
fn a_pod() {
    let pod = |metadata: &str| {
        let kind = r#""kind":"Pod","apiVersion":"v1""#;
        format!(r#"{{{kind},"metadata":{{"name":"web-0",{metadata}}}}}"#)
    };
    let annotated = |name: &str, text: &str| {
        let annotations = json!({ name: text });
        pod(&format!(r#""annotations":{annotations}"#))
    };
    let keys: Vec<String> = (0..400_000).map(|i| format!(r#""{i}":"""#)).collect();
    let networks = "k8s.v1.cni.cncf.io/networks";
    let size = 255 << 10;
    for (what, object) in [
        ("owners", pod(&format!(r#""ownerReferences":[{}]"#, many("{}", 7 * MIB / 2)))),
        ("many annotations", pod(&format!(r#""annotations":{{{}}}"#, keys.join(",")))),
        ("a long annotation", annotated("a", &text("x", 2 * MIB))),
        ("many pools", annotated("ipam-delegated/pool", &many("a", size))),
        ("many addresses", annotated("ipam-delegated/address", &many("::", size))),
        ("many networks", annotated(networks, &format!("[{}]", many("{}", size)))),
        ("a long name", annotated("podname", &text(CONTROL, size))),
    ] {
        let outcome = select_pod(&object);
        let (code, text) = match outcome.exit {
            Some(0) => (0, String::new()),
            _ => outcome.failure(),
        };
        assert!([0, 7, 103].contains(&code), "{what}: {code} {text}");
        assert_fits(&text, what);
    }
}

#[test]
fn an_allocation_of_nomad() {
    const ID: &str = "5456bd7a-9fc0-c0dd-6131-cbee77f57577";
    let allocation = |mode: &str, meta: &str, more: &str| {
        format!(
            r#"{{"ID":"{ID}","TaskGroup":"g","Job":{{"ID":"j"{more},"TaskGroups":[{{"Name":"g","Meta":{meta},"Networks":[{{"Mode":"{mode}"}}]}}]}}}}"#
        )
    };
    let ask = |answer: &str| {
        let answer = http(200, answer);
        let server = answering(move |_, _| Reply::Say(answer.clone()));
        let world = World::new();
        let mut network = world.network(json!([]));
        network["ipam"]["type"] = "ipam-ds-nomad".into();
        network["ipam"]["nomad_servers"] = json!([server.url]);
        run(&world.command_of(&binary("ipam-ds-nomad"), "ADD", ID), &network)
    };
    let pool = r#"{"network-pool":"blue"}"#;
    let arrays = |bytes| format!(r#"{{"network-pool":[{}]}}"#, many("[]", bytes));
    for (what, answer) in [
        ("arrays", format!("[{}]", many("[]", 16 * MIB))),
        ("arrays as meta", allocation("cni/net", &arrays(7 * MIB), "")),
        ("as many arrays as are read", allocation("cni/net", &arrays(280_000), "")),
        ("a long mode", allocation(&text(CONTROL, MIB - 100), pool, "")),
        (
            "a long pool",
            allocation(
                "cni/net",
                &format!(r#"{{"network-ip":"{}","network-pool":"p"}}"#, text(CONTROL, MIB - 100)),
                "",
            ),
        ),
        ("a long text", allocation("cni/net", &format!(r#""{}""#, text(CONTROL, MIB - 100)), "")),
    ] {
        let (code, text) = ask(&answer).failure();
        assert!([7, 103].contains(&code), "{what}: {code} {text}");
        assert_fits(&text, what);
    }
    // A large job of the usual kind.
    let template = format!(r#"{{"EmbeddedTmpl":"{}","DestPath":"local/x"}}"#, text("x", 100_000));
    let more = format!(r#","Templates":[{}]"#, many(&template, 6 * MIB));
    let answer = ask(&allocation("cni/net", pool, &more)).success();
    assert_eq!(answer["pools"][0]["name"], "blue", "{answer}");
}

#[test]
fn answers_of_consul() {
    let pair = |key: &str, value: &str| {
        format!(
            r#"{{"Key":"{key}","Value":"{value}","Flags":0,"LockIndex":0,"CreateIndex":1,"ModifyIndex":1}}"#
        )
    };
    let results = |of: &str, bytes| format!(r#"{{"Results":[{}],"Errors":null}}"#, many(of, bytes));
    let long = format!(r#"{{"KV":{}}}"#, pair("ipam/blue", &text("QUJD", MIB - 100)));
    for (what, answer) in [
        ("arrays", format!("[{}]", many("[]", 7 * MIB))),
        ("as many arrays as are read", format!("[{}]", many("[]", 280_000))),
        ("pairs", results(&format!(r#"{{"KV":{}}}"#, pair("", "")), 44 * MIB)),
        ("as many pairs as are read", results(&format!(r#"{{"KV":{}}}"#, pair("", "")), 900_000)),
        ("long values", results(&long, 8 * MIB - 100)),
        (
            "a long key",
            results(&format!(r#"{{"KV":{}}}"#, pair(&text(CONTROL, MIB - 100), "%")), MIB),
        ),
    ] {
        let head = "HTTP/1.1 200 OK\r\nX-Consul-Index: 1\r\nX-Consul-KnownLeader: true\r\n";
        let say = format!("{head}Content-Length: {}\r\n\r\n{answer}", answer.len());
        let server = answering(move |_, _| Reply::Say(say.clone()));
        let world = World::new();
        let mut network = world.network(json!([]));
        network["ipam"]["type"] = "ipam-da-consul".into();
        network["ipam"]["consul_servers"] = json!([server.url]);
        network["ipam"]["consul"] = json!({"timeout": "30s"});
        network["ipam"]["pools"] = json!([{"name": "blue"}]);
        for verb in ["ADD", "DEL"] {
            let command = world.command_of(&binary("ipam-da-consul"), verb, "c1");
            let (_, text) = run(&command, &network).failure();
            assert_fits(&text, what);
        }
    }
}

#[test]
fn pools_of_kubernetes() {
    const NAME: &str = "10.225.0.0-16";
    let entries = |count: usize, entry: &str| {
        let entries: Vec<String> = (1..=count).map(|key| format!(r#""{key}":{entry}"#)).collect();
        entries.join(",")
    };
    let pool = |allocations: &str, metadata: &str| {
        format!(
            r#"{{"kind":"IPPool","apiVersion":"whereabouts.cni.cncf.io/v1alpha1","metadata":{{"name":"{NAME}","uid":"u","resourceVersion":"7"{metadata}}},"spec":{{"range":"10.225.0.0/16","allocations":{{{allocations}}}}}}}"#
        )
    };
    // etcd takes 1.5 MiB.
    let most = pool(&entries(65_000, r#"{"id":""}"#), "");
    let managed = many(r#"{"fieldsV1":{"f:spec":{"f:allocations":{"f:1":{}}}}}"#, MIB);
    for (what, object) in [
        ("as many entries as a pool has", most.clone()),
        ("keys that name no address", pool(&entries(140_000, "{}"), "")),
        ("a long id", pool(&format!(r#""1":{{"id":"{}"}}"#, text(CONTROL, MIB)), "")),
        ("a long key", pool(&format!(r#""{}":{{}}"#, text(CONTROL, MIB)), "")),
        ("members of others", pool(&format!(r#""1":{{"x":[{}]}}"#, many("[]", 3 * MIB)), "")),
        ("managed fields", pool("", &format!(r#","managedFields":[{managed}]"#))),
        ("more than an object may have", pool("", &format!(r#","x":"{}""#, text("x", 24 * MIB)))),
    ] {
        let list = format!(
            r#"{{"kind":"IPPoolList","apiVersion":"whereabouts.cni.cncf.io/v1alpha1","metadata":{{}},"items":[{}]}}"#,
            vec![object.clone(); 2].join(",")
        );
        let (object, list) = (http(200, &object), http(200, &list));
        let absent = http(
            404,
            r#"{"kind":"Status","apiVersion":"v1","reason":"NotFound","details":{"name":"x"}}"#,
        );
        let server = answering(move |request, _| {
            let path = request.split(' ').nth(1).unwrap();
            Reply::Say(match path {
                _ if path.contains("/ippools?") => list.clone(),
                _ if path.ends_with(NAME) => object.clone(),
                _ => absent.clone(),
            })
        });
        let world = World::new();
        write_kubeconfig(&world, &server);
        let mut network = world.network(json!([]));
        network["ipam"]["type"] = "ipam-da-kube".into();
        network["ipam"]["ranges"] = json!([[{"subnet": "10.225.0.0/16"}]]);
        network["ipam"]["kube"] =
            json!({"kubeconfig": world.path("kubeconfig"), "timeout": "300ms"});
        for verb in ["ADD", "DEL"] {
            let mut network = network.clone();
            network["prevResult"] =
                json!({"cniVersion": "1.0.0", "ips": [{"address": "10.225.0.9/16"}]});
            let outcome = run(&world.command_of(&binary("ipam-da-kube"), verb, "c1"), &network);
            assert!(matches!(outcome.exit, Some(0 | 1)), "{verb}: {what}: {outcome:?}");
            assert_fits(&format!("{}{}", outcome.stdout, outcome.stderr), what);
        }
    }
}

#[test]
fn files_that_etcd_needs() {
    let server = fake_grpc::refusing(14, "away");
    let secured = server.replace("http:", "https:");
    let world = World::new();
    assert!(Command::new("mkfifo").arg(world.path("fifo")).status().unwrap().success());
    for file in ["/dev/zero", world.path("fifo").to_str().unwrap()] {
        for (key, endpoint, more) in [
            ("trustedCaFile", &secured, json!({})),
            ("certFile", &secured, json!({"keyFile": "/dev/null"})),
            ("passwordFile", &server, json!({"username": "u"})),
        ] {
            let mut etcd = json!({"endpoints": [endpoint], "timeout": "1s", key: file});
            etcd.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut network = world.network(json!([]));
            network["ipam"]["type"] = "ipam-da-etcd".into();
            network["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/24"}]]);
            network["ipam"]["etcd"] = etcd;
            let command = world.command_of(&binary("ipam-da-etcd"), "ADD", "c1");
            let (code, text) = run(&command, &network).failure();
            let place = format!("ipam.etcd.{key}: {file} cannot be read");
            assert!(code == 7 && text.contains(&place), "{key}: {code} {text}");
        }
    }
}

#[test]
fn lists_of_openwisp() {
    let record = |id: &str, text: &str| {
        format!(
            r#"{{"id":"{id}","modified":"","ip_address":"10.9.0.2","description":"{text}","subnet":"s"}}"#
        )
    };
    let page = |elements: &str, count: usize| {
        format!(r#"{{"count":{count},"next":"more","results":[{elements}]}}"#)
    };
    let subnet = r#"{"id":"s","name":"s","subnet":"10.9.0.0/16","description":"","organization":"o","master_subnet":null}"#;
    let subnets = format!(r#"{{"count":1,"next":null,"results":[{subnet}]}}"#);
    let long = page(&many(&record("r", &text(CONTROL, 15_000)), 2 * MIB), 200);
    let export = format!("ip_address,description\r\n{}", "10.9.0.2,\r\n".repeat(4 * MIB));
    for (what, list, export) in [
        ("more elements than a page has", page(&many(&record("r", ""), 8 * MIB), 1), ""),
        ("long descriptions", long, ""),
        ("a long id", page(&record(&text("x", 12_000), ""), 1), ""),
        ("more members than a list has", format!(r#"{{"x":[{}]}}"#, many("[]", 8 * MIB)), ""),
        ("an export without an end", page(&record("r", ""), 101), &*export),
        ("pages without an end", String::new(), ""),
    ] {
        let (list, export, subnets) = (http(200, &list), http(200, export), http(200, &subnets));
        let server = answering(move |request, number| {
            let path = request.split(' ').nth(1).unwrap();
            Reply::SayAndClose(match path {
                _ if path.contains("/export/") => export.clone(),
                _ if path.contains("/ip-address/00000000") => http(404, r#"{"detail":"x"}"#),
                _ if path.contains("/s/ip-address/") && list.ends_with("\r\n\r\n") => {
                    let ids = (0..100).map(|n| record(&format!("{number}-{n:050}"), ""));
                    http(200, &page(&ids.collect::<Vec<_>>().join(","), 100_000))
                }
                _ if path.contains("/s/ip-address/") => list.clone(),
                _ => subnets.clone(),
            })
        });
        let world = World::new();
        let mut network = world.network(json!([]));
        network["ipam"]["type"] = "ipam-da-openwisp".into();
        network["ipam"]["openwisp"] = json!({"url": server.url, "token": "t", "timeout": "5s"});
        network["ipam"]["pools"] = json!([{"name": "s"}]);
        let command = world.command_of(&binary("ipam-da-openwisp"), "ADD", "c1");
        let (_, text) = run(&command, &network).failure();
        assert_fits(&text, what);
    }
}

#[test]
fn lists_of_phpipam() {
    let row = |id: &str, note: &str| {
        format!(r#"{{"id":"{id}","subnetId":"3","ip":"10.9.0.2","hostname":"h","note":"{note}"}}"#)
    };
    let list = |rows: &str| format!(r#"{{"code":200,"success":true,"data":[{rows}]}}"#);
    let subnet = r#"{"id":"3","subnet":"10.9.0.0","mask":"16","sectionId":"1","description":"s","masterSubnetId":"0"}"#;
    let members = format!(r#"{{"code":200,"success":true,"x":[{}]}}"#, many("[]", 8 * MIB));
    for (what, records) in [
        ("records without an end", list(&many(&row("7", ""), 8 * MIB))),
        ("long notes", list(&many(&row("7", &text(CONTROL, 15_000)), 2 * MIB))),
        ("a long id", list(&row(&text("1", 12_000), ""))),
        (
            "a long text instead of a list",
            format!(r#"{{"code":404,"message":"{}"}}"#, text("x", 4 * MIB)),
        ),
        ("more members than a list has", members),
    ] {
        let (records, subnets) = (http(200, &records), http(200, &list(subnet)));
        let one = http(200, &format!(r#"{{"code":200,"success":true,"data":{subnet}}}"#));
        let full = http(404, r#"{"code":404,"success":false,"message":"No free addresses found"}"#);
        let server = answering(move |request, _| {
            let path = request.split(' ').nth(1).unwrap();
            Reply::SayAndClose(match path {
                _ if path.ends_with("/subnets/3/addresses/") => records.clone(),
                _ if path.ends_with("/subnets/3/") => one.clone(),
                _ if path.ends_with("/subnets/") => subnets.clone(),
                _ => full.clone(),
            })
        });
        let world = World::new();
        let mut network = world.network(json!([]));
        network["ipam"]["type"] = "ipam-da-phpipam".into();
        let section = json!({"url": server.url, "appId": "cni", "token": "t", "timeout": "5s"});
        network["ipam"]["phpipam"] = section;
        network["ipam"]["pools"] = json!([{"name": "s"}]);
        let command = world.command_of(&binary("ipam-da-phpipam"), "ADD", "c1");
        let (_, text) = run(&command, &network).failure();
        assert_fits(&text, what);
        assert!(server.seen.lock().unwrap().iter().any(|it| it.contains("/subnets/3/addresses/")));
    }
}
