//! A preset whose last program the host names in a file of its own: `node-annotation`, with a selector in
//! shell.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipam_testkit::world::{
    Host, Outcome, World, binary, host_local, names, start, start_raw, wait,
};
use serde_json::{Value, json};

const SELECTOR: &str = "ipam-ds-node-annotation";

/// A world whose plugin folder has the preset, the selector and an allocator of ours.
struct Site {
    world: World,
}

impl Site {
    fn new() -> Self {
        let world = World::new();
        symlink(binary("ipam-delegated"), world.path("bin/node-annotation")).unwrap();
        world.allocator("ipam-da-local", "10.0.0.2/24");
        let site = Self { world };
        site.selects(&json!({"annotation": null, "ranges": [[{"subnet": "10.9.0.0/24"}]]}));
        site
    }

    /// The selector puts this over `ipam`, and names a pool as well.
    fn selects(&self, ipam: &Value) {
        let answer = json!({"cniVersion": "1.0.0", "pools": [{"name": "p"}], "ipam": ipam});
        self.world.delegate(SELECTOR, &format!("printf '%s' '{answer}'"));
    }

    /// Writes the host's own file.
    fn names(&self, next: impl AsRef<Path>) -> &Self {
        self.conf(&json!({"kubeconfig": "/nowhere", "nextipam": next.as_ref()}).to_string())
    }

    fn conf(&self, text: &str) -> &Self {
        fs::write(self.world.path("conf"), text).unwrap();
        fs::set_permissions(self.world.path("conf"), fs::Permissions::from_mode(0o644)).unwrap();
        self
    }

    fn network(&self) -> Value {
        let mut network = self.world.network(json!(null));
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.remove("delegates");
        ipam.insert("type".to_owned(), "node-annotation".into());
        ipam.insert("annotation".to_owned(), "example.com/a".into());
        network
    }

    fn command(&self, verb: &str, container: &str) -> Command {
        let program = self.world.path("bin/node-annotation");
        let mut command = self.world.command_of(&program, verb, container);
        command.env("NODE_ANNOTATION_CFG", self.world.path("conf"));
        command
    }

    fn call(&self, verb: &str, container: &str) -> Outcome {
        wait(start(self.command(verb, container), &self.network()))
    }

    /// A person's call, with these words and this on stdin.
    fn typed(&self, words: &[&str], stdin: &str) -> Outcome {
        self.typed_as(&self.world.path("bin/node-annotation"), words, stdin)
    }

    fn typed_as(&self, program: &Path, words: &[&str], stdin: &str) -> Outcome {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").args(words);
        command.env("NODE_ANNOTATION_CFG", self.world.path("conf"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start_raw(command, stdin.as_bytes()))
    }

    /// A program in a folder of its own.
    fn elsewhere(&self, name: &str, body: &str) -> PathBuf {
        let script = format!("elsewhere-{name}");
        self.world.delegate(&script, body);
        fs::create_dir_all(self.world.path("elsewhere")).unwrap();
        let at = self.world.path("elsewhere").join(name);
        fs::rename(self.world.path("bin").join(script), &at).unwrap();
        at
    }

    /// The addresses that host-local has given.
    fn leases(&self) -> Vec<String> {
        let mut names = names(&self.world.path("data/net"));
        names.retain(|name| name.starts_with("10."));
        names
    }
}

const GIVES: &str =
    "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.9.0.7/24\"}]}';; esac";

#[test]
fn without_a_file_the_presets_own_allocator_is_the_last() {
    let site = Site::new();
    assert_eq!(site.call("ADD", "c1").ips(), ["10.0.0.2/24"]);
    let given = site.world.calls().pop().unwrap();
    assert_eq!(given["stdin"]["ipam"]["rangeRules"], "host-local");
    assert_eq!(site.world.take_calls(), [format!("{SELECTOR} ADD").as_str(), "ipam-da-local ADD"]);
    site.conf(r#"{"kubeconfig": "/x"}"#);
    site.call("DEL", "c1").success();
    assert!(site.world.held().is_empty());
}

#[test]
fn a_program_that_the_host_named_gets_the_runtimes_own_configuration() {
    let site = Site::new();
    let at = site.elsewhere("lucky", GIVES);
    site.names(&at);
    site.selects(
        &json!({"annotation": null, "dataDir": null, "ranges": [[{"subnet": "10.9.0.0/24"}]]}),
    );
    let mut network = site.network();
    network["ipam"]["verbose"] = json!(false);
    network["ipam"]["timeout"] = json!("30s");
    network["args"] = json!({"cni": {"x": 1}});
    network["runtimeConfig"] = json!({"ipRanges": [[{"subnet": "10.8.0.0/24"}]], "mac": "m"});
    network["prevResult"] =
        json!({"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.9/24"}], "x": [1]});
    let call = |network: &Value, verb: &str| wait(start(site.command(verb, "c1"), network));
    assert_eq!(call(&network, "ADD").ips(), ["10.9.0.7/24"]);
    let mut expected = network.clone();
    expected["ipam"] = json!({"type": "lucky", "ranges": [[{"subnet": "10.9.0.0/24"}]]});
    let calls = site.world.calls();
    assert_eq!(calls[0]["stdin"]["ipam"]["annotation"], "example.com/a");
    assert_eq!(calls[1]["stdin"], expected);
    // By the record: neither the file, nor a selector, nor another program of its name.
    fs::remove_file(site.world.path("conf")).unwrap();
    site.world.full("lucky").full(SELECTOR);
    site.world.take_calls();
    network["prevResult"]["ips"][0]["address"] = json!("10.9.0.7/24");
    expected["prevResult"] = network["prevResult"].clone();
    call(&network, "CHECK").success();
    call(&network, "DEL").success();
    for given in site.world.calls() {
        assert_eq!(given["delegate"], "elsewhere-lucky");
        assert_eq!(given["stdin"], expected);
    }
    assert_eq!(site.world.take_calls(), ["elsewhere-lucky CHECK", "elsewhere-lucky DEL"]);
    assert!(!site.world.record("c1").exists());
}

#[test]
fn a_preset_among_delegates_reads_the_file_in_its_own_place() {
    let (site, host) = (Site::new(), Host::new());
    let at = site.elsewhere("lucky", GIVES);
    let conf = json!({"nextipam": at}).to_string();
    fs::write(host.path("/etc/cni/node-annotation.conf"), conf).unwrap();
    let entry = json!({"type": "node-annotation", "annotation": "example.com/a", "timeout": "5s"});
    let network = site.world.network(json!([entry]));
    assert_eq!(host.call(&site.world, "ADD", "c1", &network).ips(), ["10.9.0.7/24"]);
    let calls = site.world.calls();
    assert_eq!(calls[0]["stdin"]["ipam"]["annotation"], "example.com/a");
    // Its object form is for the selector, which has made of it what it made.
    let data = site.world.path("data");
    let ipam = json!({"type": "lucky", "dataDir": data, "ranges": [[{"subnet": "10.9.0.0/24"}]]});
    assert_eq!(calls[1]["stdin"]["ipam"], ipam);
    host.call(&site.world, "DEL", "c1", &network).success();
    assert_eq!(site.world.calls()[2]["stdin"]["ipam"], ipam);
}

#[test]
fn where_nothing_is_put_over_it_the_section_is_the_networks_own_and_a_missing_result_stays_missing()
{
    let site = Site::new();
    site.names(site.elsewhere("lucky", GIVES));
    site.selects(&json!({}));
    site.call("ADD", "c1").success();
    let given = &site.world.calls()[1]["stdin"];
    let data = site.world.path("data");
    assert_eq!(
        given["ipam"],
        json!({"type": "lucky", "annotation": "example.com/a", "dataDir": data})
    );
    assert_eq!(given.get("prevResult"), None);
}

#[test]
fn the_hosts_own_host_local_gives_checks_and_releases_by_the_record() {
    for by_name in [false, true] {
        let site = Site::new();
        let real = site.world.path("bin/real");
        fs::create_dir(&real).unwrap();
        fs::copy(host_local(), real.join("host-local")).unwrap();
        let next = real.join("host-local");
        if by_name {
            site.names("host-local")
        } else {
            site.names(&next)
        };
        let mut add = site.command("ADD", "c1");
        add.env("PATH", format!("/nowhere:{}:/usr/bin:/bin", real.display()));
        assert_eq!(wait(start(add, &site.network())).ips(), ["10.9.0.2/24"]);
        assert_eq!(site.leases(), ["10.9.0.2"]);
        let running = site.world.lines("c1").remove(1);
        assert_eq!((&running["program"], &running["fixed"]), (&json!(next), &json!(true)));
        fs::remove_file(site.world.path("conf")).unwrap();
        site.world.full("host-local").full(SELECTOR);
        site.call("CHECK", "c1").success();
        site.call("DEL", "c1").success();
        assert!(site.leases().is_empty() && !site.world.record("c1").exists());
        assert!(!site.world.take_calls().contains(&"host-local DEL".to_owned()));
    }
}

#[test]
fn a_record_of_a_program_found_by_its_name_is_read_as_before() {
    let site = Site::new();
    site.names(site.elsewhere("lucky", GIVES));
    site.call("ADD", "c1").success();
    site.world.edit_record("c1", |line| {
        line.as_object_mut().unwrap().remove("fixed");
    });
    site.world.delegate("lucky", "");
    site.world.take_calls();
    site.call("DEL", "c1").success();
    assert_eq!(site.world.take_calls(), ["lucky DEL"]);
}

#[test]
fn a_recorded_program_that_is_gone_keeps_the_record() {
    let site = Site::new();
    let at = site.elsewhere("lucky", GIVES);
    site.names(&at).call("ADD", "c1").success();
    fs::remove_file(&at).unwrap();
    site.world.delegate("lucky", "");
    let (_, text) = site.call("DEL", "c1").failure();
    assert!(text.contains(&format!("lucky: cannot start {}", at.display())), "{text}");
    assert!(site.world.record("c1").exists());
}

#[test]
fn a_preset_over_the_recorded_program_leaves_it_to_the_one_kept_aside() {
    let site = Site::new();
    let at = site.elsewhere("host-local", GIVES);
    site.names(&at).call("ADD", "c1").success();
    fs::rename(&at, at.with_file_name("host-local.orig")).unwrap();
    symlink(binary("ipam-delegated"), &at).unwrap();
    site.world.take_calls();
    site.call("DEL", "c1").success();
    assert_eq!(site.world.take_calls(), ["elsewhere-host-local DEL"]);
}

#[test]
fn a_preset_over_a_recorded_program_of_which_nothing_is_left_releases_by_its_own_allocator() {
    let site = Site::new();
    site.world.program("ipam-da-local", "#!/bin/sh\nexit 1\n");
    fs::remove_file(site.world.path("bin/ipam-da-local")).unwrap();
    symlink(binary("ipam-da-local"), site.world.path("bin/ipam-da-local")).unwrap();
    let at = site.world.path("host-local");
    fs::copy(host_local(), &at).unwrap();
    site.names(&at).call("ADD", "c1").success();
    site.call("ADD", "c2").success();
    fs::remove_file(&at).unwrap();
    symlink(binary("ipam-delegated"), &at).unwrap();
    site.call("CHECK", "c1").success();
    site.call("DEL", "c1").success();
    assert_eq!(site.leases(), ["10.9.0.3"]);
    fs::remove_file(site.world.path("bin/ipam-da-local")).unwrap();
    let (_, text) = site.call("DEL", "c2").failure();
    assert!(text.contains("host-local was run by the chain"), "{text}");
    assert_eq!(site.leases(), ["10.9.0.3"]);
    assert!(site.world.record("c2").exists());
}

#[test]
fn our_own_program_under_a_presets_name_is_planned_as_that_preset() {
    let site = Site::new();
    site.world.selector("ipam-ds-static", &json!([{"name": "q"}]));
    let at = site.world.path("host-local");
    symlink(binary("ipam-delegated"), &at).unwrap();
    assert_eq!(site.names(&at).call("ADD", "c1").ips(), ["10.0.0.2/24"]);
    let calls = site.world.calls();
    // To the second selector they are in the pools.
    let ranges = [Value::Null, json!([[{"subnet": "10.9.0.0/24"}]])];
    for (given, ranges) in calls[1..].iter().zip(ranges) {
        assert_eq!(given["stdin"]["ipam"]["ranges"], ranges);
        assert_eq!(given["stdin"]["ipam"]["rangeRules"], "host-local");
    }
    assert_eq!(calls[2]["stdin"]["prevResult"]["pools"], json!([{"name": "q"}]));
    let names: Vec<_> = calls.iter().map(|call| call["delegate"].as_str().unwrap()).collect();
    assert_eq!(names, [SELECTOR, "ipam-ds-static", "ipam-da-local"]);
    site.call("DEL", "c1").success();
    assert!(site.world.held().is_empty());
}

#[test]
fn a_preset_that_would_run_itself_is_refused_and_so_is_our_program_under_another_name() {
    let site = Site::new();
    for (name, why) in [
        ("node-annotation", "is the preset node-annotation, which would run itself"),
        ("frob", "is ipam-delegated itself, and its name is not a preset"),
    ] {
        let at = site.world.path(name);
        symlink(binary("ipam-delegated"), &at).unwrap();
        site.names(&at);
        let (code, text) = site.call("ADD", "c1").failure();
        assert_eq!(code, 7, "{text}");
        assert!(text.contains("conf: nextipam: ") && text.contains(why), "{text}");
        site.world.program(SELECTOR, "#!/bin/sh\ncat\n");
        let (code, text) = site.typed(&[], "{}").failure();
        assert!(code == 7 && text.contains(why), "{text}");
    }
    assert!(!site.world.record("c1").exists());
}

#[test]
fn an_allocator_that_the_host_named_is_a_delegate_in_a_place_of_its_own() {
    let site = Site::new();
    site.world.allocator("ipam-da-x", "10.0.7.2/24");
    fs::create_dir(site.world.path("elsewhere")).unwrap();
    let at = site.world.path("elsewhere/ipam-da-x");
    fs::rename(site.world.path("bin/ipam-da-x"), &at).unwrap();
    site.names(&at);
    site.world.full("ipam-da-x");
    assert_eq!(site.call("ADD", "c1").ips(), ["10.0.7.2/24"]);
    let given = &site.world.calls()[1]["stdin"];
    assert_eq!(given["prevResult"]["pools"], json!([{"name": "p"}]));
    assert_eq!(given["ipam"]["rangeRules"], "host-local");
    assert!(given["ipam"]["node"].is_string());
    fs::remove_file(site.world.path("conf")).unwrap();
    site.call("DEL", "c1").success();
    assert_eq!(
        site.world.calls().pop().unwrap()["stdin"]["prevResult"]["leases"],
        json!(["ipam-da-x"])
    );
    assert!(site.world.held().is_empty());
}

#[test]
fn a_file_that_others_may_write_is_refused_and_lint_says_so() {
    let site = Site::new();
    site.names(site.elsewhere("lucky", GIVES));
    let conf = site.world.path("conf");
    site.world.conflist("10-net.conflist", &site.network());
    let lint = || {
        let mut command = site.world.typing(&["lint", "net"]);
        command.env("NODE_ANNOTATION_CFG", &conf);
        wait(command.spawn().unwrap())
    };
    assert!(lint().stdout.contains("lucky"), "{:?}", lint());
    fs::set_permissions(&conf, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = |advice: &str| {
        let (code, text) = site.call("ADD", "c1").failure();
        assert_eq!(code, 7);
        assert!(text.contains(advice), "{text}");
        let found = lint();
        assert_eq!(found.exit, Some(1));
        assert!(found.stdout.contains("error: ") && found.stdout.contains(advice), "{found:?}");
        assert!(site.typed(&[], "{}").stdout.contains(advice));
    };
    site.world.program(SELECTOR, "#!/bin/sh\ncat\n");
    refused(&format!("chmod go-w {}", conf.display()));
    fs::set_permissions(&conf, fs::Permissions::from_mode(0o644)).unwrap();
    // Only root can give a file away.
    if chown(&conf, Some(65534), None).is_ok() {
        refused(&format!("chown root {}", conf.display()));
    }
}

#[test]
fn the_answer_of_a_program_that_the_host_named_is_not_compared_with_the_pools() {
    let site = Site::new();
    let pools = json!([{"name": "p", "ranges": [{"subnet": "10.1.0.0/24"}]}]);
    let answer = json!({"cniVersion": "1.0.0", "pools": pools, "ipam": {"annotation": null}});
    site.world.delegate(SELECTOR, &format!("printf '%s' '{answer}'"));
    let ips = json!({"ips": [{"address": "10.9.0.7/24"}, {"address": "10.9.0.8/24"}]});
    let body = format!("case $CNI_COMMAND in ADD) printf '%s' '{ips}';; esac");
    site.names(site.elsewhere("lucky", &body));
    assert_eq!(site.call("ADD", "c1").ips(), ["10.9.0.7/24", "10.9.0.8/24"]);
}

#[test]
fn a_program_that_fails_or_answers_no_result_is_undone_in_its_own_form() {
    for (body, code) in [
        ("case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\"}'; exit 1;; esac", 100),
        ("case $CNI_COMMAND in ADD) echo garbage;; esac", 110),
        ("case $CNI_COMMAND in ADD) kill -9 $$;; esac", 110),
        // As `cat` does.
        ("case $CNI_COMMAND in ADD) printf '%s' \"$in\";; esac", 110),
        ("case $CNI_COMMAND in ADD) printf '{\"ips\":[]}';; esac", 112),
    ] {
        let site = Site::new();
        site.names(site.elsewhere("lucky", body));
        let (failed, text) = site.call("ADD", "c1").failure();
        assert_eq!(failed, code, "{body}: {text}");
        let calls = site.world.calls();
        assert_eq!(site.world.take_calls()[1..], ["elsewhere-lucky ADD", "elsewhere-lucky DEL"]);
        assert_eq!(calls[1]["stdin"], calls[2]["stdin"]);
        assert_eq!(calls[2]["stdin"].get("prevResult"), None);
    }
}

#[test]
fn an_add_that_was_killed_in_it_is_released_by_gc_in_the_same_place() {
    let site = Site::new();
    let gate = site.world.gate("lucky");
    let body = format!("case $CNI_COMMAND in ADD) {gate};; esac");
    site.names(site.elsewhere("lucky", &body));
    let mut child = start(site.command("ADD", "c1"), &site.network());
    site.world.at_gate("lucky");
    ipam_testkit::world::kill_now(&mut child);
    site.world.open_gate("lucky");
    ipam_testkit::world::until("no process is left", || site.world.processes().is_empty());
    site.world.full("lucky");
    site.world.edit_record("c1", |line| {
        if line["event"] == "attempt" {
            line["time"] = json!(1);
        }
    });
    let mut network = site.network();
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = json!([]);
    site.world.take_calls();
    wait(start(site.command("GC", ""), &network)).success();
    let calls = site.world.take_calls();
    assert_eq!(calls[0], "elsewhere-lucky DEL");
    assert_eq!(calls.last().unwrap(), "elsewhere-lucky GC");
    assert_eq!(site.world.state_of("c1"), "unsure");
}

#[test]
fn operators_verbs_know_what_cannot_be_asked() {
    let site = Site::new();
    site.names(site.elsewhere("lucky", GIVES));
    site.call("ADD", "c1").success();
    site.world.conflist("10-net.conflist", &site.network());
    let typed = |words: &[&str]| {
        let mut command = site.world.typing(words);
        command.env("NODE_ANNOTATION_CFG", site.world.path("conf"));
        wait(command.spawn().unwrap())
    };
    let explained = typed(&["explain", "net", "--json"]).success();
    let last = &explained[0]["delegates"][1];
    let data = site.world.path("data");
    let ipam = json!({"type": "lucky", "dataDir": data, "ranges": [[{"subnet": "10.9.0.0/24"}]]});
    assert_eq!(last["input"]["ipam"], ipam);
    assert_eq!(last["input"].get("prevResult"), None);
    assert!(typed(&["explain", "net"]).stdout.contains("is not run now; ADD would give it"));
    for words in [
        &["list", "net"][..],
        &["pools", "net"],
        &["who", "net", "10.9.0.7"],
        &["release", "net", "10.9.0.7"],
    ] {
        let outcome = typed(words);
        assert_eq!(outcome.exit, Some(1));
        assert!(outcome.stderr.contains("lucky is a standard plugin"), "{outcome:?}");
    }
    assert!(typed(&["attachments", "net"]).stdout.contains("10.9.0.7/24"));
    let claims = typed(&["reassert", "net"]);
    assert!(claims.stdout.contains("it is a standard plugin"), "{claims:?}");
    site.world.edit_record("c1", |line| {
        line["time"] = json!(1);
        if line["event"] == "attempt" {
            line["boot"] = json!("an earlier one");
        }
    });
    site.world.full("lucky");
    let reaped = typed(&["reap", "net", "--yes", "--no-cache"]);
    assert!(reaped.exit == Some(0) && reaped.stdout.contains("released"), "{reaped:?}");
    assert_eq!(site.world.take_calls().pop().unwrap(), "elsewhere-lucky DEL");
}

/// What the selector prints by hand: its words and variables for all but `ipam`.
const TYPED: &str = "#!/bin/sh\ncase $1 in\nipam) sed 's/node-annotation/cat/';;\nfail) echo no >&2; cat; exit 7;;\n\
                     *) echo \"$#:$*:${CNI_COMMAND-none}\";;\nesac\n";

#[test]
fn what_is_typed_is_answered_by_the_delegate_beside_the_link() {
    let site = Site::new();
    site.world.program(SELECTOR, TYPED);
    let said = site.typed(&["get_annotation", "--node=a b", "x"], "");
    assert_eq!(
        (said.exit, said.stdout.as_str()),
        (Some(0), "3:get_annotation --node=a b x:none\n")
    );
    let failed = site.typed(&["fail"], "given");
    assert_eq!((failed.exit, &*failed.stdout, &*failed.stderr), (Some(7), "given", "no\n"));
    // By a bare name in PATH.
    let mut command = Command::new("sh");
    command.args(["-c", "exec node-annotation -h"]).env_clear();
    command.env("PATH", format!("{}:/usr/bin:/bin", site.world.path("bin").display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(wait(command.spawn().unwrap()).stdout, "1:-h:none\n");
    // By a link elsewhere it is beside the program, or in PATH; else an error object says so.
    let away = site.world.path("away");
    fs::create_dir(&away).unwrap();
    symlink(site.world.path("bin/node-annotation"), away.join("node-annotation")).unwrap();
    let beside = binary("ipam-delegated").with_file_name(SELECTOR);
    if !beside.exists() {
        let (_, text) = site.typed_as(&away.join("node-annotation"), &["-h"], "").failure();
        assert!(text.starts_with(&format!("{SELECTOR} is neither beside ")), "{text}");
    }
    // Other presets answer as ever.
    symlink(binary("ipam-delegated"), away.join("host-local")).unwrap();
    assert!(
        site.typed_as(&away.join("host-local"), &[], "").stdout.starts_with("ipam-delegated runs")
    );
}

#[test]
fn typed_without_words_it_composes_the_configuration_and_runs_the_last_program() {
    let site = Site::new();
    site.world.program(SELECTOR, TYPED);
    let config = "{\n  \"name\": \"mynet\",\n  \"ipam\": {\"type\": \"node-annotation\", \"z\": 1, \"a\": 2}\n}\n\n";
    let composed = config.replace("node-annotation", "cat");
    for next in ["cat", "/bin/cat"] {
        site.names(next);
        for words in [&[][..], &["ipam"]] {
            let outcome = site.typed(words, config);
            assert_eq!((outcome.exit, &outcome.stdout), (Some(0), &composed), "{outcome:?}");
        }
    }
    // More than a pipe holds.
    let long = format!("{}{}", config, " ".repeat(1_000_000));
    assert_eq!(site.typed(&[], &long).stdout.len(), composed.len() + 1_000_000);
    // Its status and stderr are ours, and it gets no verb.
    let says = "#!/bin/sh\ncat >&2; echo \"${CNI_COMMAND-none}\"; exit 3\n";
    site.world.program("says", says);
    site.names(site.world.path("bin/says").to_str().unwrap());
    let outcome = site.typed(&[], config);
    assert_eq!((outcome.exit, &*outcome.stdout, &outcome.stderr), (Some(3), "none\n", &composed));
    // An allocator of ours would only say what it is.
    site.world.program("ipam-da-local", says);
    site.conf("{}");
    let outcome = site.typed(&[], config);
    assert_eq!((outcome.exit, &outcome.stdout), (Some(0), &composed));
    // A selector that fails is all there is.
    site.world.program(SELECTOR, "#!/bin/sh\nprintf '{\"code\":7,\"msg\":\"no\"}'; exit 1\n");
    assert_eq!(site.typed(&[], config).failure(), (7, "no: ".to_owned()));
}
