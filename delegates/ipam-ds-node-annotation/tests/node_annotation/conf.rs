//! The host's own file: where it lies, whom it leads to, and who may have written it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ipam_testkit::kube::{Kubeconfig, Node};
use ipam_testkit::world::{Outcome, start, wait, with};
use serde_json::{Value, json};

use crate::common::{ANNOTATION, CONF, PRESET, PROGRAM, SELECTOR, Site};

const SETTINGS: &str = r#"ranges: [[{subnet: "10.9.0.0/24"}]]"#;

/// An ADD of the preset with a file of another place.
fn call_with_file(site: &Site, file: &Path, container: &str) -> Outcome {
    let mut command = site.command("ADD", container);
    command.env("NODE_ANNOTATION_CFG", file);
    wait(start(command, &site.network()))
}

/// Another file, with what leads to the node.
fn other_file(site: &Site) -> PathBuf {
    let file = site.world.path("conf");
    fs::copy(site.host.path(CONF), &file).unwrap();
    file
}

#[test]
fn the_file_lies_in_etc_or_where_the_variable_says() {
    let site = Site::new(SETTINGS);
    let file = other_file(&site);
    assert_eq!(site.call("ADD", "c1").ips(), ["10.9.0.2/24"]);
    // An empty variable names nothing.
    assert_eq!(call_with_file(&site, Path::new(""), "c4").ips(), ["10.9.0.3/24"]);
    // What the variable names counts alone.
    site.write_conf("garbage");
    assert_eq!(call_with_file(&site, &file, "c2").ips(), ["10.9.0.4/24"]);
    assert_eq!(site.call("ADD", "c3").failure().0, 7);
    let absent = site.world.path("absent");
    fs::copy(&file, site.host.path(CONF)).unwrap();
    let (code, error) = call_with_file(&site, &absent, "c3").failure();
    assert!(code == 7 && error.contains("kubeconfig"), "{error}");
    assert_eq!(site.asked(), 3);
}

#[test]
fn a_call_adds_a_line_to_the_log_and_so_does_its_error() {
    let site = Site::new(SETTINGS);
    let log = site.world.path("$(touch x); log");
    site.conf(&json!({"log": log}));
    site.call("ADD", "c1").success();
    let (_, error) = site.annotate("garbage").call("ADD", "c2").failure();
    let (_, missing) =
        site.call_with("ADD", "c3", &with(&site.network(), "annotation", "")).failure();
    site.annotate(SETTINGS);
    let network = site.network().to_string();
    let typed = site.typed(Path::new(PROGRAM), &["ipam"], &network);
    assert_eq!(typed.exit, Some(0), "{typed:?}");
    // By the record: it is not read again.
    site.call("CHECK", "c1");
    site.call("DEL", "c1").success();
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let read = format!("Ipam from annotation: [{ANNOTATION}]");
    assert_eq!((lines.len(), lines[0], lines[3]), (4, read.as_str(), read.as_str()), "{text}");
    for (line, error) in [(lines[1], error), (lines[2], missing)] {
        let said = line.strip_prefix("ERROR: ").unwrap();
        let first = said.split(": ").next().unwrap();
        assert!(error.contains(first), "{line} is not of {error}");
    }
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o640);
    let secret = site.login.token().unwrap();
    assert!(!text.contains(secret));
}

#[test]
fn a_log_that_cannot_be_written_fails_no_call() {
    let site = Site::new(SETTINGS);
    // A pipe that nobody reads.
    let pipe = site.world.path("pipe").display().to_string();
    site.host.shell(&format!("mkfifo {pipe}"));
    for (number, log) in ["/nowhere/log", "/", "", "/dev/full", &pipe].iter().enumerate() {
        site.conf(&json!({"log": log}));
        site.call("ADD", &format!("c{number}")).success();
    }
}

#[test]
fn unknown_keys_are_nobodys() {
    let site = Site::new(SETTINGS);
    let here = site.world.path("here");
    site.conf(&json!({"x": 1, "no-dash": {"y": []}, (format!("z; touch {}", here.display())): "$(touch here)"}));
    site.call("ADD", "c1").success();
    assert!(!here.exists());
}

#[test]
fn an_untrusted_or_invalid_file_is_refused_and_nothing_runs() {
    let site = Site::new(SETTINGS);
    let next = site.elsewhere("lucky", "touch lucky");
    site.conf(&json!({"nextipam": next}));
    let file = other_file(&site);
    let good = fs::read_to_string(&file).unwrap();
    let refused = |code: u64, said: &str| {
        let stopped = |outcome: Outcome, by: &str| {
            let (found, error) = outcome.failure();
            assert!(found == code && error.contains(said), "{by}: {found} {error}, not {said}");
        };
        stopped(call_with_file(&site, &file, "c1"), PRESET);
        let network = site.network();
        for (program, words) in [
            (site.preset(), &[][..]),
            (site.preset(), &["my_node"]),
            (PathBuf::from(PROGRAM), &["get_annotation", ANNOTATION]),
            (PathBuf::from(PROGRAM), &["ipam"]),
        ] {
            let mut command = site.typing(&program, words);
            command.env("NODE_ANNOTATION_CFG", &file);
            stopped(wait(start(command, &network)), "typed");
        }
        // The delegate alone, in a chain that names it.
        let mut command = site.command_of(Path::new(PROGRAM), "ADD", "c1");
        command.env("NODE_ANNOTATION_CFG", &file);
        stopped(wait(start(command, &network)), SELECTOR);
    };
    let place = file.display().to_string();
    for (text, said) in [
        ("", "is empty"),
        ("[]", "is JSON but not an object"),
        ("null", "is JSON but not an object"),
        ("kubeconfig=/k", "is not one JSON object"),
        ("{} {}", "is not one JSON object"),
        ("\u{feff}{}", "is not one JSON object"),
    ] {
        fs::write(&file, text).unwrap();
        refused(7, &format!("{place} {said}"));
    }
    fs::write(&file, &good).unwrap();
    for mode in [0o666, 0o664, 0o646] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        refused(7, &format!("chmod go-w {place}"));
    }
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    chown(&file, Some(65534), None).unwrap();
    refused(7, &format!("chown root {place}"));
    chown(&file, Some(0), None).unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(5, &format!("cannot read {place}"));
    fs::remove_dir(&file).unwrap();
    // A folder in which others may put another file.
    fs::create_dir(site.world.path("open")).unwrap();
    let inside = site.world.path("open/conf");
    fs::write(&inside, &good).unwrap();
    fs::set_permissions(site.world.path("open"), Permissions::from_mode(0o777)).unwrap();
    let (code, error) = call_with_file(&site, &inside, "c1").failure();
    assert!(code == 7 && error.contains("is writable by users other"), "{error}");
    // Between root's link and root's file, a link that somebody else may turn elsewhere.
    fs::create_dir(site.world.path("mine")).unwrap();
    let (outer, inner) = (site.world.path("outer"), site.world.path("mine/link"));
    std::os::unix::fs::symlink(&inner, &outer).unwrap();
    std::os::unix::fs::symlink(&file, &inner).unwrap();
    fs::write(&file, &good).unwrap();
    std::os::unix::fs::lchown(&inner, Some(65534), None).unwrap();
    let (code, error) = call_with_file(&site, &outer, "c1").failure();
    assert!(code == 7 && error.contains(&format!("chown -h root {}", inner.display())), "{error}");
    chown(site.world.path("mine"), Some(65534), None).unwrap();
    std::os::unix::fs::lchown(&inner, Some(0), None).unwrap();
    let (code, error) = call_with_file(&site, &outer, "c1").failure();
    assert!(code == 7 && error.contains("mine belongs to another user than root"), "{error}");
    assert_eq!(site.world.calls(), [Value::Null; 0]);
    assert_eq!((site.asked(), site.world.lines("c1").len()), (0, 0));
    fs::write(&file, &good).unwrap();
    // In a sticky folder nobody else can.
    fs::set_permissions(site.world.path("open"), Permissions::from_mode(0o1777)).unwrap();
    for file in [&file, &inside] {
        call_with_file(&site, file, "c1").failure();
        assert_eq!(site.world.take_calls(), ["elsewhere-lucky ADD", "elsewhere-lucky DEL"]);
    }
}

#[test]
fn keys_of_a_wrong_type_are_refused_by_their_place() {
    let site = Site::new(SETTINGS);
    for (key, value) in [
        ("kubeconfig", json!(["/k"])),
        ("log", json!(5)),
        ("nextipam", json!({})),
        ("nodeName", json!(true)),
        ("cacheTtl", json!(5)),
        ("cacheTtl", json!("soon")),
    ] {
        site.conf(&json!({key: value}));
        let (code, error) = site.call("ADD", "c1").failure();
        assert_eq!(code, 7, "{key}: {error}");
        assert!(error.contains(CONF) && error.contains(key), "{error}");
    }
    assert_eq!(site.asked(), 0);
}

#[test]
fn the_networks_kubeconfig_comes_before_the_files_and_that_before_the_variables() {
    let site = Site::new(SETTINGS);
    let good = site.world.path("kubeconfig");
    let bad = site.world.path("bad");
    fs::write(&bad, "garbage: [").unwrap();
    let call = |ours: &Path, file: &Path, variable: &Path, container: &str| {
        site.conf(&json!({"kubeconfig": file}));
        let mut command = site.command("ADD", container);
        command.env("KUBECONFIG", variable);
        wait(start(command, &with(&site.network(), "kubeconfig", ours.to_str())))
    };
    call(&good, &bad, &bad, "c1").success();
    call(Path::new(""), &good, &bad, "c2").success();
    call(Path::new(""), Path::new(""), &good, "c3").success();
    for (ours, file, place) in [(&bad, &good, "ipam.kubeconfig"), (&PathBuf::new(), &bad, CONF)] {
        let (code, error) = call(ours, file, &good, "c4").failure();
        assert_eq!(code, 7, "{error}");
        assert!(error.contains(place) && error.contains(bad.to_str().unwrap()), "{error}");
    }
    assert_eq!(site.asked(), 3);
}

#[test]
fn the_nodes_name_stands_in_the_network_or_in_the_file_or_in_the_variable() {
    let site = Site::new(SETTINGS);
    let names = ["network", "file", "variable"].map(|place| format!("{}-{place}", site.node));
    for (number, name) in names.iter().enumerate() {
        let text = format!("ranges: [[{{subnet: \"10.9.{number}.0/24\"}}]]");
        site.kube.create_node(&Node::named(name).annotation(ANNOTATION, &text));
    }
    let [network, file, variable] = names.each_ref().map(String::as_str);
    let _grant = site.kube.allow_reading_nodes(&site.login, &[network, file, variable]);
    let call = |network: &str, file: &str, container: &str| {
        site.conf(&json!({"nodeName": file}));
        let mut command = site.command("ADD", container);
        command.env("NODE_NAME", variable);
        wait(start(command, &with(&site.network(), "nodeName", network))).ips()
    };
    assert_eq!(call(network, file, "c1"), ["10.9.0.2/24"]);
    assert_eq!(call("", file, "c2"), ["10.9.1.2/24"]);
    assert_eq!(call("", "", "c3"), ["10.9.2.2/24"]);
    let asked = names.map(|name| format!("get /api/v1/nodes/{name} 200"));
    assert_eq!(site.requests(), asked);
}

#[test]
fn how_long_an_answer_is_believed_stands_in_the_network_or_in_the_file() {
    let site = Site::new(SETTINGS);
    let add = |network: &str, file: &str| {
        site.conf(&json!({"cacheTtl": file}));
        let before = site.asked();
        let network = with(&site.network(), "cacheTtl", network);
        site.call_with("ADD", "c1", &network).success();
        site.asked() - before
    };
    // A minute where nobody says it.
    assert_eq!([add("", ""), add("", "")], [1, 0]);
    assert_eq!([add("", "0s"), add("", "5m")], [1, 0]);
    assert_eq!([add("5m", "0s"), add("0s", "5m")], [0, 1]);
    let network = with(&site.network(), "cacheTtl", "soon");
    let (code, error) = site.call_with("ADD", "c1", &network).failure();
    assert!(code == 7 && error.contains("ipam.cacheTtl: invalid duration \"soon\""), "{error}");
}

#[test]
fn a_token_shows_in_no_error() {
    let site = Site::new(SETTINGS);
    let other_user = site.kube.user();
    Kubeconfig::of(site.kube, &other_user).write(&site.world.path("kubeconfig"));
    let (code, error) = site.call("ADD", "c1").failure();
    assert!(code == 103 && error.contains(&other_user.user), "{error}");
    assert!(!error.contains(other_user.token().unwrap()), "{error}");
}
