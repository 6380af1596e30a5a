//! The program that the host's file names as the next, from ADD to the last DEL.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ipam_testkit::world::{Outcome, binary, host_local, start, wait};
use serde_json::{Value, json};

use crate::common::{SELECTOR, Site};

const SETTINGS: &str =
    r#""ranges": [[{"subnet": "10.9.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]"#;

/// What the annotation says, as it reaches the program.
fn settings(name: &str) -> Value {
    json!({"type": name, "ranges": [[{"subnet": "10.9.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]})
}

/// A program that gives an address, and is otherwise content.
const GIVES: &str = "case $CNI_COMMAND in ADD) printf '{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.9.0.7/24\"}]}';; esac";

/// A host whose file names the next program.
fn naming(next: impl AsRef<Path>) -> Site {
    let site = Site::new(SETTINGS);
    names(&site, next);
    site
}

fn names(site: &Site, next: impl AsRef<Path>) {
    site.conf(&json!({"nextipam": next.as_ref()}));
}

/// A copy of the real host-local in a folder that is in no `CNI_PATH`.
fn real(site: &Site) -> PathBuf {
    let folder = site.world.path("real");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(host_local(), folder.join("host-local")).unwrap();
    folder.join("host-local")
}

/// CHECK with the result of the ADD.
fn check(site: &Site, container: &str, result: &Value) -> Outcome {
    let mut network = site.network();
    network["prevResult"] = result.clone();
    site.call_with("CHECK", container, &network)
}

/// Takes away whatever led to the next program: file, selector, its name in `CNI_PATH`.
fn forget(site: &Site) {
    fs::remove_file(site.host.path(crate::common::CONF)).unwrap();
    fs::remove_file(site.world.path("bin").join(SELECTOR)).unwrap();
    site.world.full("host-local");
}

#[test]
fn the_real_host_local_gives_checks_and_releases_by_its_path() {
    let site = Site::new(SETTINGS);
    names(&site, real(&site));
    let result = site.call("ADD", "c1").success();
    let expected = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    assert_eq!(result, expected);
    assert_eq!(site.leases("net"), ["10.9.0.2"]);
    check(&site, "c1", &result).success();
    site.call("ADD", "c2").success();
    // Nothing is left but the record.
    forget(&site);
    check(&site, "c1", &result).success();
    site.call("DEL", "c1").success();
    assert_eq!(site.leases("net"), ["10.9.0.3"]);
    site.call("DEL", "c2").success();
    site.call("DEL", "c2").success();
    assert_eq!(site.leases("net"), [""; 0]);
    assert!(!site.world.take_calls().contains(&"host-local DEL".to_owned()));
}

#[test]
fn an_annotation_moves_no_leases_and_no_log_of_the_real_host_local_in_any_letter_case() {
    let site = Site::new("");
    names(&site, real(&site));
    let outside = site.world.path("outside");
    for (key, value) in [
        ("dataDir", outside.clone()),
        ("datadir", outside.clone()),
        ("DATADIR", outside.clone()),
        ("LOG_FILE", outside.join("x")),
        ("logLevel", outside.join("x")),
        ("resolvconf", site.world.path("kubeconfig")),
    ] {
        site.annotate(&format!(r#"ranges: [[{{subnet: "10.5.0.0/24"}}]], "{key}": {value:?}"#));
        let (code, error) = site.call("ADD", "c1").failure();
        assert_eq!(code, 7, "{key}: {error}");
        assert!(error.contains(&format!(" of node {}: {key}: ", site.node)), "{error}");
        let typed = site.typed(&site.preset(), &[], &site.network().to_string()).failure();
        assert!(typed.1.contains(&format!(" of node {}: {key}: ", site.node)), "{typed:?}");
    }
    assert!(!outside.exists());
    site.annotate(r#"ranges: [[{subnet: "10.5.0.0/24"}]], "x": 1, "X": 2"#);
    assert!(site.call("ADD", "c1").failure().1.contains("is set, too"));
    site.annotate(r#"ranges: [[{subnet: "10.5.0.0/24"}]], "datadir": "/var/lib/cni/elsewhere""#);
    site.call("ADD", "c1").success();
    assert!(site.host.path("/var/lib/cni/elsewhere/net/10.5.0.2").exists());
}

#[test]
fn a_command_is_found_in_path_and_stays_where_it_was_found() {
    let site = naming("host-local");
    let real = real(&site);
    let path = format!("/nowhere:relative:{}:/usr/bin:/bin", real.parent().unwrap().display());
    let mut add = site.command("ADD", "c1");
    add.env("PATH", &path);
    let result = wait(start(add, &site.network())).success();
    assert_eq!(result["ips"][0]["address"], "10.9.0.2/24");
    forget(&site);
    check(&site, "c1", &result).success();
    site.call("DEL", "c1").success();
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn another_host_local_of_cni_path_is_not_the_one() {
    let site = naming("host-local");
    // In CNI_PATH, but not in PATH.
    site.world.full("host-local");
    let (code, error) = site.call("ADD", "c1").failure();
    assert_eq!(code, 7, "{error}");
    let said =
        format!("{}: nextipam: missing or not executable: \"host-local\"", crate::common::CONF);
    assert!(error.starts_with(&said), "{error}");
    names(&site, real(&site));
    site.call("ADD", "c1").success();
    site.call("DEL", "c1").success();
    assert_eq!((site.leases("net"), site.world.take_calls()), (vec![], vec![]));
}

#[test]
fn it_gets_the_runtimes_own_configuration_with_what_the_annotation_says() {
    let site = Site::new(SETTINGS);
    names(&site, site.elsewhere("lucky", GIVES));
    let mut network = site.network();
    for (key, value) in [
        ("timeout", json!("30s")),
        ("verbose", json!(false)),
        ("kubeconfig", json!(site.world.path("kubeconfig"))),
        ("nodeName", json!(site.node)),
        ("cacheTtl", json!("0s")),
        ("dataDir", json!("/var/lib/cni/x")),
        ("deep", json!({"a": {"b": 1}})),
    ] {
        network["ipam"][key] = value;
    }
    network["bridge"] = json!("br0");
    network["args"] = json!({"cni": {"ips": ["10.9.0.7"]}});
    network["runtimeConfig"] = json!({"ips": ["10.9.0.7"], "mac": "m"});
    network["prevResult"] = json!({
        "cniVersion": "1.0.0", "interfaces": [{"name": "x", "z": 1}],
        "ips": [{"address": "192.0.2.9/24", "interface": 0}], "pools": "mine",
    });
    let mut expected = network.clone();
    expected["ipam"] = settings("lucky");
    let result = site.call_with("ADD", "c1", &network).success();
    assert_eq!(result["ips"], json!([{"address": "10.9.0.7/24"}]));
    network["prevResult"] = result;
    let mut after = expected.clone();
    after["prevResult"] = network["prevResult"].clone();
    site.call_with("CHECK", "c1", &network).success();
    site.call_with("DEL", "c1", &network).success();
    let given: Vec<Value> = site.world.calls().iter().map(|call| call["stdin"].clone()).collect();
    assert_eq!(given, [expected, after.clone(), after]);
    // A runtime that sends none.
    site.call("ADD", "c2").success();
    assert_eq!(site.world.calls()[3]["stdin"].get("prevResult"), None);
}

#[test]
fn status_and_gc_reach_it() {
    let site = Site::new(SETTINGS);
    let body = format!(
        "{GIVES}\n[ \"$CNI_COMMAND\" != STATUS ] || {{ printf '{{\"code\":50,\"msg\":\"no more\"}}'; exit 1; }}"
    );
    names(&site, site.elsewhere("lucky", &body));
    let mut network = site.network();
    network["cniVersion"] = json!("1.1.0");
    let (code, error) = site.call_with("STATUS", "", &network).failure();
    assert!(code == 50 && error.starts_with("lucky: no more"), "{error}");
    for container in ["c1", "c2"] {
        site.call_with("ADD", container, &network).success();
    }
    // So old that its grace is over.
    site.world.edit_record("c2", |line| {
        if line["event"] == "attempt" || line["event"] == "held" {
            line["time"] = json!(1);
        }
    });
    site.world.take_calls();
    network["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    site.call_with("GC", "", &network).success();
    let calls = site.world.calls();
    assert_eq!(site.world.take_calls(), ["elsewhere-lucky DEL", "elsewhere-lucky GC"]);
    assert_eq!(calls[0]["container"], "c2");
    assert_eq!(calls[1]["stdin"]["ipam"], settings("lucky"));
    let keep = &calls[1]["stdin"]["cni.dev/valid-attachments"];
    assert!(keep.as_array().unwrap().contains(&json!({"containerID": "c1", "ifname": "eth0"})));
    assert!(site.world.record("c1").exists() && !site.world.record("c2").exists());
    // One that knows neither, as Debian's host-local: an ADD of this version would fail.
    names(&site, real(&site));
    let (_, error) = site.call_with("STATUS", "", &network).failure();
    assert!(error.contains("does not support cniVersion 1.1.0"), "{error}");
    site.call_with("GC", "", &network).success();
}

#[test]
fn one_that_fails_or_answers_no_result_is_undone() {
    for (body, code, said) in [
        (
            "case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\"}'; exit 1;; esac",
            100,
            "lucky: full",
        ),
        ("case $CNI_COMMAND in ADD) echo garbage;; esac", 110, "lucky: "),
        ("case $CNI_COMMAND in ADD) echo '[]';; esac", 110, "lucky: "),
        ("case $CNI_COMMAND in ADD) exit 3;; esac", 110, "lucky: "),
        ("case $CNI_COMMAND in ADD) kill -9 $$;; esac", 110, "lucky: "),
        // As `cat` does.
        ("case $CNI_COMMAND in ADD) printf '%s' \"$in\";; esac", 110, "lucky: "),
        (
            "case $CNI_COMMAND in ADD) printf '{\"cniVersion\":\"1.0.0\",\"ips\":[]}';; esac",
            112,
            "the chain ended without an address",
        ),
        ("", 110, "lucky: "),
    ] {
        let site = Site::new(SETTINGS);
        names(&site, site.elsewhere("lucky", body));
        let (found, error) = site.call("ADD", "c1").failure();
        assert_eq!(found, code, "{body}: {error}");
        assert!(error.starts_with(said), "{error}");
        assert_eq!(site.world.take_calls(), ["elsewhere-lucky ADD", "elsewhere-lucky DEL"]);
        site.call("DEL", "c1").success();
    }
}

#[test]
fn one_that_hangs_is_killed_with_its_children_and_undone() {
    let site = Site::new(SETTINGS);
    let body = "case $CNI_COMMAND in ADD) sleep 600 & sleep 600;; esac";
    names(&site, site.elsewhere("lucky", body));
    let mut network = site.network();
    network["ipam"]["timeout"] = json!("2s");
    let (code, error) = site.call_with("ADD", "c1", &network).failure();
    assert!(code == 111 && error.starts_with("lucky: "), "{code} {error}");
    assert_eq!(site.world.take_calls(), ["elsewhere-lucky ADD", "elsewhere-lucky DEL"]);
    let left = site.world.processes();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn our_own_program_under_host_locals_name_is_planned_as_that_preset() {
    let site = Site::new(SETTINGS);
    site.world.install(&binary("ipam-ds-static"));
    let link = site.world.path("bin/host-local");
    symlink(binary("ipam-delegated"), &link).unwrap();
    for next in [link.as_path(), Path::new("host-local")] {
        names(&site, next);
        let call = |verb: &str, network: &Value| {
            let mut command = site.command(verb, "c1");
            command.env("PATH", format!("{}:/usr/bin:/bin", site.world.path("bin").display()));
            wait(start(command, network))
        };
        let result = call("ADD", &site.network()).success();
        let run: Vec<Value> = site
            .world
            .lines("c1")
            .iter()
            .filter(|line| line["event"] == "running")
            .map(|line| line["delegate"].clone())
            .collect();
        assert_eq!(run, [json!("ipam-da-local")]);
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0"}]));
        assert_eq!(site.leases("net").len(), 1);
        check(&site, "c1", &result).success();
        call("DEL", &site.network()).success();
        assert_eq!(site.leases("net"), [""; 0]);
    }
    // It must not run itself.
    names(&site, site.preset());
    let (code, error) = site.call("ADD", "c1").failure();
    assert!(
        code == 7 && error.contains("is the preset node-annotation, which would run itself"),
        "{error}"
    );
}

#[test]
fn an_add_of_a_program_that_is_gone_by_the_del_keeps_its_record() {
    let site = Site::new(SETTINGS);
    let next = real(&site);
    names(&site, &next);
    site.call("ADD", "c1").success();
    fs::rename(&next, site.world.path("aside")).unwrap();
    let (_, error) = site.call("DEL", "c1").failure();
    assert!(error.contains(next.to_str().unwrap()), "{error}");
    assert_eq!(site.leases("net"), ["10.9.0.2"]);
    fs::rename(site.world.path("aside"), &next).unwrap();
    site.call("DEL", "c1").success();
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn our_own_allocator_by_its_path_reads_what_the_annotation_says() {
    let site = naming(binary("ipam-da-local"));
    fs::remove_file(site.world.path("bin/ipam-da-local")).unwrap();
    let result = site.call("ADD", "c1").success();
    assert_eq!(result["ips"], json!([{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}]));
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0"}]));
    fs::remove_file(site.host.path(crate::common::CONF)).unwrap();
    check(&site, "c1", &result).success();
    site.call("DEL", "c1").success();
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn the_runtimes_ranges_reach_whatever_is_named_once() {
    let site = naming(host_local());
    let mut network = site.network();
    network["runtimeConfig"] = json!({"ipRanges": [[{"subnet": "10.5.0.0/24"}]]});
    let ours = site.world.path("ours/host-local");
    fs::create_dir(ours.parent().unwrap()).unwrap();
    symlink(binary("ipam-delegated"), &ours).unwrap();
    site.world.install(&binary("ipam-ds-static"));
    for next in [host_local(), ours, binary("ipam-da-local")] {
        names(&site, &next);
        let given = site.call_with("ADD", "c1", &network).ips();
        assert_eq!(given.len(), 2, "{}: {given:?}", next.display());
        assert!(given[0].starts_with("10.5.0.") && given[1].starts_with("10.9.0."), "{given:?}");
        site.call_with("DEL", "c1", &network).success();
        assert_eq!(site.leases("net"), [""; 0]);
    }
}

#[test]
fn what_host_local_refused_is_released_once_the_annotation_is_right() {
    let site = Site::new(r#""ranges": [{"subnet": "10.9.0.0/24"}]"#);
    names(&site, host_local());
    let mut network = site.network();
    network["ipam"]["cacheTtl"] = "0s".into();
    let call = |verb: &str, container: &str| site.call_with(verb, container, &network);
    for container in ["c1", "c2"] {
        assert_eq!(call("ADD", container).failure().0, 999);
    }
    assert_eq!(call("DEL", "c1").failure().0, 999);
    site.annotate(SETTINGS);
    call("DEL", "c1").success();
    assert_eq!(call("ADD", "c2").ips(), ["10.9.0.2/24"]);
    call("DEL", "c2").success();
    assert_eq!(site.leases("net"), [""; 0]);
}
