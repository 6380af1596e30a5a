//! Files in three classes: what decides what runs as root, what our programs write, and what they
//! only read. And the node's identity, which is one of the second class.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ipam_testkit::world::{Host, Outcome, World, binary, names, start, wait, with, without};
use serde_json::{Value, json};

const STATE: &str = "/var/lib/cni/ipam-delegated";
const LOGS: &str = "/var/log/cni";

/// A world with a chain of our own programs, and its network.
fn world() -> (World, Value) {
    let world = World::new();
    for name in ["ipam-ds-static", "ipam-da-local"] {
        world.install(&binary(name));
    }
    let network = world.network(json!(["ipam-ds-static", "ipam-da-local"]));
    (world, with(&network, "ranges", json!([[{"subnet": "10.88.0.0/24"}]])))
}

/// The same with the state where the host-wide settings say.
fn of_host(network: &Value) -> Value {
    without(network, &["stateDir"])
}

/// A call in the namespace that is killed after 20 s.
fn call(host: &Host, world: &World, verb: &str, container: &str, network: &Value) -> Outcome {
    in_shell(host, world, "exec timeout -s KILL 20 \"$0\"", verb, container, network)
}

/// A call that a line of shell makes, `$0` the program.
fn in_shell(
    host: &Host,
    world: &World,
    line: &str,
    verb: &str,
    container: &str,
    network: &Value,
) -> Outcome {
    let outside = world.command(verb, container);
    let mut command = host.enter("/bin/sh");
    command.args(["-c", line]).arg(outside.get_program()).env_clear();
    command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start(command, network))
}

/// A verb of the operator's in the namespace, killed after 20 s.
fn typed(host: &Host, words: &[&str]) -> Outcome {
    let mut command = host.enter("timeout");
    command.args(["-s", "KILL", "20"]).arg(binary("ipam-delegated")).args(words);
    wait(
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    )
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_fifo_or_a_link_as_verbose_log_is_skipped_and_holds_up_no_call() {
    for (what, made) in [("not a regular file", "mkfifo"), ("is a symbolic link", "ln -s victim")] {
        let ((world, network), host) = (world(), Host::new());
        let network = with(&of_host(&network), "verbose", true);
        host.shell(&format!(
            "cd {LOGS}; echo own >victim; {made} ipam-delegated.log; {made} ipam-da-local.log"
        ));
        for verb in ["ADD", "CHECK", "DEL"] {
            let begun = Instant::now();
            let outcome = call(&host, &world, verb, "c1", &network);
            assert!(begun.elapsed() < Duration::from_secs(10), "{verb} waited");
            for name in ["ipam-delegated", "ipam-da-local"] {
                let told = format!("{name}: cannot write a verbose log in {LOGS}: {what}");
                assert_eq!(outcome.stderr.matches(&told).count(), 1, "{told}: {outcome:?}");
            }
            outcome.success();
        }
        assert_eq!(fs::read_to_string(host.path(LOGS).join("victim")).unwrap(), "own\n");
        assert!(host.path(LOGS).join("ipam-ds-static.log").exists());
    }
}

#[test]
fn folders_have_their_modes_under_any_umask() {
    for umask in ["0", "022", "077"] {
        let ((world, network), host) = (world(), Host::new());
        host.settings(&json!({"verbose": true, "logDir": "/var/log/cni/deep/log"}));
        let data = world.path("data/deep");
        let network = with(&of_host(&network), "dataDir", data.to_str().unwrap());
        let line = format!("umask {umask}; exec \"$0\"");
        in_shell(&host, &world, &line, "ADD", "c1", &network).success();
        for (folder, expected) in [
            (host.path(&format!("{LOGS}/deep")), 0o755),
            (host.path(&format!("{LOGS}/deep/log")), 0o755),
            (data.clone(), 0o755),
            (data.join("net"), 0o755),
            (host.path(STATE), 0o700),
            (host.path(&format!("{STATE}/attachments/net")), 0o700),
            (host.path(&format!("{STATE}/local/net")), 0o700),
        ] {
            assert_eq!(mode(&folder), expected, "{} under umask {umask}", folder.display());
        }
        for file in ["node", "attachments/net/c1:eth0"] {
            assert_eq!(
                mode(&host.path(&format!("{STATE}/{file}"))),
                0o600,
                "{file} under umask {umask}"
            );
        }
        let log = host.path(&format!("{LOGS}/deep/log/ipam-delegated.log"));
        assert_eq!(mode(&log) & 0o137, 0, "the log under umask {umask}");
    }
}

#[test]
fn nothing_is_written_through_a_link_beside_the_leases() {
    let (world, network) = world();
    world.call("ADD", "c1", &network).success();
    let (folder, victim) = (world.path("data/net"), world.path("victim"));
    fs::write(&victim, "root's own file").unwrap();
    for name in ["last_reserved_ip.0", "lock"] {
        let aside = world.path("aside");
        fs::rename(folder.join(name), &aside).unwrap();
        std::os::unix::fs::symlink(&victim, folder.join(name)).unwrap();
        let outcome = world.call("ADD", "c2", &network);
        // A cursor is a hint, the lock is not.
        let refused = outcome.stdout.contains("is a symbolic link: remove it");
        assert_eq!(
            (refused, outcome.exit),
            if name == "lock" { (true, Some(1)) } else { (false, Some(0)) }
        );
        assert_eq!(fs::read_to_string(&victim).unwrap(), "root's own file", "{name}");
        fs::rename(&aside, folder.join(name)).unwrap();
        world.call("DEL", "c2", &network).success();
    }
    world.call("ADD", "c2", &network).success();
}

#[test]
fn a_fifo_instead_of_a_record_is_an_error_and_blocks_no_call() {
    let ((world, network), host) = (world(), Host::new());
    let network = of_host(&network);
    call(&host, &world, "ADD", "c2", &network).success();
    host.shell(&format!("mkfifo {STATE}/attachments/net/c1:eth0"));
    let begun = Instant::now();
    let outcome = typed(&host, &["attachments"]);
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    let line = outcome.stdout.lines().find(|line| line.contains("c1")).unwrap();
    assert!(line.contains("unreadable") && outcome.stdout.contains("c2"), "{outcome:?}");
    let (code, text) = call(&host, &world, "ADD", "c1", &network).failure();
    assert_eq!(code, 113, "{text}");
    assert!(text.contains("not a regular file"), "{text}");
    let mut list = network.clone();
    list["cni.dev/valid-attachments"] = json!([{"containerID": "c2", "ifname": "eth0"}]);
    let outcome = call(&host, &world, "DEL", "c1", &network);
    assert!(outcome.stderr.contains("not a regular file"), "{outcome:?}");
    assert!(call(&host, &world, "GC", "c1", &list).exit.is_some(), "GC hangs");
    assert_eq!(typed(&host, &["reap", "--no-cache"]).exit, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(20), "something waited");
}

#[test]
fn a_fifo_in_the_place_of_the_identity_is_an_error_and_holds_nobody_up() {
    let ((world, network), host) = (world(), Host::new());
    let network = of_host(&network);
    host.shell(&format!("mkdir {STATE}; mkfifo {STATE}/node"));
    let begun = Instant::now();
    let (code, text) = call(&host, &world, "ADD", "c1", &network).failure();
    assert_eq!(code, 5, "{text}");
    assert!(
        text.contains(&format!("{STATE}/node")) && text.contains("not a regular file"),
        "{text}"
    );
    // A DEL of this node's own leases needs no identity.
    call(&host, &world, "DEL", "c1", &network).success();
    assert!(begun.elapsed() < Duration::from_secs(20), "something waited");
}

#[test]
fn who_may_only_read_the_state_folder_keeps_no_first_add_from_an_identity() {
    let ((world, network), host) = (world(), Host::new());
    host.shell(&format!("mkdir -m 755 {STATE}; chmod 755 /var/lib/cni"));
    let mut holder = host.enter("setpriv");
    let mut holder = holder
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "flock", STATE])
        .args(["sh", "-c", "echo held; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();
    let begun = Instant::now();
    call(&host, &world, "ADD", "c1", &of_host(&network)).success();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    ipam_testkit::world::kill_now(&mut holder);
}

/// Host-wide settings that no program takes: whether they were read shows in the error.
const READ: &str = r#"{"readAllRight": 1}"#;

/// What a call makes of host-wide settings that lie elsewhere: the shell runs in `/etc/cni`, where `w` is
/// a folder to work in and `settings` has content.
fn settings_by(script: &str) -> String {
    let (world, host) = (World::new(), Host::new());
    host.shell(&format!(
        "chmod 755 /etc/cni; cd /etc/cni; mkdir w; printf '{READ}' >settings; {script}"
    ));
    let (code, text) = call(&host, &world, "DEL", "c1", &network_of_nothing()).failure();
    assert_eq!(code, 7, "{text}");
    text
}

fn network_of_nothing() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
}

#[test]
fn settings_are_refused_if_another_user_owns_a_part_of_their_path() {
    let link = "ln -s w/l ipam-delegated.json; ln -s ../settings w/l";
    for (script, refused) in [
        // A link between two links.
        (format!("{link}; chown -h 65534 w/l"), "/etc/cni/w/l belongs to another user"),
        (format!("{link}; chown 65534 w"), "/etc/cni/w belongs to another user"),
        (format!("{link}; chmod 775 w"), "/etc/cni/w is writable by users other"),
        // A folder above the file's.
        (
            "mkdir w/sub; mv settings w/sub; ln -s w/sub/settings ipam-delegated.json; chown 65534 w".into(),
            "/etc/cni/w belongs to another user",
        ),
        ("mv settings ipam-delegated.json; chmod 777 .".into(), "/etc/cni is writable by users other"),
        ("mv settings ipam-delegated.json; chown 65534 ipam-delegated.json".into(), "ipam-delegated.json belongs"),
        ("mv settings ipam-delegated.json; chmod 664 ipam-delegated.json".into(), "ipam-delegated.json is writable by users other"),
    ] {
        let text = settings_by(&script);
        assert!(text.contains(refused) && !text.contains("readAllRight"), "{script}: {text}");
    }
}

#[test]
fn settings_are_read_from_where_systems_put_them() {
    for (what, script) in [
        ("root's file", "mv settings ipam-delegated.json".to_owned()),
        (
            "a store of packages that a group may add to",
            "mkdir -p nix/store/1-conf; mv settings nix/store/1-conf/conf; chown root:30000 nix/store; chmod 1775 nix/store; \
             ln -s /etc/cni/nix/store/1-conf/conf ipam-delegated.json"
                .to_owned(),
        ),
        (
            "a Secret's volume",
            "chmod 1777 w; mkdir w/..2024_01_02; mv settings w/..2024_01_02/conf; ln -s ..2024_01_02 w/..data; \
             ln -s ..data/conf w/conf; ln -s w/conf ipam-delegated.json"
                .to_owned(),
        ),
    ] {
        let text = settings_by(&script);
        assert!(text.contains("/etc/cni/ipam-delegated.json: readAllRight"), "{what}: {text}");
    }
}

#[test]
fn inside_a_user_namespace_the_owner_of_the_root_folder_is_trusted() {
    let (world, host) = (World::new(), Host::new());
    fs::write(host.path("/etc/cni/ipam-delegated.json"), READ).unwrap();
    for folder in [world.path(""), world.path("bin")] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    let program = world.path("bin/ipam-delegated");
    fs::copy(binary("ipam-delegated"), &program).unwrap();
    // Root's files, `/` among them, show the overflow user as their owner there.
    let line = format!(
        "exec setpriv --reuid=1234 --regid=1234 --clear-groups unshare -Ur {}",
        program.display()
    );
    let (code, text) = in_shell(&host, &world, &line, "DEL", "c1", &network_of_nothing()).failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("/etc/cni/ipam-delegated.json: readAllRight"), "{text}");
}

#[test]
fn settings_that_are_no_regular_file_or_too_long_are_an_error_and_hold_nobody_up() {
    for (made, told) in [
        ("mkfifo ipam-delegated.json", "not a regular file"),
        ("ln -s /dev/zero ipam-delegated.json", "not a regular file"),
        ("truncate -s 2M ipam-delegated.json", "larger than 1 MiB"),
    ] {
        let (world, host) = (World::new(), Host::new());
        host.shell(&format!("cd /etc/cni; {made}"));
        let begun = Instant::now();
        let (_, text) = call(&host, &world, "DEL", "c1", &network_of_nothing()).failure();
        assert!(
            text.contains(told) || text.contains("is writable by users other"),
            "{made}: {text}"
        );
        assert!(begun.elapsed() < Duration::from_secs(10), "{made}");
    }
}

/// Sets the machine-id of the namespace; empty is that of an image that was not started yet.
fn machine_id(host: &Host, id: &str) {
    host.shell(&format!(
        "printf '{id}' >/var/lib/cni/id; mount --bind /var/lib/cni/id /etc/machine-id"
    ));
}

const IDS: [&str; 2] = ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];

fn identity(host: &Host) -> Value {
    serde_json::from_slice(&fs::read(host.path(&format!("{STATE}/node"))).unwrap()).unwrap()
}

/// A host on which a container was added before there was a machine-id.
fn added_without_a_machine_id() -> (World, Value, Host) {
    let ((world, network), host) = (world(), Host::new());
    let network = of_host(&network);
    machine_id(&host, "");
    call(&host, &world, "ADD", "c1", &network).success();
    (world, network, host)
}

#[test]
fn an_identity_adopts_the_machine_id_that_appears_in_the_same_boot() {
    let (world, network, host) = added_without_a_machine_id();
    let before = identity(&host);
    machine_id(&host, IDS[0]);
    let outcome = call(&host, &world, "ADD", "c2", &network);
    assert!(!outcome.stderr.contains("another machine"), "{outcome:?}");
    outcome.success();
    assert_eq!(identity(&host), json!({"uuid": before["uuid"], "machineId": IDS[0]}));
    let listed = typed(&host, &["attachments"]).stdout;
    assert!(listed.contains("c1") && listed.contains("c2"), "{listed}");
    // From now on it is bound.
    machine_id(&host, IDS[1]);
    call(&host, &world, "ADD", "c3", &network).success();
    assert_ne!(identity(&host)["uuid"], before["uuid"]);
}

#[test]
fn a_machine_id_that_is_gone_or_empty_later_takes_no_identity_away() {
    let ((world, network), host) = (world(), Host::new());
    let network = of_host(&network);
    machine_id(&host, IDS[0]);
    call(&host, &world, "ADD", "c1", &network).success();
    let before = identity(&host);
    for id in ["", "uninitialized"] {
        machine_id(&host, id);
        let outcome = call(&host, &world, "ADD", "c2", &network);
        assert!(!outcome.stderr.contains("another machine"), "{outcome:?}");
        outcome.success();
        assert_eq!(identity(&host), before);
    }
}

#[test]
fn a_machine_id_that_appears_in_a_later_boot_is_a_clones_and_the_way_back_is_told() {
    let (world, network, host) = added_without_a_machine_id();
    let mut before = identity(&host);
    let uuid = before["uuid"].as_str().unwrap().to_owned();
    let path = host.path(&format!("{STATE}/node"));
    // An identity of an earlier release has no boot.
    for boot in [json!("00000000-0000-4000-8000-000000000000"), Value::Null] {
        before["bootId"] = boot;
        before.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        fs::write(&path, before.to_string()).unwrap();
        machine_id(&host, IDS[0]);
        let outcome = call(&host, &world, "ADD", "c2", &network);
        assert!(outcome.stderr.contains("came from another machine"), "{outcome:?}");
        outcome.success();
        assert_ne!(identity(&host)["uuid"], uuid.as_str());
        machine_id(&host, "");
        assert!(!typed(&host, &["attachments"]).stdout.contains("c1"));
        let aside = format!("{STATE}/attachments.{uuid}");
        host.shell("mkdir -p /etc/cni/net.d");
        fs::write(host.path("/etc/cni/net.d/1.conf"), network.to_string()).unwrap();
        let cni_path = world.path("bin").display().to_string();
        let words = ["lint", "net", "--conf-dir", "/etc/cni/net.d", "--cni-path", &cni_path];
        let mut commands = Vec::new();
        for words in [&["attachments"][..], &["reap", "--no-cache"], &words] {
            let outcome = typed(&host, words);
            let text = outcome.stdout + &outcome.stderr;
            let line = text.lines().find(|line| line.contains(&aside)).expect(&text);
            commands.push(line.split_once("take them back: ").unwrap().1.to_owned());
        }
        assert!(commands.iter().all(|command| *command == commands[0]), "{commands:?}");
        host.shell(&commands[0]);
        let listed = typed(&host, &["attachments"]);
        assert!(listed.stdout.contains("c1") && listed.stdout.contains("c2"), "{listed:?}");
        assert!(!listed.stderr.contains("take them back"), "{listed:?}");
        // The record names the node whose lease it is.
        call(&host, &world, "DEL", "c2", &network).success();
        host.shell(&format!("rm -r {STATE}/taken-back.*"));
    }
    call(&host, &world, "DEL", "c1", &network).success();
    let leases = names(&world.path("data/net"));
    assert!(!leases.iter().any(|name| name.starts_with("10.")), "{leases:?}");
}

#[test]
fn a_machine_id_that_cannot_be_read_is_not_taken_for_none() {
    let ((world, network), host) = (world(), Host::new());
    let network = of_host(&network);
    let outcome = in_shell(
        &host,
        &world,
        "exec strace -qq -o /dev/null -P /etc/machine-id -e inject=openat:error=EIO \"$0\"",
        "ADD",
        "c1",
        &network,
    );
    let (code, text) = outcome.failure();
    assert!(code == 5 && text.contains("/etc/machine-id"), "{code} {text}");
    assert!(!host.path(&format!("{STATE}/node")).exists());
}

#[test]
fn identities_of_this_release_and_of_the_one_before_are_one() {
    // The release before made it under the folder's lock and put it in place over what stood there.
    let ((world, network), host) = (world(), Host::new());
    host.shell(&format!("mkdir -m 700 {STATE}"));
    let script = format!(
        "echo locked; sleep 0.3; printf '{{\"uuid\":\"aaaa\",\"machineId\":\"%s\"}}' \"$(cat /etc/machine-id)\" \
         >{STATE}/node.new; mv {STATE}/node.new {STATE}/node"
    );
    let mut before = host.enter("flock");
    let mut before =
        before.args([STATE, "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut locked = [0; 7];
    std::io::Read::read_exact(before.stdout.as_mut().unwrap(), &mut locked).unwrap();
    call(&host, &world, "ADD", "c1", &of_host(&network)).success();
    assert!(before.wait().unwrap().success());
    assert_eq!(identity(&host)["uuid"], "aaaa");
    let record = host.path(&format!("{STATE}/attachments/net/c1:eth0"));
    assert!(fs::read_to_string(record).unwrap().contains("\"node\":\"aaaa\""));
}

#[test]
fn a_check_without_a_node_names_none() {
    let (world, network) = world();
    let network = with(&network, "stateDir", world.path("state/x").to_str().unwrap());
    fs::write(world.path("state/x"), "").unwrap();
    let mut network = network;
    network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": []});
    let (code, text) = world.call("CHECK", "c1", &network).failure();
    assert_eq!(code, 104, "{text}");
    assert!(text.contains("c1/eth0 on net holds no address"), "{text}");
}
