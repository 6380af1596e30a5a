//! What the documents of node-annotation show, as they show it: the commands for people, and the networks.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ipam_testkit::kube::{self, Kubeconfig, Node};
use ipam_testkit::world::{Outcome, start_raw, wait};
use serde_json::{Value, json};

use crate::common::{ANNOTATION, PROGRAM, Site};

/// The commands of `node-annotation -h`.
const COMMANDS: &str = "
   ipam
     Act as an ipam CNI-plugin. This is the default command
   error_quit [msg]
     Print an error in standard CNI json format and quit
   my_node
     Print the own node object
   get_annotation [--node=node] <annotation>
     Print the value of the annotation in the K8s node object
";

const FLAT: &str = r#""ranges": [
  { "subnet": "4000::16.0.0.0/120" },
  { "subnet": "16.0.0.0/24" }
]"#;

const NESTED: &str = r#""ranges": [
  [{ "subnet": "4000::16.0.0.0/120" }],
  [{ "subnet": "16.0.0.0/24" }]
]"#;

const TEST_CFG: &str = r#"{
    "name": "mynet",
    "type": "ipvlan",
    "master": "eth0",
    "ipam": {
        "type": "node-annotation",
        "annotation": "example.com/ipvlan-ranges"
    }
}
"#;

/// `kubectl annotate node NODE NAME=TEXT`, as an operator types it.
#[track_caller]
fn annotate(site: &Site, assignment: &str) {
    let admin = Kubeconfig::of(site.kube, &site.kube.admin()).write(&site.world.path("admin"));
    let mut command: Command = ipam_testkit::servers::process::plain(kube::kubectl());
    command.env("HOME", "/nonexistent").env("KUBECONFIG", admin);
    command.args(["annotate", "--overwrite", "node", &site.node, assignment]);
    let output: Output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Both names by which the commands are typed.
fn programs(site: &Site) -> [std::path::PathBuf; 2] {
    [site.preset(), PROGRAM.into()]
}

/// The name of this machine, by which its node is called where nothing says another.
fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_lowercase()
}

#[track_caller]
fn printed(outcome: Outcome) -> String {
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    outcome.stdout
}

#[test]
fn help_tells_every_command() {
    let site = Site::bare();
    for program in programs(&site) {
        let help = printed(site.typed(&program, &["-h"], ""));
        let lines = |text: &str| -> Vec<String> {
            text.lines()
                .map(|line| line.trim().to_owned())
                .filter(|line| !line.is_empty())
                .collect()
        };
        let shown = lines(&help);
        for line in lines(COMMANDS) {
            assert!(shown.contains(&line), "{line:?} is not in {help}");
        }
        assert!(help.starts_with("\n node-annotation --\n\nCommands:\n"), "{help}");
    }
    assert_eq!(site.asked(), 0);
}

#[test]
fn an_annotation_is_printed_as_kubectl_wrote_it() {
    let site = Site::new("x");
    for text in [FLAT, NESTED, r#"ranges: [[{"subnet": "172.16.5.0/24"}]]"#] {
        annotate(&site, &format!("{ANNOTATION}={text}"));
        for program in programs(&site) {
            let words = ["get_annotation", ANNOTATION];
            assert_eq!(printed(site.typed(&program, &words, "")), format!("{text}\n"));
        }
    }
    for program in programs(&site) {
        let (code, error) =
            site.typed(&program, &["get_annotation", "example.com/none"], "").failure();
        let said = format!("annotation example.com/none of node {}: missing", site.node);
        assert!(code == 7 && error.contains(&said), "{error}");
    }
}

#[test]
fn the_annotation_of_another_node_is_printed() {
    let site = Site::new("own");
    let other = format!("{}-other", site.node);
    site.kube.create_node(&Node::named(&other).annotation(ANNOTATION, "other"));
    let option = format!("--node={other}");
    let words = ["get_annotation", &option, ANNOTATION];
    let refused = site.typed(&site.preset(), &words, "").failure();
    assert!(refused.0 == 103 && refused.1.contains(&site.login.user), "{refused:?}");
    let _grant = site.kube.allow_reading_nodes(&site.login, &[&other]);
    for program in programs(&site) {
        assert_eq!(printed(site.typed(&program, &words, "")), "other\n");
    }
    let absent = site.typed(&site.preset(), &["get_annotation", "--node=nobody", ANNOTATION], "");
    assert!(absent.stdout.contains("nobody"), "{absent:?}");
    assert_eq!(absent.failure().0, 103);
}

#[test]
fn the_own_node_is_printed() {
    let site = Site::new("text");
    for program in programs(&site) {
        let object: Value =
            serde_json::from_str(&printed(site.typed(&program, &["my_node"], ""))).unwrap();
        assert_eq!(object, site.kube.node(&site.node).unwrap());
    }
}

#[test]
fn an_error_is_printed_in_the_form_of_cni() {
    let site = Site::bare();
    for program in programs(&site) {
        for (words, said) in [
            (&["error_quit", "no way"][..], "FAILED: no way"),
            (&["error_quit", "no", "way"], "FAILED: no way"),
        ] {
            let outcome = site.typed(&program, words, "");
            assert_eq!(outcome.exit, Some(1));
            let error = outcome.json();
            assert_eq!((&error["code"], &error["msg"]), (&json!(11), &json!(said)));
            assert!(error["cniVersion"].is_string());
        }
        let (code, error) = site.typed(&program, &["error_quit"], "").failure();
        assert!(code == 11 && error.starts_with("FAILED: "), "{error}");
        let unknown = site.typed(&program, &["frob"], "");
        assert_eq!((unknown.exit, unknown.stdout.as_str()), (Some(1), ""));
        assert!(unknown.stderr.contains("unknown command \"frob\""), "{unknown:?}");
    }
    assert_eq!(site.asked(), 0);
}

/// `cat test.cfg | node-annotation` in a folder with this `nacfg`, by `$KUBECONFIG`.
fn entire(site: &Site, program: &Path, words: &[&str], stdin: &str) -> Outcome {
    let folder = site.world.path("");
    // A namespace is entered at its root.
    let mut command = site.typing(Path::new("sh"), &["-c", "cd $0 && exec \"$@\""]);
    command.arg(folder).arg(program).args(words);
    command.env("KUBECONFIG", site.world.path("kubeconfig"));
    command.env("NODE_ANNOTATION_CFG", "./nacfg").env("NODE_NAME", &site.node);
    wait(start_raw(command, stdin.as_bytes()))
}

#[test]
fn the_entire_function_is_tested_by_cat() {
    let site = Site::new("x");
    fs::remove_file(site.host.path(crate::common::CONF)).unwrap();
    fs::write(site.world.path("nacfg"), "{\n  \"nextipam\": \"cat\"\n}\n").unwrap();
    for (text, ranges) in [
        (FLAT, json!([{"subnet": "4000::16.0.0.0/120"}, {"subnet": "16.0.0.0/24"}])),
        (NESTED, json!([[{"subnet": "4000::16.0.0.0/120"}], [{"subnet": "16.0.0.0/24"}]])),
    ] {
        annotate(&site, &format!("{ANNOTATION}={text}"));
        let expected = json!({
            "name": "mynet", "type": "ipvlan", "master": "eth0",
            "ipam": {"type": "cat", "ranges": ranges},
        });
        for program in programs(&site) {
            for words in [&[][..], &["ipam"]] {
                let out = printed(entire(&site, &program, words, TEST_CFG));
                assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), expected);
            }
        }
    }
    for program in programs(&site) {
        let (code, error) = entire(&site, &program, &[], "").failure();
        assert!(
            code == 6 && error.contains("the network configuration on stdin is empty"),
            "{error}"
        );
    }
}

#[test]
fn a_network_that_says_all_of_it_needs_no_file() {
    let site = Site::new(r#"ranges: [[{"subnet": "172.16.5.0/24"}]]"#);
    fs::remove_file(site.host.path(crate::common::CONF)).unwrap();
    let mut network = site.network();
    network["ipam"]["kubeconfig"] = json!(site.world.path("kubeconfig"));
    network["ipam"]["nodeName"] = json!(site.node);
    let out = printed(site.typed(Path::new(PROGRAM), &["ipam"], &network.to_string()));
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out["ipam"]["ranges"], json!([[{"subnet": "172.16.5.0/24"}]]));
}

/// The example of the first page: a node that is found by this machine's name, no `cniVersion`, nothing in
/// the configuration but what it shows.
#[test]
fn the_network_of_the_figure_is_given_its_addresses() {
    let site = Site::bare();
    let name = host_name();
    let text = r#"ranges: [[{"subnet": "172.16.5.0/24"}]]"#;
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let node = Node::named(&name).machine_id(id.trim()).annotation(ANNOTATION, text);
    site.kube.replace_node(&node);
    let _grant = site.kube.allow_reading_nodes(&site.login, &[&name]);
    site.write_conf(&json!({"kubeconfig": site.world.path("kubeconfig")}).to_string());
    let network: Value = serde_json::from_str(TEST_CFG).unwrap();
    let result = site.call_with("ADD", "c1", &network).success();
    assert_eq!(result["ip4"]["ip"], "172.16.5.2/24");
    assert_eq!(site.leases("mynet"), ["172.16.5.2"]);
    site.call_with("DEL", "c1", &network).success();
    assert_eq!(site.leases("mynet"), [""; 0]);
    assert_eq!(site.requests(), [format!("get /api/v1/nodes/{name} 200")]);
}

/// The file, the annotation and the network of the section about kind. Multus gives the network the name of
/// its attachment definition.
#[test]
fn the_network_of_the_kind_section_is_given_its_addresses() {
    let site = Site::new("x");
    let folder = site.host.path("/etc/cni/kubernetes");
    fs::create_dir(&folder).unwrap();
    let inside = "/etc/cni/kubernetes/kubeconfig";
    fs::copy(site.world.path("kubeconfig"), folder.join("kubeconfig")).unwrap();
    site.write_conf(&format!("{{ \"kubeconfig\": \"{inside}\" }}\n"));
    annotate(
        &site,
        r#"example.com/bridge="ranges": [
  [{ "subnet":"4000::16.0.0.0/120", "rangeStart":"4000::16.0.0.0" , "rangeEnd":"4000::16.0.0.7"}],
  [{ "subnet":"16.0.0.0/24", "rangeStart":"16.0.0.0" , "rangeEnd":"16.0.0.7"}]
]"#,
    );
    let network = json!({
        "name": "meridio-bridge",
        "cniVersion": "0.4.0",
        "type": "bridge",
        "bridge": "cbr2",
        "isGateway": true,
        "ipam": {"type": "node-annotation", "annotation": "example.com/bridge"},
    });
    let call = |verb: &str, container: &str| {
        let mut command = site.command(verb, container);
        command.env("NODE_NAME", &site.node);
        wait(ipam_testkit::world::start(command, &network))
    };
    let result = call("ADD", "c0").success();
    let expected = json!({
        "cniVersion": "0.4.0",
        "ips": [
            {"version": "6", "address": "4000::1000:0/120", "gateway": "4000::1000:1"},
            {"version": "4", "address": "16.0.0.0/24", "gateway": "16.0.0.1"},
        ],
        "dns": {},
    });
    assert_eq!(result, expected);
    // Of eight addresses one is the gateway's.
    for number in 1..7 {
        call("ADD", &format!("c{number}")).success();
    }
    let (code, error) = call("ADD", "c7").failure();
    assert_eq!(code, 100, "{error}");
    assert_eq!(site.leases("meridio-bridge").len(), 14);
    for number in 0..8 {
        call("DEL", &format!("c{number}")).success();
    }
    assert_eq!(site.leases("meridio-bridge"), [""; 0]);
}

#[test]
fn version_needs_no_annotation() {
    let site = Site::bare();
    let outcome = site.call_with("VERSION", "", &json!({"cniVersion": "1.0.0", "ipam": {}}));
    let versions = outcome.success()["supportedVersions"].clone();
    assert!(versions.as_array().unwrap().contains(&json!("0.4.0")), "{versions}");
    assert_eq!(site.asked(), 0);
}
