//! The README and LAYOUTS.md say what the program and etcd do: their commands are run, their networks
//! are used.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;

use ipam_testkit::certificates::{CLIENT, Certificates};
use ipam_testkit::etcd::{ClusterId, Etcd, Tls};
use ipam_testkit::pages::{CONFLIST, Page, Shell};
use serde_json::{Value, json};

fn readme() -> Page {
    Page::read("delegates/ipam-da-etcd/README.md")
}

fn layouts() -> Page {
    Page::read("delegates/ipam-da-etcd/LAYOUTS.md")
}

/// A shell in which `etcdctl` talks to a server.
fn shell_of(etcd: &Etcd) -> Shell {
    let mut shell = Shell::new("ipam-da-etcd");
    shell.set("ETCDCTL_API", "3");
    shell.set("ETCDCTL_ENDPOINTS", &etcd.url());
    shell.put("127.0.0.1:2379", &etcd.url());
    shell
}

fn network(shell: &Shell, etcd: &Etcd, node: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": "racknet", "type": "bridge", "ipam": {
        "type": "ipam-da-etcd", "ranges": [[{"subnet": "10.214.0.0/16"}]], "node": node,
        "stateDir": shell.world.path(node), "etcd": {"endpoints": [etcd.url()]}}})
}

#[test]
fn the_commands_print_what_is_shown() {
    let etcd = Etcd::start();
    let shell = shell_of(&etcd);
    for (container, node, address) in [
        ("3f9c1e", "rack1-7", "10.214.0.2"),
        ("c0ffee", "rack2-1", "10.214.0.3"),
        ("77ab02", "rack1-7", "10.214.0.7"),
    ] {
        let mut network = network(&shell, &etcd, node);
        network["args"] = json!({"cni": {"ips": [address]}});
        shell.call("ipam-da-etcd", "ADD", container, &network).success();
    }
    let mut plugin = network(&shell, &etcd, "rack1-7");
    plugin.as_object_mut().unwrap().remove("name");
    let conflist = json!({"cniVersion": "1.0.0", "name": "racknet", "plugins": [plugin]});
    fs::write(shell.file(CONFLIST), conflist.to_string()).unwrap();

    shell.try_all(&readme().commands_of("State", "etcdctl get"));
    shell.try_all(&readme().commands_of("Verbs", "/opt/cni/bin/ipam-da-etcd "));
    let left = etcd.keys("/ipam-delegated/networks/racknet/leases/");
    assert_eq!(left.len(), 2, "{left:?}");
    let rest: Vec<_> = ["etcdctl compact", "etcdctl defrag", "etcdctl alarm"]
        .iter()
        .flat_map(|start| readme().commands_of("Running etcd for it", start))
        .collect();
    shell.try_all(&rest);
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
    let mut shell = shell_of(&etcd);
    shell.set("ETCDCTL_CACERT", certificates.authority().to_str().unwrap());
    shell.set("ETCDCTL_CERT", client.certificate.to_str().unwrap());
    shell.set("ETCDCTL_KEY", client.key.to_str().unwrap());
    shell.try_all(&readme().commands_of("Rights", "etcdctl"));
    demand_rights(&etcd);

    let mut network = network(&shell, &etcd, "rack1-7");
    let section = &mut network["ipam"]["etcd"];
    section["certFile"] = json!(client.certificate);
    section["keyFile"] = json!(client.key);
    section["trustedCaFile"] = json!(certificates.authority());
    let call = |verb: &str, network: &Value| shell.call("ipam-da-etcd", verb, "c1", network);
    network["prevResult"] = call("ADD", &network).success();
    call("CHECK", &network).success();
    let listed = shell.list(&network);
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
    let shell = shell_of(&etcd);
    for (layout, leases) in OLD {
        etcd.put(&format!("{leases}10.214.0.2"), "3f9c1e");
        let mut network = network(&shell, &etcd, "rack1-7");
        network["ipam"]["etcd"]["layout"] = json!(layout);
        network["ipam"]["stateDir"] = json!(shell.world.path(layout));
        network["args"] = json!({"cni": {"ips": ["10.214.0.7"]}});
        shell.call("ipam-da-etcd", "ADD", "77ab02", &network).success();
    }
    shell.try_all(&layouts().commands_of("Keys and values", "etcdctl get"));
    // The table names every key that is there, and the lock.
    let page = layouts();
    let table = page.section("Keys and values");
    for key in etcd.keys("/").iter().filter(|key| !key.ends_with("/10.214.0.2")) {
        assert!(table.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn the_commands_show_the_keys_of_whereabouts_and_the_role_is_enough() {
    let etcd = Etcd::builder().flag("--bcrypt-cost=4").start();
    let shell = shell_of(&etcd);
    etcd.put("/whereabouts/10.214.0.0/16", "10.214.0.2 3f9c1e");
    let mut network = network(&shell, &etcd, "rack1-7");
    network["ipam"]["etcd"]["layout"] = json!("whereabouts");
    network["args"] = json!({"cni": {"ips": ["10.214.0.7"]}});
    shell.call("ipam-da-etcd", "ADD", "77ab02", &network).success();
    shell.try_all(&layouts().commands_of("whereabouts", "etcdctl"));
    for key in etcd.keys("/") {
        assert!(layouts().section("whereabouts").contains(&format!("| `{key}` |")), "{key}");
    }
    for (role, code) in [("whereabouts", None), ("alone", Some(103))] {
        let pools = ["--prefix=true", "readwrite", "/whereabouts/10.214.0.0/16"];
        let user = format!("{role}-user");
        if code.is_some() {
            etcd.etcdctl(&["role", "add", role]);
            etcd.etcdctl(&[&["role", "grant-permission", role][..], &pools].concat());
        }
        etcd.etcdctl(&["user", "add", &format!("{user}:secret")]);
        etcd.etcdctl(&["user", "grant-role", &user, role]);
    }
    demand_rights(&etcd);
    for (user, code) in [("alone-user", Some(103)), ("whereabouts-user", None)] {
        network["ipam"]["etcd"]["username"] = json!(user);
        network["ipam"]["etcd"]["password"] = json!("secret");
        network["args"] = Value::Null;
        for verb in ["ADD", "DEL"] {
            let outcome = shell.call("ipam-da-etcd", verb, "c1", &network);
            match code {
                Some(code) => assert_eq!(outcome.failure().0, code, "{verb}"),
                None => drop(outcome.success()),
            }
        }
    }
}

#[test]
fn a_section_is_read_beside_the_keys_of_an_older_plugin() {
    let etcd = Etcd::start();
    let shell = shell_of(&etcd);
    let mut network = network(&shell, &etcd, "rack1-7");
    for (key, value) in readme().keys("Keys") {
        let value = value.to_string().replace("http://10.0.0.1:2379", &etcd.url());
        network["ipam"][key] = serde_json::from_str(&value).unwrap();
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
            let shell = shell_of(&etcd);
            etcd.put(&format!("{leases}10.214.0.9"), "before");
            shell.try_all(&layouts().commands_of("Rights", "etcdctl role"));
            etcd.etcdctl(&["user", "add", "cni:secret"]);
            etcd.etcdctl(&["user", "grant-role", "cni", &role]);
            demand_rights(&etcd);
            let keys = |prefix: &str| {
                let arguments = ["get", "--prefix", "--keys-only", prefix];
                let shown = etcd.etcdctl_as(&["--user", "root:root"], &arguments).stdout;
                String::from_utf8(shown).unwrap().split_whitespace().count()
            };

            let mut network = network(&shell, &etcd, "rack1-7");
            let password = shell.world.path("password");
            fs::write(&password, "secret\n").unwrap();
            let section = &mut network["ipam"]["etcd"];
            section["layout"] = json!(layout);
            section["username"] = json!("cni");
            section["passwordFile"] = json!(password);
            section["resultCache"] = json!(shell.world.path("results"));
            let call = |verb: &str, container: &str, ifname: &str, network: &Value| {
                shell.call_for(verb, [container, ifname], network)
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
            let listed = String::from_utf8(shell.list(&network).stdout).unwrap();
            assert_eq!(listed.contains("rack1-7"), is_indexed, "{role}: {listed}");
        }
    }
}

#[test]
fn the_networks_work() {
    let etcd = Etcd::start();
    let shell = shell_of(&etcd);
    let page = readme();
    let networks: Vec<Value> = page
        .blocks("Example", "json")
        .into_iter()
        .map(|network| serde_json::from_str(network).unwrap())
        .collect();
    let expected: [&[&str]; 2] = [&["10.214.0.2/16"], &["10.214.0.3/16", "fd00:214::2/64"]];
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
    let shell = shell_of(&etcd);
    let given = shell.assert_reasserted(
        &network(&shell, &etcd, ""),
        &readme().commands_of("A restored store", "/opt/cni/bin/ipam-delegated reassert"),
        || etcd.snapshot(),
        |snapshot| etcd.restore(snapshot, ClusterId::Other),
        || etcd.keys("/ipam-delegated/networks/racknet/leases/"),
    );
    assert_eq!(given, ["10.214.0.4/16"]);
}

#[test]
fn every_key_of_the_section_is_in_the_table() {
    readme().assert_table_is_of("Keys", "ipam-da-etcd", "etcd");
}
