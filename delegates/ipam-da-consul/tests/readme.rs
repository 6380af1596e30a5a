//! The README says what the program and Consul do: its commands are run, its networks are used.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;
use std::process::Command;

use ipam_testkit::certificates::Certificates;
use ipam_testkit::consul::Consul;
use ipam_testkit::pages::Page;
use ipam_testkit::world::{Outcome, World, binary, start, wait, without};
use serde_json::{Value, json};

const CONFLIST: &str = "/etc/cni/net.d/10-racknet.conflist";
const TOKEN: &str = "/etc/cni/consul.token";
const BACKUP: &str = "/var/backups/consul.snap";

const POOL: &str = r#"[{"subnet": "10.1.0.0/16", "gateway": "10.1.0.1"}]"#;

fn readme() -> Page {
    Page::read("delegates/ipam-da-consul/README.md")
}

/// The commands below a heading that begin with this program, each with what it prints.
fn commands(heading: &str, program: &str) -> Vec<(String, String)> {
    let mut commands = readme().commands(heading, "console");
    commands.retain(|(command, _)| command.starts_with(program));
    assert!(!commands.is_empty(), "{heading}: {program}");
    commands
}

/// What differs from run to run becomes a word: times and ages.
fn masked(text: &str) -> String {
    let is_time = |word: &str| word.len() == 13 && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_age = |word: &str| {
        word.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|n| n.parse::<u8>().is_ok())
    };
    let word = |word: &str| {
        let plain: Vec<&str> = word
            .split_inclusive([':', ',', '}'])
            .map(|part| part.trim_end_matches([',', '}']))
            .collect();
        match word {
            age if is_age(age) => "AGE".to_owned(),
            _ => plain.iter().map(|part| if is_time(part) { "TIME" } else { part }).collect(),
        }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A shell in which `consul` talks to a server and the programs of the workspace are found.
struct Shell {
    world: World,
    variables: Vec<(&'static str, String)>,
}

impl Shell {
    fn new(consul: &Consul) -> Self {
        let world = World::new();
        for program in ["ipam-delegated", "ipam-ds-static", "ipam-da-consul"] {
            world.install(&binary(program));
        }
        std::os::unix::fs::symlink(ipam_testkit::consul::program(), world.path("bin/consul"))
            .unwrap();
        Self { world, variables: vec![("CONSUL_HTTP_ADDR", consul.endpoint())] }
    }

    /// A path of this test in place of one of the page.
    fn file(&self, name: &str) -> String {
        self.world
            .path(Path::new(name).file_name().unwrap().to_str().unwrap())
            .display()
            .to_string()
    }

    fn network(&self, consul: &Consul, node: &str) -> Value {
        json!({"cniVersion": "1.0.0", "name": "racknet", "type": "bridge", "ipam": {
            "type": "ipam-da-consul", "pools": [{"name": "web"}], "node": node,
            "stateDir": self.world.path(node), "consul_servers": [consul.url()]}})
    }

    fn call(&self, program: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let command = self.world.command_of(&self.world.path("bin").join(program), verb, container);
        wait(start(command, network))
    }

    /// Runs each command, and compares what it prints.
    #[track_caller]
    fn try_all(&self, commands: &[(String, String)]) {
        for (command, printed) in commands {
            let path = format!("{}:/usr/bin:/bin", self.world.path("bin").display());
            let mut here = command.clone();
            for file in [CONFLIST, TOKEN, BACKUP] {
                here = here.replace(file, &self.file(file));
            }
            let mut shell = Command::new("sh");
            shell.args(["-c", &here]).env_clear().env("PATH", path);
            let output = shell.envs(self.variables.iter().cloned()).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
            assert_eq!(
                masked(&String::from_utf8(output.stdout).unwrap()),
                masked(printed),
                "{command}"
            );
        }
    }
}

#[test]
fn the_commands_print_what_is_shown() {
    let consul = Consul::start();
    let shell = Shell::new(&consul);
    shell.try_all(&commands("Example configuration", "consul kv put"));
    assert_eq!(consul.get("ipam/web").as_deref(), Some(POOL));
    for (container, node, address) in [
        ("3f9c1e", "rack1-7", "10.1.0.2"),
        ("c0ffee", "rack2-1", "10.1.0.3"),
        ("77ab02", "rack1-7", "10.1.0.7"),
    ] {
        let mut network = shell.network(&consul, node);
        network["ipam"]["pools"][0]["requested-ip"] = json!(address);
        shell.call("ipam-da-consul", "ADD", container, &network).success();
    }
    let mut plugin = shell.network(&consul, "rack1-7");
    plugin.as_object_mut().unwrap().remove("name");
    let conflist = json!({"cniVersion": "1.0.0", "name": "racknet", "plugins": [plugin]});
    fs::write(shell.file(CONFLIST), conflist.to_string()).unwrap();

    shell.try_all(&commands("Pools and keys", "consul kv"));
    shell.try_all(&commands("Running Consul for it", "consul"));
    shell.try_all(&commands("Verbs", "ipam-da-consul "));
    assert_eq!(consul.keys("ipam/web/").len(), 3);
    // The table names every key that is there.
    let page = readme();
    let table = page.section("Pools and keys");
    let is_other = |key: &str| ["10.1.0.2", "3f9c1e", "rack2-1"].iter().any(|o| key.ends_with(o));
    let keys = consul.keys("ipam/");
    for key in keys.iter().filter(|key| !is_other(key.trim_end_matches("/eth0"))) {
        assert!(table.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn each_policy_lets_everything_be_done() {
    for (policy, is_indexed) in [("ipam", true), ("ipam-web", true), ("ipam-web-alone", false)] {
        let consul = Consul::builder().acl().start();
        let mut shell = Shell::new(&consul);
        shell.variables.push(("CONSUL_HTTP_TOKEN", consul.management().secret.clone()));
        for key in ["ipam/", "ipam/web/"] {
            consul.put(key, "");
        }
        consul.put("ipam/web", POOL);
        consul.put("ipam/web/10.1.0.9", r#"{"target": "before"}"#);
        shell.try_all(&commands("Rights", "consul acl policy"));
        // The token of the page has the first policy.
        let (command, printed) = commands("Rights", "consul acl token").remove(0);
        let command = command.replace("-policy-name ipam ", &format!("-policy-name {policy} "));
        shell.try_all(&[(command, printed)]);

        let mut network = shell.network(&consul, "rack1-7");
        network["ipam"]["consul"] =
            json!({"tokenFile": shell.file(TOKEN), "resultCache": shell.world.path("results")});
        let call = |verb: &str, container: &str, ifname: &str, network: &Value| {
            let program = shell.world.path("bin/ipam-da-consul");
            let mut command = shell.world.command_of(&program, verb, container);
            command.env("CNI_IFNAME", ifname);
            wait(start(command, network))
        };
        let [first, second] =
            ["eth0", "eth1"].map(|ifname| call("ADD", "c1", ifname, &network).ips());
        assert_ne!(first, second, "{policy}");
        network["prevResult"] = call("ADD", "c1", "eth0", &network).success();
        assert_eq!(network["prevResult"]["ips"][0]["address"], *first[0], "{policy}");
        call("CHECK", "c1", "eth0", &network).success();
        network.as_object_mut().unwrap().remove("prevResult");
        call("DEL", "c1", "eth0", &network).success();
        assert_eq!(call("ADD", "c1", "eth1", &network).ips(), second, "{policy}");
        call("DEL", "before", "eth0", &network).success();
        assert_eq!(consul.keys("ipam/web/").len(), 2, "{policy}");
        assert_eq!(consul.keys("ipam/.owners/").is_empty(), !is_indexed, "{policy}");

        network["cniVersion"] = json!("1.1.0");
        call("STATUS", "", "", &network).success();
        network["cni.dev/valid-attachments"] = json!([]);
        call("GC", "", "", &network).success();
        fs::write(shell.file(CONFLIST), network.to_string()).unwrap();
        let mut list = Command::new(shell.world.path("bin/ipam-da-consul"));
        let listed = list.args(["list", "--config", &shell.file(CONFLIST)]).output().unwrap();
        assert!(String::from_utf8(listed.stdout).unwrap().contains("rack1-7"), "{policy}");

        // And nothing else.
        let mut other = network.clone();
        other["ipam"]["pools"] = json!([{"name": "db"}]);
        consul.put("ipam/db", POOL);
        let outcome = call("ADD", "c2", "eth0", &other);
        assert_eq!(outcome.exit == Some(0), policy == "ipam", "{policy}: {outcome:?}");
        if policy != "ipam" {
            let (code, text) = outcome.failure();
            assert!(code == 103 && text.contains("does not let this token"), "{code}: {text}");
        }
    }
}

#[test]
fn the_networks_work() {
    let consul = Consul::start();
    consul.put("ipam/web", POOL);
    let shell = Shell::new(&consul);
    let page = readme();
    for (i, heading) in (2..).zip(["Example configuration", "Without a chain"]) {
        let mut network: Value = serde_json::from_str(page.blocks(heading, "json")[0]).unwrap();
        let program = network["ipam"]["type"].as_str().unwrap().to_owned();
        network["ipam"]["consul_servers"] = json!([consul.url()]);
        network["ipam"]["stateDir"] = json!(shell.world.path("state"));
        let given = shell.call(&program, "ADD", &program, &network).success();
        assert_eq!(given["ips"][0]["address"], format!("10.1.0.{i}/16"), "{heading}");
        assert_eq!(given["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]), "{heading}");
    }
}

#[test]
fn the_example_works_with_a_token_over_tls() {
    let certificates = Certificates::make();
    let server = certificates.server();
    let tls = ipam_testkit::consul::Tls {
        authority: certificates.authority(),
        certificate: server.certificate,
        key: server.key,
        verify_incoming: false,
    };
    let consul = Consul::builder().acl().tls(tls).start();
    consul.put("ipam/web", POOL);
    let shell = Shell::new(&consul);
    let example = "../../examples/65-ipam-delegated-consul.conflist";
    let example = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(example)).unwrap();
    let conflist: Value = serde_json::from_slice(&example).unwrap();
    let mut network = conflist["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        network[key] = conflist[key].clone();
    }
    let token = consul.create_token(r#"key_prefix "ipam/" { policy = "write" }"#);
    fs::write(shell.file(TOKEN), &token.secret).unwrap();
    let ipam = &mut network["ipam"];
    ipam["stateDir"] = json!(shell.world.path("state"));
    ipam["consul_servers"] = json!([consul.url()]);
    ipam["consul"]["tokenFile"] = json!(shell.file(TOKEN));
    ipam["consul"]["caFile"] = json!(certificates.authority());

    let call = |verb: &str, network: &Value| shell.call("ipam-delegated", verb, "c1", network);
    let result = call("ADD", &network).success();
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/16");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]));
    network["prevResult"] = result;
    call("CHECK", &network).success();
    // The record knows the store.
    network.as_object_mut().unwrap().remove("prevResult");
    call("DEL", &without(&network, &["pools", "consul", "consul_servers", "delegates"])).success();
    assert_eq!(consul.keys("ipam/web/"), ["ipam/web/"]);
}

#[test]
fn a_definition_gives_what_is_said_of_it() {
    let consul = Consul::start();
    let shell = Shell::new(&consul);
    let page = readme();
    consul.put("ipam/web", page.blocks("Pools and keys", "json")[0]);
    let mut network = shell.network(&consul, "rack1-7");
    let call =
        |container: &str, network: &Value| shell.call("ipam-da-consul", "ADD", container, network);
    assert_eq!(call("c0", &network).ips(), ["10.0.21.100/23"]);
    for (address, refused) in [
        ("10.0.21.150", false),
        ("10.0.21.151", true),
        ("10.0.20.1", true),
        ("10.7.0.0", true),
        ("10.7.0.1", false),
        ("10.7.0.53", true),
        ("10.7.9.7", true),
        ("10.7.255.254", false),
        ("10.7.255.255", true),
    ] {
        network["ipam"]["pools"][0]["requested-ip"] = json!(address);
        let outcome = call(address, &network);
        if refused {
            assert_eq!(outcome.failure().0, 101, "{address}");
        } else {
            assert!(outcome.ips()[0].starts_with(&format!("{address}/")), "{address}");
        }
    }
}

#[test]
fn a_requested_address_is_taken_over_where_the_pool_says_so() {
    let consul = Consul::start();
    consul.put("ipam/web", POOL);
    let shell = Shell::new(&consul);
    let page = readme();
    let pools = page.blocks("A requested address", "json")[0];
    let keys: Value = serde_json::from_str(&format!("{{{pools}}}")).unwrap();
    let mut network = shell.network(&consul, "rack1-7");
    for (key, value) in keys.as_object().unwrap() {
        network["ipam"][key] = value.clone();
    }
    let call =
        |container: &str, network: &Value| shell.call("ipam-da-consul", "ADD", container, network);
    assert_eq!(call("first", &network).ips(), ["10.1.0.7/16"]);
    let mut plain = network.clone();
    plain["ipam"].as_object_mut().unwrap().remove("takeover");
    let (code, text) = call("second", &plain).failure();
    assert!(code == 102 && text.contains("first/eth0 of node rack1-7"), "{code}: {text}");
    let second = call("second", &network);
    assert!(second.stderr.contains("takes over 10.1.0.7"), "{second:?}");
    assert_eq!(second.ips(), ["10.1.0.7/16"]);
    plain["ipam"]["pools"][0]["takeover"] = json!(true);
    assert_eq!(call("third", &plain).failure().0, 102);
    consul.put("ipam/web/10.1.0.7", "by hand");
    let (code, text) = call("fourth", &network).failure();
    assert!(code == 102 && text.contains("ipam/web/10.1.0.7"), "{code}: {text}");
}

#[test]
fn after_a_restore_the_commands_give_nothing_away_that_is_held() {
    let consul = Consul::start();
    consul.put("ipam/web", POOL);
    let shell = Shell::new(&consul);
    let mut network = shell.network(&consul, "");
    let ipam = network["ipam"].as_object_mut().unwrap();
    ipam.insert("type".to_owned(), json!("ipam-delegated"));
    ipam.insert("delegates".to_owned(), json!(["ipam-ds-static", "ipam-da-consul"]));
    ipam.remove("node");
    let state = shell.world.path("state").display().to_string();
    ipam.insert("stateDir".to_owned(), json!(state));
    let conf_dir = shell.world.path("net.d");
    fs::create_dir(&conf_dir).unwrap();
    fs::write(conf_dir.join("10-racknet.conf"), network.to_string()).unwrap();
    let add = |container: &str| shell.call("ipam-delegated", "ADD", container, &network);

    assert_eq!(add("3f9c1e").ips(), ["10.1.0.2/16"]);
    let snapshot = consul.snapshot();
    assert_eq!(add("77ab02").ips(), ["10.1.0.3/16"]);
    consul.restore(&snapshot);
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
        let leases = consul.keys("ipam/web/10");
        assert_eq!(leases.len(), 2, "{leases:?}");
        let outcome = add("c0ffee");
        assert_eq!(outcome.exit == Some(0), trusts, "{command}: {outcome:?}");
    }
    let given = add("c0ffee").ips();
    assert!(!["10.1.0.2/16", "10.1.0.3/16"].contains(&given[0].as_str()), "{given:?}");
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
