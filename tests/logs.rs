//! What is logged, where, and what never is. Each test has a mount namespace of its own, with an
//! empty `/var/log/cni`.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipam_testkit::world::{Host, World, binary, host_local, names, start, start_raw, wait, with};
use serde_json::{Value, json};

const LOGS: &str = "/var/log/cni";

/// A chain with a delegate of ours that logs for itself, installed as install.sh does.
fn world() -> (World, Value) {
    let world = World::new();
    world.install_as(&binary("ipam-delegated"), "ipam-ds-static").install(&host_local());
    let network = world.network(json!(["ipam-ds-static", "host-local"]));
    let network = with(&network, "subnet", "10.1.2.0/24");
    (world, network)
}

fn log(host: &Host, program: &str) -> String {
    fs::read_to_string(host.path(&format!("{LOGS}/{program}.log"))).unwrap_or_default()
}

/// A line's time, level, verb and attachment, and message.
#[track_caller]
fn parts(line: &str) -> (&str, &str, &str, &str) {
    let split = || {
        let (time, rest) = line.split_once(" [")?;
        let (level, rest) = rest.split_once("] ")?;
        let (subject, message) = rest.split_once(": ")?;
        Some((time, level, subject, message))
    };
    split().unwrap_or_else(|| panic!("no line of a log: {line:?}"))
}

/// `2026-11-21T14:40:41.851898Z`
fn is_utc(time: &str) -> bool {
    let form = "0000-00-00T00:00:00.000000Z";
    let fits = |(c, form): (char, char)| if form == '0' { c.is_ascii_digit() } else { c == form };
    time.len() == form.len() && time.chars().zip(form.chars()).all(fits)
}

#[test]
fn without_a_setting_only_the_verbose_flavour_writes_a_file() {
    let (world, network) = world();
    let host = Host::new();
    let outcome = host.call(&world, "ADD", "c1", &network);
    assert!(!outcome.stderr.contains("[DEBUG]"), "{outcome:?}");
    outcome.success();
    let written: &[&str] = match cfg!(feature = "verbose") {
        true => &["ipam-delegated.log", "ipam-ds-static.log"],
        false => &[],
    };
    assert_eq!(names(&host.path(LOGS)), written);
    // A configuration has the last word.
    host.shell(&format!("rm -f {LOGS}/*"));
    host.call(&world, "DEL", "c1", &with(&network, "verbose", false)).success();
    host.call(&world, "ADD", "c1", &with(&network, "verbose", false)).success();
    assert!(names(&host.path(LOGS)).is_empty());
}

#[test]
fn a_line_has_time_level_verb_and_attachment_in_every_program() {
    let (world, network) = world();
    let host = Host::new();
    let network = with(&network, "verbose", true);
    for (verb, container) in [("ADD", "c1"), ("ADD", "c2"), ("CHECK", "c1"), ("DEL", "c1")] {
        let outcome = host.call(&world, verb, container, &network);
        assert!(!outcome.stderr.contains("[DEBUG]"), "{outcome:?}");
        outcome.success();
    }
    let chain = log(&host, "ipam-delegated");
    let selector = log(&host, "ipam-ds-static");
    for line in chain.lines().chain(selector.lines()) {
        let (time, level, subject, _) = parts(line);
        assert!(is_utc(time), "{line}");
        assert!(["DEBUG", "WARN"].contains(&level), "{line}");
        assert!(["ADD c1/eth0", "ADD c2/eth0", "CHECK c1/eth0", "DEL c1/eth0"].contains(&subject));
    }
    // The first line of each call is the version.
    let version = |program: &str| format!("{program} {}", env!("CARGO_PKG_VERSION"));
    let starts = |text: &str, program: &str| {
        let version = version(program);
        let lines = text.lines().map(parts).filter(|(_, _, _, message)| *message == version);
        lines.map(|(_, level, subject, _)| format!("{level} {subject}")).collect::<Vec<_>>()
    };
    assert_eq!(
        starts(&chain, "ipam-delegated"),
        ["DEBUG ADD c1/eth0", "DEBUG ADD c2/eth0", "DEBUG CHECK c1/eth0", "DEBUG DEL c1/eth0"]
    );
    assert_eq!(starts(&selector, "ipam-ds-static"), ["DEBUG ADD c1/eth0", "DEBUG ADD c2/eth0"]);
    assert_eq!(parts(chain.lines().next().unwrap()).3, version("ipam-delegated"));
    // grep follows one container.
    let followed: Vec<_> = chain.lines().filter(|line| line.contains("c2/eth0")).collect();
    assert!(followed.iter().any(|line| line.contains("gives 10.1.2.3/24")), "{followed:#?}");
    assert!(!followed.iter().any(|line| line.contains("10.1.2.2/24")), "{followed:#?}");
}

#[test]
fn the_host_wide_settings_switch_on_and_choose_the_folder() {
    let (world, network) = world();
    let host = Host::new();
    let folder = world.path("logs");
    host.settings(&json!({"verbose": true, "logDir": folder}));
    host.call(&world, "ADD", "c1", &network).success();
    assert_eq!(names(&folder), ["ipam-delegated.log", "ipam-ds-static.log"]);
    assert!(names(&host.path(LOGS)).is_empty());
    host.call(&world, "DEL", "c1", &network).success();
    fs::remove_dir_all(&folder).unwrap();
    // A network may say otherwise.
    host.call(&world, "ADD", "c1", &with(&network, "verbose", false)).success();
    assert!(!folder.exists());
}

#[test]
fn a_log_is_for_root_and_its_group_alone() {
    let (world, network) = world();
    let host = Host::new();
    let call = host.command(&world, "ADD", "c1");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(call.get_program());
    command.args(call.get_args()).env_clear();
    command.envs(call.get_envs().filter_map(|(key, value)| Some((key, value?))));
    for stream in
        [std::process::Command::stdin, std::process::Command::stdout, std::process::Command::stderr]
    {
        stream(&mut command, std::process::Stdio::piped());
    }
    wait(start(command, &with(&network, "verbose", true))).success();
    for name in ["ipam-delegated.log", "ipam-ds-static.log"] {
        let file = fs::metadata(host.path(&format!("{LOGS}/{name}"))).unwrap();
        assert_eq!(file.permissions().mode() & 0o7777, 0o640, "{name}");
    }
}

#[test]
fn by_hand_the_environment_shows_everything_on_stderr_too() {
    let (world, network) = world();
    let host = Host::new();
    let mut command = host.command(&world, "ADD", "c1");
    command.env("IPAM_DELEGATED_LOG", "debug");
    let outcome = wait(start(command, &network));
    for program in ["ipam-delegated", "ipam-ds-static"] {
        let version = format!("[DEBUG] {program}: ADD c1/eth0: {program} ");
        assert!(outcome.stderr.contains(&version), "{outcome:?}");
        assert!(log(&host, program).contains("[DEBUG] ADD c1/eth0: "));
    }
    assert!(outcome.success()["ips"].is_array());
}

#[test]
fn errors_and_warnings_are_on_stderr_without_any_setting() {
    let host = Host::new();
    let world = World::new();
    world.full("a");
    let network = world.network(json!(["a"]));
    let outcome = host.call(&world, "ADD", "c1", &network);
    let warning = "[WARN] ipam-delegated: ADD c1/eth0: ipam.stateDir is set";
    assert!(outcome.stderr.contains(warning), "{outcome:?}");
    let error = "[ERROR] ipam-delegated: ADD c1/eth0: 100: a: full";
    assert!(outcome.stderr.contains(error), "{outcome:?}");
    assert_eq!(outcome.failure().0, 100);
    // A call that cannot even be read is logged likewise.
    for (stdin, code) in [("pear", 6), ("{}", 7), (r#"{"cniVersion": "9.0.0"}"#, 1)] {
        let outcome = wait(start_raw(host.command(&world, "ADD", "c1"), stdin.as_bytes()));
        let error = format!("[ERROR] ipam-delegated: ADD c1/eth0: {code}: ");
        assert!(outcome.stderr.contains(&error), "{outcome:?}");
        assert_eq!(outcome.failure().0, code);
    }
    let mut command = host.command(&world, "ADD", "c1\n[ERROR]");
    command.env("CNI_IFNAME", "eth0\x1b[31m");
    let outcome = wait(start(command, &network));
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(!outcome.stderr.contains('\x1b'), "{outcome:?}");
    host.settings(&json!({"verbos": true}));
    let outcome = host.call(&world, "ADD", "c1", &network);
    assert!(outcome.stderr.contains("7: /etc/cni/ipam-delegated.json: "), "{outcome:?}");
    outcome.failure();
    // And where verbose logs are on, in their file.
    host.settings(&json!({"verbose": true}));
    wait(start_raw(host.command(&world, "ADD", "c9"), b"pear")).failure();
    assert!(log(&host, "ipam-delegated").contains("[ERROR] ADD c9/eth0: 6: "));
}

#[test]
fn a_log_that_cannot_be_written_fails_no_call() {
    let breakages = [
        (
            "a file in the place of the folder",
            "mount -t tmpfs tmpfs /var/log; : >/var/log/cni".to_owned(),
            true,
        ),
        ("a read-only disk", format!("mount -o remount,ro {LOGS}"), true),
        (
            "a disk without a byte left",
            format!("mount -t tmpfs -o size=4k tmpfs {LOGS}; cat /dev/zero >{LOGS}/full || true"),
            false,
        ),
        (
            "a disk without a file left",
            format!("mount -t tmpfs -o nr_inodes=3 tmpfs {LOGS}; cd {LOGS}; touch a b"),
            true,
        ),
    ];
    for (what, breakage, is_told) in breakages {
        let (world, network) = world();
        let host = Host::new();
        host.shell(&breakage);
        let network = with(&network, "verbose", true);
        for verb in ["ADD", "CHECK", "DEL"] {
            let outcome = host.call(&world, verb, "c1", &network);
            assert_eq!(
                outcome.stderr.contains("cannot write a verbose log in"),
                is_told,
                "{what}: {outcome:?}"
            );
            outcome.success();
        }
    }
}

/// A line as long as an error may make it is one write, as a short one is.
#[test]
fn lines_of_sixteen_processes_at_once_stay_whole() {
    const CALLS: usize = 8;
    const LENGTH: usize = 8_000;
    let (world, host) = (World::new(), Host::new());
    // Each container's message is its own number, over and over.
    world.delegate(
        "a",
        &format!(
            "m=$(printf \"%{LENGTH}s\" '' | sed \"s/ /${{CNI_CONTAINERID#c}}/g\")\n\
             case $CNI_COMMAND in ADD) printf '{{\"code\":100,\"msg\":\"<%s>\"}}' \"$m\"; exit 1;; esac"
        ),
    );
    let network = with(&world.network(json!(["a"])), "verbose", true);
    std::thread::scope(|scope| {
        for digit in "0123456789abcdef".chars() {
            let (world, host, network) = (&world, &host, &network);
            scope.spawn(move || {
                for _ in 0..CALLS {
                    host.call(world, "ADD", &format!("c{digit}"), network).failure();
                }
            });
        }
    });
    let text = log(&host, "ipam-delegated");
    assert!(text.ends_with('\n'));
    let mut whole = 0;
    for line in text.lines() {
        let (time, _, subject, message) = parts(line);
        assert!(is_utc(time), "{:.120}", line);
        let digit = subject.strip_prefix("ADD c").and_then(|s| s.strip_suffix("/eth0")).unwrap();
        if let Some((_, rest)) = message.split_once('<') {
            let (body, _) = rest.split_once('>').expect("the whole message");
            assert!(body.len() == LENGTH && body.replace(digit, "").is_empty(), "{:.120}", line);
            whole += 1;
        }
    }
    // Once as the delegate's failure, once as the call's.
    assert_eq!(whole, 16 * CALLS * 2);
}

#[test]
fn a_secret_of_the_configuration_is_in_no_log_and_no_error() {
    const SECRET: &str = "Xy7-never-shown";
    let (world, base) = world();
    let host = Host::new();
    host.settings(&json!({"verbose": true, "gcGrace": "0s"}));
    world
        .full("full")
        .delegate("garbage", "echo garbage")
        .delegate("hangs", "case $CNI_COMMAND in ADD) sleep 9;; esac");
    let chain = |delegates: Value| {
        let mut network = with(&base, "delegates", delegates);
        network["cniVersion"] = json!("1.1.0");
        network["ipam"]["password"] = json!(SECRET);
        network["ipam"]["etcd"] = json!({"auth": [{"token": SECRET}], "client_secret": SECRET});
        network["clientPasswd"] = json!(SECRET);
        network["cni.dev/valid-attachments"] = json!([]);
        network
    };
    let with_secret = |name: &str| json!({"type": name, "token": SECRET, "timeout": "300ms"});
    let mut mistaken = vec![
        // An object where an array belongs, an array where an object belongs, a name forgotten.
        chain(with_secret("host-local")),
        chain(json!([[with_secret("host-local")]])),
        chain(json!([{"token": SECRET}])),
        chain(json!([{"type": {"token": SECRET}}])),
        chain(json!([with_secret("nobody-installed-it")])),
    ];
    let mut no_object = chain(json!(["host-local"]));
    no_object["ipam"] = json!([no_object["ipam"]]);
    mistaken.push(no_object);
    let mut no_name = chain(json!(["host-local"]));
    no_name["name"] = json!({"token": SECRET});
    mistaken.push(no_name);
    mistaken.push(with(
        &chain(json!(["ipam-ds-static", "host-local"])),
        "ranges",
        json!({"token": SECRET}),
    ));
    mistaken.push(with(
        &chain(json!(["ipam-ds-static", "host-local"])),
        "pools",
        json!([{"token": SECRET}]),
    ));
    let good = [
        chain(json!(["ipam-ds-static", with_secret("host-local")])),
        chain(json!(["ipam-ds-static", with_secret("full")])),
        chain(json!([with_secret("garbage")])),
        chain(json!([with_secret("hangs")])),
    ];
    let mut shown = String::new();
    let mut failed = 0;
    for (i, network) in good.iter().chain(&mistaken).enumerate() {
        for verb in ["ADD", "CHECK", "DEL", "STATUS", "GC", "ADD", "GC"] {
            let mut command = host.command(&world, verb, &format!("c{i}"));
            command.env("IPAM_DELEGATED_LOG", "debug");
            let outcome = wait(start(command, network));
            failed += usize::from(outcome.exit != Some(0));
            shown.extend([outcome.stdout, outcome.stderr]);
        }
    }
    assert!(failed > mistaken.len(), "{failed}");
    for program in ["ipam-delegated", "ipam-ds-static"] {
        shown.push_str(&log(&host, program));
    }
    assert!(shown.contains("[DEBUG]") && shown.contains("[ERROR]"));
    for line in shown.lines() {
        assert!(!line.contains(SECRET), "{line}");
    }
}

#[test]
fn the_logrotate_snippet_is_one_for_every_program_of_ours() {
    let text = include_str!("../examples/logrotate.conf");
    assert!(text.contains("\n/var/log/cni/ipam-*.log {\n") && text.trim_end().ends_with('}'));
}
