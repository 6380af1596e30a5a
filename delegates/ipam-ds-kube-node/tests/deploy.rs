//! What `deploy/` holds: a real API server takes the manifests, and what the pods do works on a host.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/support/kube/mod.rs"]
mod kube;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use kube::{Kube, Kubeconfig, Node, ServiceAccount};
use serde_json::{Value, json};
use support::{Host, Outcome, binary, names, start, until, wait, with};

/// Where the login lies on the host.
const LOGIN: &str = "/etc/cni/net.d/ipam-delegated.d";

const MANIFESTS: [&str; 3] = ["rbac.yaml", "daemonset.yaml", "network-attachment-definitions.yaml"];

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

/// A cluster with DaemonSets and Multus' kind of object, and a node that is this machine.
struct Cluster {
    kube: Kube,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        // The last of two such flags counts.
        let apis = "api/v1 apps/v1 apiextensions.k8s.io/v1 apiregistration.k8s.io/v1 \
                    authentication.k8s.io/v1 authorization.k8s.io/v1 rbac.authorization.k8s.io/v1";
        let apis: Vec<String> = apis.split_whitespace().map(|api| format!("{api}=true")).collect();
        let flag = format!("--runtime-config=api/all=false,{}", apis.join(","));
        let kube = Kube::builder().flag(flag).start();
        let folder = tempfile::tempdir().unwrap();
        Kubeconfig::of(&kube, &kube.admin()).write(&folder.path().join("admin"));
        let cluster = Self { kube, folder };
        let definition = cluster.folder.path().join("definition.json");
        fs::write(&definition, network_attachment_definitions().to_string()).unwrap();
        cluster.kubectl(&["apply", "-f", definition.to_str().unwrap()]);
        let known = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";
        until("the kind of object is known", || cluster.kube.ask("GET", known, b"").status == 200);
        cluster
    }

    #[track_caller]
    fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(&self.folder.path().join("admin"), arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn try_kubectl(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        let mut kubectl = Command::new(kube::kubectl());
        kubectl.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.folder.path());
        kubectl.arg("--kubeconfig").arg(kubeconfig).args(arguments).output().unwrap()
    }

    /// What `kubectl apply` says of each object of a manifest, by its kind and name.
    #[track_caller]
    fn apply(&self, manifest: &str) -> Vec<String> {
        let said = self.kubectl(&["apply", "-f", deploy(manifest).to_str().unwrap()]);
        said.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn apply_all(&self) {
        MANIFESTS.iter().for_each(|manifest| drop(self.apply(manifest)));
    }

    fn account(&self) -> ServiceAccount<'_> {
        self.kube.existing_service_account("kube-system", "ipam-delegated")
    }

    fn daemon_set(&self) -> Value {
        let path = "/apis/apps/v1/namespaces/kube-system/daemonsets/ipam-delegated";
        self.kube.get(path).unwrap()
    }

    /// The configuration of a network for Multus.
    fn network(&self, name: &str) -> Value {
        let path = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions";
        let object = self.kube.get(&format!("{path}/{name}")).unwrap();
        serde_json::from_str(object["spec"]["config"].as_str().unwrap()).unwrap()
    }
}

/// The kind of object as Multus defines it.
fn network_attachment_definitions() -> Value {
    let config = json!({"type": "object", "properties": {"config": {"type": "string"}}});
    let schema = json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"},
        "metadata": {"type": "object"}, "spec": config,
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition",
                "shortNames": ["net-attach-def"],
            },
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    })
}

/// A host with the pod of the DaemonSet, whose containers run in a folder that has busybox and a release,
/// and nothing that is not mounted into it.
struct Machine {
    host: Host,
    root: tempfile::TempDir,
    pod: Value,
}

impl Machine {
    fn new(daemon_set: &Value) -> Self {
        let host = Host::new();
        host.shell("for d in /opt/cni /run; do mkdir -p $d; mount -t tmpfs tmpfs $d; done");
        let machine = Self {
            host,
            root: tempfile::tempdir().unwrap(),
            pod: daemon_set["spec"]["template"]["spec"].clone(),
        };
        let root = machine.root.path();
        for folder in
            ["bin", "dev", "lib", "lib64", "proc", "ipam-delegated/bin", "account", "script"]
        {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("dev/null"), "").unwrap();
        copy(Path::new("/bin/busybox"), &root.join("bin/busybox"));
        // Debian's busybox is without this one.
        copy(Path::new("/usr/bin/flock"), &root.join("bin/flock"));
        let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../install.sh");
        copy(&install, &root.join("ipam-delegated/install.sh"));
        for name in
            ["ipam-delegated", "ipam-da-local", "ipam-ds-kube-node", "ipam-ds-node-annotation"]
        {
            copy(&binary(name), &root.join("ipam-delegated/bin").join(name));
        }
        let applets = Command::new("chroot")
            .arg(root)
            .args(["/bin/busybox", "--install", "-s", "/bin"])
            .status();
        assert!(applets.unwrap().success());
        machine
    }

    /// Where the volumes of the pod are: of the host, or a folder of the test's.
    fn volume(&self, name: &str) -> PathBuf {
        let volumes = self.pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == name).unwrap();
        match volume["hostPath"]["path"].as_str() {
            Some(path) => path.into(),
            None => self.root.path().join(name),
        }
    }

    /// A container of the pod, with its mounts and its command, in a folder that it cannot write to.
    fn container(&self, container: &Value, variables: &[(&str, &str)]) -> Command {
        let root = self.root.path().display();
        let mut script = format!(
            "mount --bind {root} {root}; mount --bind /dev/null {root}/dev/null\n\
             mount -t proc proc {root}/proc\n\
             for lib in lib lib64; do [ ! -e /$lib ] || mount --bind /$lib {root}/$lib; done\n"
        );
        for mount in container["volumeMounts"].as_array().unwrap() {
            let volume = self.volume(mount["name"].as_str().unwrap());
            let volume = volume.display();
            let path = mount["mountPath"].as_str().unwrap();
            script +=
                &format!("mkdir -p {volume} {root}{path}; mount --bind {volume} {root}{path}\n");
            if mount["readOnly"] == true {
                script += &format!("mount -o remount,bind,ro {root}{path}\n");
            }
        }
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        script += &format!("mount -o remount,bind,ro {root}; exec chroot {root} \"$@\"");
        let mut command = self.host.enter("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
        let words = container["command"].as_array().unwrap();
        command.args(words.iter().map(|word| word.as_str().unwrap()));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(variables.iter().copied());
        command
    }

    /// Runs the container that installs, and says what it said.
    #[track_caller]
    fn install(&self) -> String {
        let output = self.container(&self.pod["initContainers"][0], &[]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the container that keeps the login.
    fn keep_login(&self, variables: &[(&str, &str)]) -> Keeper {
        fs::write(self.root.path().join("script/keep-login.sh"), script()).unwrap();
        let mut command = self.container(&self.pod["containers"][0], variables);
        Keeper(
            command
                .env("EVERY", "0.1")
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// Whether the container is ready.
    fn is_ready(&self) -> bool {
        let container = &self.pod["containers"][0];
        let mut probing = container.clone();
        probing["command"] = container["readinessProbe"]["exec"]["command"].clone();
        self.container(&probing, &[]).status().unwrap().success()
    }

    /// A file of the login as the host has it.
    fn login(&self, file: &str) -> PathBuf {
        self.host.path(LOGIN).join(file)
    }

    fn token(&self) -> String {
        fs::read_to_string(self.login("token")).unwrap_or_default()
    }

    /// A call of the IPAM plugin that a network names, as its main plugin makes it.
    fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        let plugin = network["ipam"]["type"].as_str().unwrap();
        let mut command = self.host.enter(format!("/opt/cni/bin/{plugin}"));
        command.env_clear().env("CNI_PATH", "/opt/cni/bin").env("CNI_COMMAND", verb);
        command.env("CNI_CONTAINERID", container).env("CNI_IFNAME", "net1");
        command.env("CNI_NETNS", "/run/netns/none").stdin(Stdio::piped());
        wait(start(
            {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                command
            },
            network,
        ))
    }
}

/// A running container.
struct Keeper(Child);

impl Keeper {
    /// Ends it as a kubelet does, and gives what it said on stderr.
    #[track_caller]
    fn end(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut said = String::new();
        let stderr = self.0.stderr.take();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
        std::io::Read::read_to_string(&mut stderr.unwrap(), &mut said).unwrap();
        said
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn script() -> String {
    fs::read_to_string(deploy("keep-login.sh")).unwrap()
}

/// Not by this process: what it has open for writing, no other thread's child may run.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
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
            assert_eq!(cluster.apply(manifest), said);
        }
    }
    let map = "/api/v1/namespaces/kube-system/configmaps/ipam-delegated";
    assert_eq!(cluster.kube.get(map).unwrap()["data"], json!({"keep-login.sh": script()}));

    // A pod of the template is one.
    let template = &cluster.daemon_set()["spec"]["template"];
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
    cluster.apply_all();
    let node = host_name();
    let text = r#""ranges": [
        [{ "subnet": "4000::16.0.0.0/120", "rangeStart": "4000::16.0.0.0", "rangeEnd": "4000::16.0.0.7" }],
        [{ "subnet": "16.0.0.0/24", "rangeStart": "16.0.0.0", "rangeEnd": "16.0.0.7" }]]"#;
    let node_object = Node::named(&node)
        .annotation("kube-node.nordix.org/net1", "172.20.2.0/24,fd00::2:0:0/96")
        .annotation("example.com/bridge", text);
    cluster.kube.create_node(&node_object);
    let machine = Machine::new(&cluster.daemon_set());

    let said = machine.install();
    for preset in ["kube-node", "node-annotation"] {
        assert!(said.contains(&format!("link {preset} to ipam-delegated\n")), "{said}");
    }
    let bin = machine.host.path("/opt/cni/bin");
    let installed = names(&bin);
    assert_eq!(installed.len(), 7, "{installed:?}");
    // An upgrade.
    machine.install();
    assert_eq!(names(&bin), installed);

    let account = machine.root.path().join("account");
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
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(machine.token(), "newer");
    assert!(!machine.is_ready());
    fs::remove_file(machine.login("token")).unwrap();
    until("it is there again", || machine.token() == second.token().unwrap());
    // Without a source it says so, and leaves what is there.
    fs::remove_dir_all(&account).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
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
            let mut command = Command::new(shell[0]);
            command.args(&shell[1..]).arg(deploy("keep-login.sh")).arg(&login);
            command.env_clear().env("PATH", "/usr/bin:/bin").env("SERVICE_ACCOUNT", &account);
            command.env("KUBERNETES_SERVICE_PORT", "443").envs(variables.iter().copied());
            let keeper = Keeper(
                command
                    .env("EVERY", "0.1")
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap(),
            );
            until("the login is there", || login.join("kubeconfig").exists());
            let text = fs::read_to_string(login.join("kubeconfig")).unwrap();
            assert!(text.contains(&format!("{{server: \"{server}\", ")), "{text}");
            assert_eq!(keeper.end(), "");
        }
    }
}
