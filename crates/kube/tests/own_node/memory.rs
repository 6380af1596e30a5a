//! What a network remembers of its node, and for how long.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use ipam_testkit::kube::Node;
use ipam_testkit::world::with;
use serde_json::{Value, json};

use crate::site::{Kube, Site, by, subnets, without_override};

const ANNOTATION: &str = "kube-node.nordix.org/net1";

const MINUTE: Duration = Duration::from_secs(60);

/// A node with two subnets, one of them in its annotation.
pub(crate) fn site(node: &str) -> Site {
    let node = Node::named(node).cidrs(&["11.0.1.0/24"]).annotation(ANNOTATION, "172.20.2.0/24");
    Site::of(Kube::shared(), &node)
}

/// The subnets of the network, with what is warned of.
#[track_caller]
pub(crate) fn asked(site: &Site, network: &Value) -> (Vec<String>, String) {
    let outcome = site.select(network);
    let warning = outcome.stderr.clone();
    (subnets(&outcome.success()), warning)
}

#[test]
fn an_answer_is_believed_for_a_minute() {
    let site = site("believed");
    let network = site.network();
    let ask = || site.requests_during(|| asked(&site, &network)).0;
    assert_eq!(ask(), 1);
    assert_eq!(site.requests(), ["get /api/v1/nodes/believed 200"]);
    assert_eq!([ask(), ask()], [0, 0]);
    site.age("k8snet", MINUTE - Duration::from_secs(20));
    assert_eq!(ask(), 0);
    site.age("k8snet", Duration::from_secs(21));
    assert_eq!([ask(), ask()], [1, 0]);
    // What was read in the future is not believed.
    site.postdate("k8snet");
    assert_eq!([ask(), ask()], [1, 0]);
}

#[test]
fn for_how_long_is_what_cache_ttl_says() {
    let site = site("ttl");
    let ask = |ttl: &str| {
        let network = with(&site.network(), "cacheTtl", ttl);
        site.requests_during(|| asked(&site, &network)).0
    };
    assert_eq!([ask("0s"), ask("0s"), ask("0")], [1, 1, 1]);
    site.age("k8snet", 4 * MINUTE);
    assert_eq!([ask("5m"), ask(""), ask("500ms")], [0, 1, 0]);
    site.age("k8snet", Duration::from_millis(501));
    assert_eq!([ask("60s"), ask("500ms")], [0, 1]);
    let (code, text) = site.select(&with(&site.network(), "cacheTtl", "soon")).failure();
    assert!(code == 7 && text.contains("ipam.cacheTtl") && text.contains("soon"), "{code}: {text}");
}

#[test]
fn networks_share_nothing_though_they_share_a_folder() {
    let site = site("two-networks");
    let one = site.network();
    let mut other = with(&one, "annotation", ANNOTATION);
    other["name"] = "net1".into();
    for _ in 0..2 {
        assert_eq!(asked(&site, &one).0, ["11.0.1.0/24"]);
        assert_eq!(asked(&site, &other).0, ["172.20.2.0/24"]);
    }
    assert_eq!(site.requests().len(), 2);
    // The same question of another network is asked again.
    let mut third = one.clone();
    third["name"] = "third".into();
    assert_eq!(site.requests_during(|| asked(&site, &third)).0, 1);
    site.calls_nobody();
    let mut fourth = one;
    fourth["name"] = "fourth".into();
    let (code, text) = site.select_briefly(&fourth).failure();
    assert_eq!(code, 105, "{text}");
}

#[test]
fn a_long_note_of_a_network_is_made_short_without_touching_that_of_another() {
    let site = site("two-names");
    let named = |name: &str| {
        let mut network = site.network();
        network["name"] = name.into();
        network
    };
    let (one, new) = (named("x.1"), named("x.new"));
    asked(&site, &one);
    asked(&site, &new);
    // What has grown beyond 64 KiB is written anew.
    let note = site.memory("x.1");
    site.age_out("x.1");
    let text = fs::read_to_string(&note).unwrap();
    fs::write(&note, ["\n".repeat(70_000), text].concat()).unwrap();
    assert_eq!(site.requests_during(|| asked(&site, &one)).0, 1);
    assert!(fs::metadata(&note).unwrap().len() < 1000);
    assert_eq!(site.requests_during(|| asked(&site, &new)).0, 0);
    site.calls_nobody();
    assert_eq!(asked(&site, &new).0, ["11.0.1.0/24"]);
}

#[test]
fn what_the_node_says_now_is_read_after_the_minute() {
    let site = site("changing");
    let annotated = with(&site.network(), "annotation", ANNOTATION);
    assert_eq!(asked(&site, &annotated).0, ["172.20.2.0/24"]);
    site.kube.annotate_node("changing", ANNOTATION, Some("172.20.3.0/24,fd00::/96"));
    assert_eq!(asked(&site, &annotated).0, ["172.20.2.0/24"]);
    site.age_out("k8snet");
    assert_eq!(asked(&site, &annotated).0, ["172.20.3.0/24", "fd00::/96"]);
    // A change for the worse is no reason to go on with what was.
    site.kube.annotate_node("changing", ANNOTATION, Some("blah"));
    site.age_out("k8snet");
    for _ in 0..2 {
        let (code, text) = site.select(&annotated).failure();
        assert!(code == 7 && text.contains("invalid CIDR \"blah\""), "{code}: {text}");
    }
    knows_nothing(&site, &annotated);
    let mut by_cidrs = site.network();
    by_cidrs["name"] = "by-cidrs".into();
    assert_eq!(asked(&site, &by_cidrs).0, ["11.0.1.0/24"]);
    site.kube.replace_node(&Node::named("changing").cidrs(&["11.0.9.0/24"]));
    site.age_out("by-cidrs");
    assert_eq!(asked(&site, &by_cidrs).0, ["11.0.9.0/24"]);
    // Nor is a node that has gone.
    site.kube.delete_node("changing");
    site.age_out("by-cidrs");
    let (code, text) = site.select(&by_cidrs).failure();
    assert!(code == 103 && text.contains("node changing not found"), "{code}: {text}");
    knows_nothing(&site, &by_cidrs);
}

/// While the server is away, nothing older serves, be it ours or kube-node's.
#[track_caller]
fn knows_nothing(site: &Site, network: &Value) {
    site.calls_nobody();
    let (code, text) = site.select_briefly(network).failure();
    assert_eq!(code, 105, "{text}");
    site.calls_home();
}

/// Networks that ask something else than `site.network()`.
fn edited(site: &Site) -> [Value; 3] {
    let network = site.network();
    let other_file = site.world.path("other-kubeconfig");
    fs::copy(site.kubeconfig_path(), &other_file).unwrap();
    [
        with(&network, "annotation", ANNOTATION),
        with(&network, "nodeName", "edited-other"),
        with(&network, "kubeconfig", json!(other_file)),
    ]
}

#[test]
fn an_edited_configuration_is_asked_anew() {
    let site = site("edited");
    site.kube.create_node(&Node::named("edited-other").cidrs(&["11.0.7.0/24"]));
    let _grant = site.kube.allow_reading_nodes(&site.login, &["edited-other"]);
    let subnets = ["172.20.2.0/24", "11.0.7.0/24", "11.0.1.0/24"];
    for (network, expected) in edited(&site).iter().zip(subnets) {
        assert_eq!(asked(&site, &site.network()).0, ["11.0.1.0/24"]);
        let (count, (found, _)) = site.requests_during(|| asked(&site, network));
        assert_eq!((count, found), (1, vec![expected.to_owned()]));
    }
}

#[test]
fn an_edited_configuration_gets_nothing_of_the_one_before_while_the_server_is_away() {
    let site = site("edited-away");
    assert_eq!(asked(&site, &site.network()).0, ["11.0.1.0/24"]);
    site.calls_nobody();
    let fails = |network: &Value| {
        let (code, text) = site.select_briefly(network).failure();
        assert_eq!(code, 105, "{text}");
    };
    let networks = edited(&site);
    std::thread::scope(|scope| {
        for network in &networks {
            scope.spawn(move || fails(network));
        }
    });
    // The one before is still known.
    assert_eq!(asked(&site, &site.network()).0, ["11.0.1.0/24"]);
}

#[test]
fn an_older_answer_is_of_one_cluster_alone() {
    let site = site("cluster");
    assert_eq!(asked(&site, &site.network()).0, ["11.0.1.0/24"]);
    site.age_out("k8snet");
    let other = Kube::shared().certificates().other_authority();
    let nobody = site.kubeconfig().server("https://127.0.0.1:1");
    nobody.authority(Some(&other)).write(&site.kubeconfig_path());
    let (code, text) = site.select_briefly(&site.network()).failure();
    assert_eq!(code, 105, "{text}");
    site.calls_nobody();
    assert_eq!(asked(&site, &site.network()).0, ["11.0.1.0/24"]);
}

#[test]
fn a_memory_that_cannot_be_used_is_done_without() {
    let site = site("no-memory");
    let network = site.network();
    let folder = site.world.path("state/kubernetes");
    let memory = site.memory("k8snet");
    let asks = |expected: usize, what: &str| {
        let (count, (found, _)) = site.requests_during(|| asked(&site, &network));
        assert_eq!((count, found), (expected, vec!["11.0.1.0/24".to_owned()]), "{what}");
    };
    asks(1, "new");
    for (what, text) in [
        ("empty", ""),
        ("garbage", "\0\u{ff}{{{\n\n"),
        ("another kind", "[1, 2]\n"),
        ("no subnets", "{\"question\": \"q\", \"value\": 7}\n"),
    ] {
        fs::write(&memory, text).unwrap();
        asks(1, what);
        asks(0, what);
    }
    // The whole line before a torn one counts.
    let whole = fs::read_to_string(&memory).unwrap();
    fs::write(&memory, format!("{whole}{{\"question\": \"spec.pod")).unwrap();
    asks(0, "torn");
    // A note of this question, but about something that is no list of subnets.
    let mut noted = site.remembered("k8snet");
    noted["value"] = json!({"a": 1});
    fs::write(&memory, format!("{noted}\n")).unwrap();
    asks(1, "another value");

    fs::remove_file(&memory).unwrap();
    fs::create_dir(&memory).unwrap();
    asks(1, "a folder in its place");
    asks(1, "a folder in its place");
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    asks(1, "a file in the folder's place");
    asks(1, "a file in the folder's place");
}

#[test]
fn a_state_folder_that_is_full_or_read_only_hinders_no_selector() {
    let site = site("full");
    let network = site.network();
    let state = site.world.path("state").display().to_string();
    for options in ["size=4k,nr_inodes=2", "ro"] {
        let call = site.selecting();
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c"]);
        unshare.arg("mount -t tmpfs -o \"$1\" tmpfs \"$2\" || exit 99; shift 2; exec \"$@\"");
        unshare.args(["sh", options, &state]);
        let command = by(unshare, &call);
        let (count, outcome) = site.requests_during(|| site.run(command, &network));
        assert_eq!((count, subnets(&outcome.success())), (1, vec!["11.0.1.0/24".to_owned()]));
    }
}

#[test]
fn a_memory_that_may_not_be_read_is_done_without() {
    let site = site("unreadable-memory");
    asked(&site, &site.network());
    fs::set_permissions(site.memory("k8snet"), PermissionsExt::from_mode(0o000)).unwrap();
    let command = by(without_override(), &site.selecting());
    let (count, outcome) = site.requests_during(|| site.run(command, &site.network()));
    assert_eq!((count, subnets(&outcome.success())), (1, vec!["11.0.1.0/24".to_owned()]));
}

#[test]
fn many_questions_at_once_on_a_cold_cache_are_answered() {
    const QUESTIONS: usize = 20;
    let site = site("crowd");
    let network = site.network();
    std::thread::scope(|scope| {
        for _ in 0..QUESTIONS {
            scope.spawn(|| assert_eq!(asked(&site, &network).0, ["11.0.1.0/24"]));
        }
    });
    let requests = site.requests();
    assert!((1..=QUESTIONS).contains(&requests.len()), "{requests:?}");
    assert!(requests.iter().all(|request| request == "get /api/v1/nodes/crowd 200"));
    assert_eq!(site.requests_during(|| asked(&site, &network)).0, 0);
}

#[test]
fn the_memory_is_for_this_machine_alone_and_shows_no_secret() {
    let site = site("mode");
    asked(&site, &site.network());
    let memory = site.memory("k8snet");
    assert_eq!(fs::metadata(&memory).unwrap().permissions().mode() & 0o777, 0o600);
    site.tells_no_secret(&fs::read_to_string(memory).unwrap());
}
