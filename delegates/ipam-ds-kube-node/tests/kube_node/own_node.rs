//! The own node as this selector asks for it: its name is found, its answers are remembered for the
//! whole chain, and a server that refuses is obeyed. crates/kube tests the rest.

use ipam_testkit::kube::{Kube, Kubeconfig, Node};
use ipam_testkit::machine::Machine;
use ipam_testkit::world::{with, without};
use serde_json::{Value, json};

use crate::common::Site;

const ANNOTATION: &str = "kube-node.nordix.org/net1";

/// A node with two subnets, one of them in its annotation.
fn site(node: &str) -> Site {
    let node = Node::named(node).cidrs(&["11.0.1.0/24"]).annotation(ANNOTATION, "172.20.2.0/24");
    Site::of(Kube::shared(), &node)
}

#[test]
fn a_chain_asks_once() {
    let site = site("chain-asks");
    let mut network = site.network();
    network["cniVersion"] = "1.1.0".into();
    let count = |verb: &str, container: &str| {
        let (count, outcome) = site.requests_during(|| site.call(verb, container, &network));
        outcome.success();
        count
    };
    assert_eq!(count("ADD", "c1"), 1);
    assert_eq!([count("ADD", "c2"), count("ADD", "c1")], [0, 0]);
    assert_eq!([count("STATUS", ""), count("DEL", "c1"), count("DEL", "c2")], [0, 0, 0]);
    assert_eq!(count("DEL", "never-there"), 0);
    site.age_out("k8snet");
    assert_eq!([count("STATUS", ""), count("STATUS", "")], [1, 0]);
}

#[test]
fn explain_tells_what_is_only_remembered() {
    let site = site("explains-memory");
    let network = site.chain(json!(["ipam-ds-kube-node", "ipam-da-local"]));
    site.world.conflist("10-net.conflist", &network);
    let explained = || site.world.typed(&["explain", "k8snet"]).stdout;
    let now = explained();
    assert!(now.contains("pools = [") && !now.contains("remembered"), "{now}");
    let later = explained();
    let start = format!("    remembered = \"spec.podCIDRs of node {}, ", site.node);
    let line = later.lines().find(|line| line.starts_with(&start));
    assert!(line.is_some_and(|line| line.ends_with("s ago\"")), "{later}");
    assert_eq!(site.requests().len(), 1);
}

#[test]
fn networks_share_nothing_though_they_share_a_folder() {
    let site = site("two-networks");
    let one = site.network();
    let mut other = with(&one, "annotation", ANNOTATION);
    other["name"] = "net1".into();
    for _ in 0..2 {
        assert_eq!(site.call("ADD", "c1", &one).ips(), ["11.0.1.2/24"]);
        assert_eq!(site.call("ADD", "c1", &other).ips(), ["172.20.2.2/24"]);
    }
    assert_eq!(site.requests().len(), 2);
    // The same question of another network is asked again.
    let mut third = one.clone();
    third["name"] = "third".into();
    assert_eq!(site.requests_during(|| site.select(&third).success()).0, 1);
    // The file that kube-node would have shared among them is nobody's.
    site.calls_nobody();
    let mut fourth = one;
    fourth["name"] = "fourth".into();
    let (code, text) = site.select_briefly(&fourth).failure();
    assert_eq!(code, 105, "{text}");
}

#[test]
fn the_preset_finds_its_node_and_releases_by_the_record() {
    let site = Site::without_object(Kube::shared(), "nobody");
    let rule = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]);
    site.kube.allow(&site.login, &rule);
    let node = Node::named("whole-chain").cidrs(&["10.14.1.0/24"]).machine_id("1d-whole");
    site.kube.create_node(&node);
    let network = with(&without(&site.network(), &["nodeName"]), "cacheTtl", "0s");
    let call =
        |verb: &str, machine: &Machine| site.run(machine.run(&site.command(verb, "c1")), &network);
    assert_eq!(call("ADD", &Machine::named("elsewhere").id("1d-whole")).ips(), ["10.14.1.2/24"]);
    let (count, _) = site.requests_during(|| {
        // The host has got another name and lost its id.
        call("DEL", &Machine::named("renamed")).success();
    });
    assert!(site.held("k8snet").is_empty());
    assert_eq!(count, 0);
}

#[test]
fn an_older_answer_serves_a_chain_while_the_server_is_away_but_not_when_it_refuses() {
    let site = site("older");
    let network = site.network();
    assert_eq!(site.call("ADD", "c1", &network).ips(), ["11.0.1.2/24"]);
    site.calls_nobody();
    site.age_out("k8snet");
    let outcome = site.call("ADD", "c2", &network);
    assert!(
        outcome
            .stderr
            .contains("spec.podCIDRs: the API server does not answer, using the value read 36"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.ips(), ["11.0.1.3/24"]);
    let other_user = site.kube.user();
    Kubeconfig::of(site.kube, &other_user).write(&site.kubeconfig_path());
    site.age_out("k8snet");
    let (code, text) = site.call("ADD", "c3", &network).failure();
    assert_eq!(code, 103, "{text}");
    for part in ["ipam-ds-kube-node", "(403)", &other_user.user, r#""resourceNames": ["older"]"#] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    assert_eq!(site.held("k8snet").len(), 2);
}

#[test]
fn nothing_older_serves_once_the_node_or_the_question_is_another() {
    let site = site("another");
    let network = site.network();
    let annotated = with(&network, "annotation", ANNOTATION);
    let edited = [annotated.clone(), with(&network, "nodeName", "another-node")];
    site.select(&network).success();
    assert!(site.world.path("data/kube-node.json").exists());
    knows_nothing(&site, &edited);
    site.select(&annotated).success();
    site.kube.annotate_node("another", ANNOTATION, Some("blah"));
    site.age_out("k8snet");
    let (code, text) = site.select(&annotated).failure();
    assert!(code == 7 && text.contains("invalid CIDR \"blah\""), "{code}: {text}");
    knows_nothing(&site, &edited[..1]);
}

/// While the server is away, nothing older serves, be it ours or kube-node's.
#[track_caller]
fn knows_nothing(site: &Site, networks: &[Value]) {
    site.calls_nobody();
    std::thread::scope(|scope| {
        for network in networks {
            scope.spawn(move || {
                let (code, text) = site.select_briefly(network).failure();
                assert_eq!(code, 105, "{text}");
            });
        }
    });
    site.calls_home();
}

#[test]
fn a_network_is_ready_by_what_it_remembers() {
    let site = site("ready");
    let mut network = site.network();
    network["cniVersion"] = "1.1.0".into();
    site.calls_nobody();
    let (code, text) = site.call_briefly("STATUS", "", &network).failure();
    assert!(code == 50 && text.contains("ipam-ds-kube-node"), "{code}: {text}");
    site.calls_home();
    site.call("STATUS", "", &network).success();
    site.calls_nobody();
    site.age_out("k8snet");
    site.call("STATUS", "", &network).success();
}
