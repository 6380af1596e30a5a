//! What `deploy/` holds: a real API server takes the manifests, and what the pods do works on a host.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ipam_testkit::deployed::{Cluster, Keeper, PodHost};
use ipam_testkit::kube::Node;
use ipam_testkit::world::{names, until, with};
use serde_json::json;

/// Where the login is on the host.
const LOGIN: &str = "/etc/cni/net.d/ipam-delegated.d";

const PROGRAMS: [&str; 4] =
    ["ipam-delegated", "ipam-da-local", "ipam-ds-kube-node", "ipam-ds-node-annotation"];

const MANIFESTS: [&str; 3] = ["rbac.yaml", "daemonset.yaml", "network-attachment-definitions.yaml"];

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

fn script() -> String {
    fs::read_to_string(deploy("keep-login.sh")).unwrap()
}

/// The name that a kubelet gives this machine's node.
fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_lowercase()
}

#[test]
fn a_real_server_takes_every_manifest_and_again_without_a_change() {
    let cluster = Cluster::new();
    let expected = [
        &[
            "serviceaccount/ipam-delegated",
            "clusterrole.rbac.authorization.k8s.io/ipam-delegated",
            "clusterrolebinding.rbac.authorization.k8s.io/ipam-delegated",
        ][..],
        &["configmap/ipam-delegated", "daemonset.apps/ipam-delegated"],
        &[
            "networkattachmentdefinition.k8s.cni.cncf.io/net1",
            "networkattachmentdefinition.k8s.cni.cncf.io/meridio-bridge",
        ],
    ];
    for outcome in ["created", "unchanged"] {
        for (manifest, objects) in MANIFESTS.iter().zip(expected) {
            let said: Vec<String> =
                objects.iter().map(|object| format!("{object} {outcome}")).collect();
            assert_eq!(cluster.apply(&deploy(manifest)), said);
        }
    }
    let map = "/api/v1/namespaces/kube-system/configmaps/ipam-delegated";
    assert_eq!(cluster.kube.get(map).unwrap()["data"], json!({"keep-login.sh": script()}));

    // A pod of the template is one.
    let template = &cluster.daemon_set("ipam-delegated")["spec"]["template"];
    let mut pod = template.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "of-a-node".into();
    pod["metadata"]["namespace"] = "kube-system".into();
    let spec = &cluster.kube.create(&pod)["spec"];
    assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(spec["serviceAccountName"], "ipam-delegated");
    for container in ["initContainers", "containers"] {
        assert_eq!(spec[container].as_array().unwrap().len(), 1);
        assert!(spec[container][0]["resources"]["requests"]["cpu"].is_string());
    }

    // The login may read a node, and nothing else.
    cluster.kube.create_node(&Node::named("a"));
    let client = cluster.kube.client(&cluster.account().login());
    let node = "/api/v1/nodes/a";
    until("the rights hold", || client.ask("GET", node, b"").status == 200);
    for (method, path) in [
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/nodes?watch=1"),
        ("PATCH", node),
        ("DELETE", node),
        ("GET", "/api/v1/nodes/a/status"),
        ("GET", "/api/v1/nodes/a/proxy"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/kube-system/configmaps/ipam-delegated"),
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ] {
        let body: &[u8] = if method == "PATCH" { b"{}" } else { b"" };
        assert_eq!(client.ask(method, path, body).status, 403, "{method} {path}");
    }
}

#[test]
fn what_the_pod_installs_and_the_login_that_it_keeps_serve_both_networks() {
    let cluster = Cluster::new();
    MANIFESTS.iter().for_each(|manifest| drop(cluster.apply(&deploy(manifest))));
    let node = host_name();
    let text = r#""ranges": [
        [{ "subnet": "4000::16.0.0.0/120", "rangeStart": "4000::16.0.0.0", "rangeEnd": "4000::16.0.0.7" }],
        [{ "subnet": "16.0.0.0/24", "rangeStart": "16.0.0.0", "rangeEnd": "16.0.0.7" }]]"#;
    let node_object = Node::named(&node)
        .annotation("kube-node.nordix.org/net1", "172.20.2.0/24,fd00::2:0:0/96")
        .annotation("example.com/bridge", text);
    cluster.kube.create_node(&node_object);
    let machine = PodHost::new(&cluster.daemon_set("ipam-delegated"), &PROGRAMS);

    let said = machine.init();
    for preset in ["kube-node", "node-annotation"] {
        assert!(said.contains(&format!("link {preset} to ipam-delegated\n")), "{said}");
    }
    let bin = machine.host.path("/opt/cni/bin");
    let installed = names(&bin);
    assert_eq!(installed.len(), 7, "{installed:?}");
    // An upgrade.
    machine.init();
    assert_eq!(names(&bin), installed);

    fs::write(machine.volume("script").join("keep-login.sh"), script()).unwrap();
    let account = machine.volume("account");
    let port = cluster.kube.address().port().to_string();
    let first = cluster.account().mount(&account);
    let pod = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", &*port)];
    let keeper = machine.keep_login(&pod);
    until("the login is there", || machine.login("kubeconfig").exists());
    assert!(machine.is_ready());
    assert_eq!(names(&machine.host.path(LOGIN)), ["ca.crt", "kubeconfig", "token"]);
    for file in ["ca.crt", "kubeconfig", "token"] {
        let mode = fs::metadata(machine.login(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }

    let [net1, bridge] = ["net1", "meridio-bridge"].map(|name| cluster.network(name));
    for (network, addresses) in [
        (&net1, ["172.20.2.2/24", "fd00::2:0:2/96"]),
        (&bridge, ["4000::1000:0/120", "16.0.0.0/24"]),
    ] {
        assert_eq!(machine.call("ADD", "c1", network).ips(), addresses);
        machine.call("DEL", "c1", network).success();
    }

    // The kubelet exchanges the token.
    let second = cluster.account().mount(&account);
    assert_ne!(first.token(), second.token());
    until("the new token is there", || machine.token() == second.token().unwrap());
    let asking = with(&net1, "cacheTtl", "0s");
    machine.call("ADD", "c2", &asking).success();
    let read = ["get", "node", &node, "-o", "name"];
    let output = cluster.try_kubectl(&machine.login("kubeconfig"), &read);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("node/{node}\n"));

    // What a newer pod has written stays; what is gone comes again.
    fs::write(machine.login("token"), "newer").unwrap();
    keeper.looks();
    assert_eq!(machine.token(), "newer");
    assert!(!machine.is_ready());
    fs::remove_file(machine.login("token")).unwrap();
    until("it is there again", || machine.token() == second.token().unwrap());
    // Without a source it says so, and leaves what is there.
    fs::remove_dir_all(&account).unwrap();
    keeper.looks();
    assert_eq!(machine.token(), second.token().unwrap());
    let said = keeper.end();
    assert!(said.contains(&format!("the login in {} stays as it is", "/host/login")), "{said}");
}

#[test]
fn the_server_of_the_login_is_the_pods_or_the_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (account, login) = (folder.path().join("account"), folder.path().join("login"));
    fs::create_dir(&account).unwrap();
    fs::write(account.join("token"), "t").unwrap();
    fs::write(account.join("ca.crt"), "c").unwrap();
    for (variables, server) in [
        (&[("KUBERNETES_SERVICE_HOST", "10.96.0.1")][..], "https://10.96.0.1:443"),
        (&[("KUBERNETES_SERVICE_HOST", "fd00::1")], "https://[fd00::1]:443"),
        (&[("API_SERVER", "https://api.example.org:6443")], "https://api.example.org:6443"),
    ] {
        for shell in [&["sh"][..], &["busybox", "sh"]] {
            let _ = fs::remove_dir_all(&login);
            fs::write(account.join("ca.crt"), "c").unwrap();
            let mut command = Command::new(shell[0]);
            command.args(&shell[1..]).arg(deploy("keep-login.sh")).arg(&login);
            command.env_clear().env("PATH", "/usr/bin:/bin").env("SERVICE_ACCOUNT", &account);
            command.env("KUBERNETES_SERVICE_PORT", "443").envs(variables.iter().copied());
            let keeper = Keeper::start(command);
            until("the login is there", || login.join("kubeconfig").exists());
            let text = fs::read_to_string(login.join("kubeconfig")).unwrap();
            assert!(text.contains(&format!("{{server: \"{server}\", ")), "{text}");
            // An authority is exchanged while the token lasts.
            fs::write(account.join("ca.crt"), "d").unwrap();
            until("the new authority is there", || {
                fs::read_to_string(login.join("ca.crt")).is_ok_and(|text| text == "d\n")
            });
            assert_eq!(keeper.end(), "");
        }
    }
}
