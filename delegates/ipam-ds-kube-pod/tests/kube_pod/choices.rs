//! What a pod chooses, each row by an object of the API server.

use ipam_testkit::world::without;
use serde_json::{Value, json};

use crate::site::{Site, all, lines};

#[test]
fn a_pod_chooses_a_pool_addresses_and_a_name_by_one_request() {
    let site = Site::new();
    let own = json!({"sticky": "name", "keep": "1h", "pools": ["blue", "red", "blue6"], "addresses": true});
    let name = format!("{}/db", site.namespace);
    let args = site.annotated("a", &json!({
        "podname": "db", "ipam-delegated/pool": "red", "ipam-delegated/address": "10.2.0.9, fd01::9",
        "unrelated": "x",
    }));
    assert_eq!(
        site.chosen(&args, &own),
        [
            format!("red 10.2.0.9 {name} 1h"),
            format!("blue6 fd01::9 {name} 1h"),
            format!("{name} 1h")
        ]
    );
    assert_eq!(site.requests(), ["get /api/v1/namespaces/NS/pods/a 200"]);
    // A pod without annotations gets the first pool of each family, and no name.
    let args = site.annotated("b", &json!({}));
    let answer = site.add(&args, &site.network(&own)).success();
    assert_eq!(lines(&answer), ["blue", "blue6", ""]);
    // The number of a pool stays, and what the selector does not know.
    assert_eq!(answer["pools"][1]["index"], 2);
    assert_eq!(answer["pools"][2]["index"], 7);
    assert_eq!(answer["pools"][2]["colour"], "grey");
}

#[test]
fn a_requested_address_never_takes_that_of_another_pod() {
    let site = Site::new();
    let args = site.annotated("a", &json!({"ipam-delegated/address": "10.3.0.9"}));
    let answer = site.add(&args, &site.network(&json!({"addresses": true}))).success();
    assert_eq!(answer["pools"][3]["requested_ip"], "10.3.0.9");
    assert_eq!(answer["pools"][3]["takeover"], false);
    assert_eq!(answer["pools"][0].get("takeover"), None);
}

#[test]
fn the_names_of_annotations_are_the_networks() {
    let site = Site::new();
    let args = site.annotated(
        "a",
        &json!({
            "example.org/name": "db", "example.org/pool": "red", "example.org/ip": "10.2.0.9",
            "podname": "other", "ipam-delegated/pool": "blue", "ipam-delegated/address": "10.1.0.9",
        }),
    );
    let named = json!({
        "sticky": "name", "nameScope": "cluster", "pools": ["blue", "red"], "addresses": true,
        "annotations": {
            "sticky": ["example.org/name"], "pool": "example.org/pool", "address": "example.org/ip",
        },
    });
    assert_eq!(site.chosen(&args, &named), ["red 10.2.0.9 db", "blue6 db", "db"]);
}

#[test]
fn a_namespace_gives_its_pods_a_default_where_the_network_lets_it() {
    let site = Site::new();
    site.annotate_namespace(&json!({"ipam-delegated/pool": "red", "podname": "never"}));
    let silent = site.annotated("a", &json!({}));
    let choosing = site.annotated("b", &json!({"ipam-delegated/pool": "blue"}));
    assert_eq!(site.chosen(&silent, &all())[0], "red");
    assert_eq!(site.chosen(&choosing, &all())[0], "blue");
    let asked = ["pods/a", "", "pods/b", ""];
    let line = |path: &&str| format!("get /api/v1/namespaces/NS/{path} 200").replace("/ ", " ");
    assert_eq!(site.requests(), asked.iter().map(line).collect::<Vec<_>>());
    // Without the right to choose, the namespace is not read.
    assert_eq!(site.chosen(&silent, &json!({"pools": ["blue", "red"]}))[0], "blue");
    assert_eq!(site.requests().len(), 5);
    // A namespace that chooses alone needs no pod.
    let alone = json!({"pools": ["blue", "red"], "poolFrom": ["namespace"]});
    assert_eq!(site.chosen(&silent, &alone)[0], "red");
    assert_eq!(site.requests()[5..], ["get /api/v1/namespaces/NS 200"]);
    site.annotate_namespace(&json!({"ipam-delegated/pool": "green"}));
    let (code, text) = site.add(&silent, &site.network(&alone)).failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains(&format!("of namespace {}", site.namespace)), "{text}");
    assert!(text.contains(r#"does not allow the pool "green", but "blue", "red""#), "{text}");
}

#[test]
fn the_element_of_the_list_of_networks_says_it_for_one_attachment() {
    let site = Site::new();
    let networks = json!([
        {"name": "net", "cni-args": {"podname": "first", "ipam-delegated/pool": "red"}},
        {"name": "net", "interface": "ext0", "cni-args": {"podname": "second"}},
    ]);
    let args = site.annotated(
        "a",
        &json!({
            "k8s.v1.cni.cncf.io/networks": networks.to_string(), "podname": "of-pod",
            "ipam-delegated/pool": "blue",
        }),
    );
    let named = json!({"sticky": "name", "nameScope": "cluster", "pools": ["blue", "red"]});
    for (ifname, expected) in [
        ("net1", "red first"),
        ("ext0", "blue second"),
        // net2 is called ext0, and no element is for net3.
        ("net2", "blue of-pod"),
        ("net3", "blue of-pod"),
        ("eth0", "red first"),
    ] {
        let mut command = site.command("ADD", &args);
        command.env("CNI_IFNAME", ifname);
        let answer = site.run(command, &site.network(&named)).success();
        assert_eq!(lines(&answer)[0], expected, "{ifname}");
    }
    let foreign = json!([{"name": "net", "namespace": "other", "cni-args": {"podname": "third"}}]);
    let args = site.annotated("b", &json!({"k8s.v1.cni.cncf.io/networks": foreign.to_string()}));
    let mut command = site.command("ADD", &args);
    command.env("CNI_IFNAME", "eth0");
    let (code, text) = site.run(command, &site.network(&named)).failure();
    assert!(code == 7 && text.contains("other/net, is of another namespace"), "{code} {text}");
}

#[test]
fn a_pool_without_a_name_is_chosen_by_its_subnet_and_one_of_the_store_by_its_name() {
    let site = Site::new();
    let own = json!({"pools": ["blue", "10.3.0.0/24", "stored"]});
    let args = site.annotated("a", &json!({"ipam-delegated/pool": "10.3.0.0/24"}));
    let answer = site.add(&args, &site.network(&own)).success();
    assert_eq!(lines(&answer), ["red", "blue6", "", "stored"]);
    // Without pools of an earlier selector, the store has them all.
    let mut network = site.network(&json!({"pools": ["web", "db"]}));
    network["prevResult"].as_object_mut().unwrap().remove("pools");
    let args = site.annotated("b", &json!({"ipam-delegated/pool": "db"}));
    assert_eq!(lines(&site.add(&args, &network).success()), ["db"]);
}

#[test]
fn a_pod_that_names_what_the_network_does_not_allow_gets_an_error() {
    let site = Site::new();
    for (number, (annotations, code, part)) in [
        (json!({"ipam-delegated/pool": "green"}), 7, r#"the pool "green", but "blue", "red""#),
        (json!({"ipam-delegated/pool": "blue,red"}), 7, r#""blue" and "red" are pools of one"#),
        (json!({"ipam-delegated/address": "10.2.0.9"}), 101, "10.2.0.9 is not in 10.1.0.1-"),
        (json!({"ipam-delegated/address": "10.1.0.1"}), 101, "10.1.0.1 is the gateway"),
        (json!({"ipam-delegated/address": "10.1.0.7,10.1.0.8"}), 101, "are requested of one pool"),
        (json!({"ipam-delegated/address": "web"}), 7, r#"invalid address "web""#),
        (json!({"podname": "a b"}), 7, r#"invalid name "a b""#),
        (json!({"podname": "a\u{1b}[31m"}), 7, "invalid name"),
        (json!({"podname": "a", "ipam-delegated/sticky": "b"}), 7, r#""b" contradicts "a""#),
        (json!({"k8s.v1.cni.cncf.io/networks": "[{"}), 7, "k8s.v1.cni.cncf.io/networks"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("pod-{number}");
        let args = site.annotated(&name, &annotations);
        let (found, text) = site.add(&args, &site.network(&all())).failure();
        assert_eq!(found, code, "{annotations}: {text}");
        assert!(text.contains(part), "{annotations}: {text}");
        assert!(text.contains(&format!("{}/{name}", site.namespace)), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    // What the network does not allow has no effect.
    let args = site.annotated("free", &json!({"ipam-delegated/address": "web", "podname": "a b"}));
    assert_eq!(site.chosen(&args, &json!({"pools": ["blue", "red"]})), ["blue", "blue6", ""]);
}

#[test]
fn wishes_without_a_pool_are_an_error() {
    let site = Site::new();
    let args = site.annotated("a", &json!({"podname": "db"}));
    for pools in [Value::Null, json!([])] {
        let mut network = site.network(&json!({"sticky": "name"}));
        network["prevResult"]["pools"] = pools;
        let (code, text) = site.add(&args, &network).failure();
        assert!(code == 7 && text.contains("put a selector such as ipam-ds-static"), "{text}");
    }
}

#[test]
fn a_section_that_asks_for_nothing_costs_nothing() {
    let site = Site::new();
    let before = site.network(&Value::Null);
    for network in [
        without(&before, &["pod", "kubeconfig"]),
        without(&before, &["kubeconfig"]),
        without(&site.network(&json!({"sticky": "off"})), &["kubeconfig"]),
    ] {
        for verb in ["ADD", "STATUS"] {
            let mut network = network.clone();
            network["cniVersion"] = json!("1.1.0");
            let answer = site.run(site.command(verb, ""), &network).success();
            assert_eq!(answer["pools"], before["prevResult"]["pools"], "{verb}");
        }
    }
    // No other verb needs the section, or a server.
    for section in [all(), json!(5), json!({"stiky": true})] {
        for verb in ["DEL", "CHECK", "GC"] {
            let mut network = without(&site.network(&section), &["kubeconfig"]);
            network["cni.dev/valid-attachments"] = json!([]);
            network["cniVersion"] = json!("1.1.0");
            let answer = site.run(site.command(verb, ""), &network).success();
            assert_eq!(answer["pools"], before["prevResult"]["pools"], "{verb}");
        }
    }
    assert_eq!(site.requests(), [""; 0]);
}
