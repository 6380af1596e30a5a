//! The README says what the program and etcd do: its commands are run, its networks are used.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;
use std::process::Command;

use ipam_testkit::certificates::{CLIENT, Certificates};
use ipam_testkit::etcd::{ClusterId, Etcd, Tls};
use ipam_testkit::pages::Page;
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

const CONFLIST: &str = "/etc/cni/net.d/10-racknet.conflist";

fn readme() -> Page {
    Page::read("delegates/ipam-da-etcd/README.md")
}

/// The commands below a heading that begin with this program, each with what it prints.
fn commands(heading: &str, program: &str) -> Vec<(String, String)> {
    let mut commands = readme().commands(heading, "console");
    commands.retain(|(command, _)| command.starts_with(program));
    assert!(!commands.is_empty(), "{heading}: {program}");
    commands
}

/// What differs from run to run becomes a word: times, ages, revisions and ports.
fn masked(text: &str) -> String {
    let mut words = Vec::new();
    for line in text.lines() {
        let mut line = line.replace("127.0.0.1:2379", "SERVER");
        for (key, end) in [("\"confirmed\":", ','), ("\"taken\":", '}'), ("revision ", '\n')] {
            if let Some((before, rest)) = line.clone().split_once(key) {
                let after = rest.find(end).map_or("", |place| &rest[place..]);
                line = format!("{before}{key}N{after}");
            }
        }
        let is_age = |word: &str| {
            word.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|n| n.parse::<u8>().is_ok())
        };
        let shown = line.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word });
        words.push(shown.collect::<Vec<_>>().join(" "));
    }
    words.join("\n")
}

/// A shell in which `etcdctl` talks to a server and the programs of the workspace are found.
struct Shell {
    world: World,
    variables: Vec<(&'static str, String)>,
    /// What stands for `CONFLIST`.
    file: String,
}

impl Shell {
    fn new(etcd: &Etcd) -> Self {
        let world = World::new();
        for program in ["ipam-delegated", "ipam-ds-static", "ipam-da-etcd"] {
            world.install(&binary(program));
        }
        let file = world.path("racknet.conflist").display().to_string();
        Self { world, variables: vec![("ETCDCTL_ENDPOINTS", etcd.url())], file }
    }

    fn network(&self, etcd: &Etcd, node: &str) -> Value {
        json!({"cniVersion": "1.0.0", "name": "racknet", "type": "bridge", "ipam": {
            "type": "ipam-da-etcd", "ranges": [[{"subnet": "10.1.0.0/16"}]], "node": node,
            "stateDir": self.world.path(node), "etcd": {"endpoints": [etcd.url()]}}})
    }

    fn call(&self, program: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let command = self.world.command_of(&self.world.path("bin").join(program), verb, container);
        wait(start(command, network))
    }

    /// Runs each command, and compares what it prints.
    #[track_caller]
    fn try_all(&self, etcd: &Etcd, commands: &[(String, String)]) {
        for (command, printed) in commands {
            let path = format!("{}:/usr/bin:/bin", self.world.path("bin").display());
            let mut shell = Command::new("sh");
            shell.args(["-c", &command.replace(CONFLIST, &self.file)]);
            let shell = shell.env_clear().env("PATH", path).env("ETCDCTL_API", "3");
            let output = shell.envs(self.variables.iter().cloned()).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
            let found = String::from_utf8(output.stdout).unwrap();
            let found = found.replace(&etcd.url(), "127.0.0.1:2379");
            assert_eq!(masked(&found), masked(printed), "{command}");
        }
    }
}

#[test]
fn the_commands_print_what_is_shown() {
    let etcd = Etcd::start();
    let shell = Shell::new(&etcd);
    for (container, node, address) in [
        ("3f9c1e", "rack1-7", "10.1.0.2"),
        ("c0ffee", "rack2-1", "10.1.0.3"),
        ("77ab02", "rack1-7", "10.1.0.7"),
    ] {
        let mut network = shell.network(&etcd, node);
        network["args"] = json!({"cni": {"ips": [address]}});
        shell.call("ipam-da-etcd", "ADD", container, &network).success();
    }
    let mut plugin = shell.network(&etcd, "rack1-7");
    plugin.as_object_mut().unwrap().remove("name");
    let conflist = json!({"cniVersion": "1.0.0", "name": "racknet", "plugins": [plugin]});
    fs::write(&shell.file, conflist.to_string()).unwrap();

    shell.try_all(&etcd, &commands("Keys and values", "etcdctl get"));
    shell.try_all(&etcd, &commands("Verbs", "ipam-da-etcd "));
    let left = etcd.keys("/ipam-delegated/networks/racknet/leases/");
    assert_eq!(left.len(), 2, "{left:?}");
    let rest: Vec<_> = ["etcdctl compact", "etcdctl defrag", "etcdctl alarm"]
        .iter()
        .flat_map(|start| commands("Running etcd for it", start))
        .collect();
    shell.try_all(&etcd, &rest);
}

#[test]
fn the_role_lets_a_certificate_do_everything_below_the_prefix_and_nothing_else() {
    assert_eq!(CLIENT, "ipam");
    let certificates = Certificates::make();
    let [server, client] = [certificates.server(), certificates.client()];
    let tls = Tls {
        authority: certificates.authority(),
        certificate: server.certificate,
        key: server.key,
        client_authority: Some(certificates.authority()),
        client: Some((client.certificate.clone(), client.key.clone())),
    };
    let etcd = Etcd::builder().tls(tls).start();
    let mut shell = Shell::new(&etcd);
    let path = |path: &Path| path.display().to_string();
    shell.variables.extend([
        ("ETCDCTL_CACERT", path(&certificates.authority())),
        ("ETCDCTL_CERT", path(&client.certificate)),
        ("ETCDCTL_KEY", path(&client.key)),
    ]);
    shell.try_all(&etcd, &commands("Who calls", "etcdctl"));
    demand_rights(&etcd);

    let mut network = shell.network(&etcd, "rack1-7");
    let section = &mut network["ipam"]["etcd"];
    section["certFile"] = json!(client.certificate);
    section["keyFile"] = json!(client.key);
    section["trustedCaFile"] = json!(certificates.authority());
    let call = |verb: &str, network: &Value| shell.call("ipam-da-etcd", verb, "c1", network);
    network["prevResult"] = call("ADD", &network).success();
    call("CHECK", &network).success();
    fs::write(&shell.file, network.to_string()).unwrap();
    let mut list = Command::new(shell.world.path("bin/ipam-da-etcd"));
    let listed = list.args(["list", "--config", &shell.file]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    call("DEL", &network).success();
    network.as_object_mut().unwrap().remove("prevResult");
    network["cniVersion"] = json!("1.1.0");
    call("STATUS", &network).success();
    network["cni.dev/valid-attachments"] = json!([]);
    call("GC", &network).success();

    network["ipam"]["etcd"]["prefix"] = json!("/ipam-delegated-too");
    let (code, text) = call("ADD", &network).failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.contains("permission denied") && text.contains("grant-permission"), "{text}");
}

/// From here on etcd asks who calls.
fn demand_rights(etcd: &Etcd) {
    for arguments in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcd.etcdctl(arguments);
    }
}

/// A layout of an older plugin, with what the keys of addresses begin with.
const OLD: [(&str, &str); 2] =
    [("cni-ipam-etcd", "/etcd-cni/networks/racknet/used/"), ("host-etcd", "/ipam/ips/")];

#[test]
fn the_old_commands_show_every_lease() {
    let etcd = Etcd::start();
    let shell = Shell::new(&etcd);
    for (layout, leases) in OLD {
        etcd.put(&format!("{leases}10.1.0.2"), "3f9c1e");
        let mut network = shell.network(&etcd, "rack1-7");
        network["ipam"]["etcd"]["layout"] = json!(layout);
        network["ipam"]["stateDir"] = json!(shell.world.path(layout));
        network["args"] = json!({"cni": {"ips": ["10.1.0.7"]}});
        shell.call("ipam-da-etcd", "ADD", "77ab02", &network).success();
    }
    shell.try_all(&etcd, &commands("The layouts of two older plugins", "etcdctl get"));
    // The table names every key that is there, and the lock.
    let page = readme();
    let table = page.section("The layouts of two older plugins");
    for key in etcd.keys("/").iter().filter(|key| !key.ends_with("/10.1.0.2")) {
        assert!(table.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn a_section_stands_beside_the_keys_of_an_older_plugin() {
    let etcd = Etcd::start();
    let shell = Shell::new(&etcd);
    let page = readme();
    let keys = page.blocks("Network configuration reference", "json")[0];
    let keys = keys.replace("http://10.0.0.1:2379", &etcd.url());
    let keys: Value = serde_json::from_str(&format!("{{{keys}}}")).unwrap();
    let mut network = shell.network(&etcd, "rack1-7");
    for (key, value) in keys.as_object().unwrap() {
        network["ipam"][key] = value.clone();
    }
    shell.call("ipam-da-etcd", "ADD", "c1", &network).success();
    assert_eq!(etcd.keys(OLD[0].1).len(), 1);
}

/// Two interfaces, one of which goes, and a container that the older plugin gave its address.
#[test]
fn each_role_for_an_old_layout_lets_everything_be_done() {
    for (layout, leases) in OLD {
        for (role, is_indexed) in [(layout.to_owned(), true), (format!("{layout}-alone"), false)] {
            let etcd = Etcd::builder().flag("--bcrypt-cost=4").start();
            let shell = Shell::new(&etcd);
            etcd.put(&format!("{leases}10.1.0.9"), "before");
            shell.try_all(&etcd, &commands("Rights", "etcdctl role"));
            etcd.etcdctl(&["user", "add", "cni:secret"]);
            etcd.etcdctl(&["user", "grant-role", "cni", &role]);
            demand_rights(&etcd);
            let keys = |prefix: &str| {
                let arguments = ["get", "--prefix", "--keys-only", prefix];
                let shown = etcd.etcdctl_as(&["--user", "root:root"], &arguments).stdout;
                String::from_utf8(shown).unwrap().split_whitespace().count()
            };

            let mut network = shell.network(&etcd, "rack1-7");
            let password = shell.world.path("password");
            fs::write(&password, "secret\n").unwrap();
            let section = &mut network["ipam"]["etcd"];
            section["layout"] = json!(layout);
            section["username"] = json!("cni");
            section["passwordFile"] = json!(password);
            section["resultCache"] = json!(shell.world.path("results"));
            let call = |verb: &str, container: &str, ifname: &str, network: &Value| {
                let program = shell.world.path("bin/ipam-da-etcd");
                let mut command = shell.world.command_of(&program, verb, container);
                command.env("CNI_IFNAME", ifname);
                wait(start(command, network))
            };
            let [first, second] =
                ["eth0", "eth1"].map(|ifname| call("ADD", "c1", ifname, &network).ips());
            assert_ne!(first, second, "{role}");
            assert_eq!(call("ADD", "c1", "eth0", &network).ips(), first, "{role}");
            call("DEL", "c1", "eth0", &network).success();
            assert_eq!(keys(leases), 2, "{role}");
            assert_eq!(call("ADD", "c1", "eth1", &network).ips(), second, "{role}");
            call("DEL", "before", "eth0", &network).success();
            assert_eq!(keys(leases), 1, "{role}");
            let index = if layout == "host-etcd" { "/ipam" } else { "/etcd-cni/networks/racknet" };
            let index = keys(&format!("{index}/ipam-delegated/"));
            assert_eq!(index, if is_indexed { 2 } else { 0 }, "{role}");

            let owners = shell.world.path("rack1-7/etcd/owners/c1/racknet/eth1");
            assert_eq!(owners.exists(), !is_indexed, "{}", owners.display());
            network["cniVersion"] = json!("1.1.0");
            call("STATUS", "", "", &network).success();
            network["cni.dev/valid-attachments"] = json!([]);
            call("GC", "", "", &network).success();
            fs::write(&shell.file, network.to_string()).unwrap();
            let mut list = Command::new(shell.world.path("bin/ipam-da-etcd"));
            let listed = list.args(["list", "--config", &shell.file]).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            assert_eq!(listed.contains("rack1-7"), is_indexed, "{role}: {listed}");
        }
    }
}

#[test]
fn the_networks_work() {
    let etcd = Etcd::start();
    let shell = Shell::new(&etcd);
    let page = readme();
    let networks = ["Example configuration", "Without a chain"]
        .map(|heading| serde_json::from_str::<Value>(page.blocks(heading, "json")[0]).unwrap());
    let expected: [&[&str]; 2] = [&["10.1.0.2/16"], &["10.1.0.3/16", "fd00:1::2/64"]];
    assert_eq!(networks.len(), expected.len());
    for (mut network, expected) in networks.into_iter().zip(expected) {
        let program = network["ipam"]["type"].as_str().unwrap().to_owned();
        network["ipam"]["etcd"] = json!({"endpoints": [etcd.url()]});
        network["ipam"]["stateDir"] = json!(shell.world.path("state"));
        assert_eq!(shell.call(&program, "ADD", &program, &network).ips(), expected, "{program}");
    }
}

#[test]
fn after_a_restore_the_commands_give_nothing_away_that_is_held() {
    let etcd = Etcd::start();
    let shell = Shell::new(&etcd);
    let mut network = shell.network(&etcd, "");
    let ipam = network["ipam"].as_object_mut().unwrap();
    ipam.insert("type".to_owned(), json!("ipam-delegated"));
    ipam.insert("delegates".to_owned(), json!(["ipam-ds-static", "ipam-da-etcd"]));
    ipam.remove("node");
    let state = shell.world.path("state").display().to_string();
    ipam.insert("stateDir".to_owned(), json!(state));
    let conf_dir = shell.world.path("net.d");
    fs::create_dir(&conf_dir).unwrap();
    fs::write(conf_dir.join("10-racknet.conf"), network.to_string()).unwrap();
    let add = |container: &str| shell.call("ipam-delegated", "ADD", container, &network);

    assert_eq!(add("3f9c1e").ips(), ["10.1.0.2/16"]);
    let snapshot = etcd.snapshot();
    assert_eq!(add("77ab02").ips(), ["10.1.0.3/16"]);
    etcd.restore(&snapshot, ClusterId::Other);
    let (code, text) = add("c0ffee").failure();
    assert!(code == 11 && text.contains("ipam-delegated reassert"), "{code} {text}");

    let reassert = commands("A store that was restored or swapped", "ipam-delegated reassert");
    assert_eq!(reassert.len(), 2);
    for (command, _) in reassert {
        let mut shell_command = Command::new(shell.world.path("bin/ipam-delegated"));
        shell_command.args(command.split_whitespace().skip(1)).arg("--state-dir").arg(&state);
        shell_command
            .arg("--conf-dir")
            .arg(&conf_dir)
            .arg("--cni-path")
            .arg(shell.world.path("bin"));
        let output = shell_command.env_remove("CNI_COMMAND").output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let trusts = !command.contains("--claim-only");
        let leases = etcd.keys("/ipam-delegated/networks/racknet/leases/");
        assert_eq!(leases.len(), 2, "{leases:?}");
        let outcome = add("c0ffee");
        assert_eq!(outcome.exit == Some(0), trusts, "{command}: {outcome:?}");
    }
    assert_eq!(add("c0ffee").ips(), ["10.1.0.4/16"]);
}

#[test]
fn every_key_of_the_section_is_in_the_table() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config.rs");
    let source = fs::read_to_string(source).unwrap();
    let (_, section) = source.split_once("struct Section {").unwrap();
    let (section, _) = section.split_once('}').unwrap();
    let fields: Vec<String> = section
        .lines()
        .filter_map(|line| line.trim().split_once(':'))
        .map(|(field, _)| {
            let mut words = field.split('_').map(str::to_owned);
            let first = words.next().unwrap();
            words.fold(first, |key, word| key + &word[..1].to_uppercase() + &word[1..])
        })
        .collect();
    let page = readme();
    let section = page.section("Network configuration reference");
    let (_, table) = section.split_once("| key | means | default |\n").unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let documented: Vec<&str> =
        rows.map(|row| row.trim_start_matches("| `").split('`').next().unwrap()).collect();
    assert_eq!(documented, fields);
}
