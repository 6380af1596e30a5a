//! `docs/moving/whereabouts.md`, command by command, on a real API server. Whereabouts is played
//! request by request, and the pods of the DaemonSets by what their containers do on a host.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use ipam_testkit::deployed::{Cluster, Keeper, PodHost};
use ipam_testkit::kube::{self, Node};
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::pages::{Page, masked};
use ipam_testkit::whereabouts::{Objects, Release};
use ipam_testkit::world::{Outcome, until};
use serde_json::{Value, json};

const PROGRAMS: [&str; 4] =
    ["ipam-delegated", "ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-kube"];

const OLD_PROGRAM: &str = "#!/bin/sh\nexit 1\n";

/// Where the pod of whereabouts puts its program.
const PLUGIN: &str = "/opt/cni/bin/whereabouts";

/// Where it puts its login and the flat file.
const SETTINGS: &str = "/etc/cni/net.d/whereabouts.d";

/// A cluster with whereabouts, the folder of the manifests, and the page.
struct Admin {
    cluster: Cluster,
    page: Page,
    folder: tempfile::TempDir,
    old: Whereabouts,
}

impl Admin {
    fn new() -> Self {
        let cluster = Cluster::new();
        Release::V094.crds().install(&cluster.kube);
        cluster.kube.create_node(&Node::named("rack1-7"));
        cluster.apply(&root().join("examples/whereabouts.yaml"));
        for object in
            [workload("DaemonSet", "whereabouts"), workload("Deployment", "whereabouts-reconciler")]
        {
            cluster.kube.create(&object);
        }
        let folder = tempfile::TempDir::new().unwrap();
        for entry in fs::read_dir(root().join("delegates/ipam-da-kube/deploy")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let ranges = json!({"range": "192.168.2.225/28"});
        let old = Whereabouts::new(Release::V094, &cluster.kube, "kube-system", &ranges);
        Self { cluster, page: Page::read("docs/moving/whereabouts.md"), folder, old }
    }

    /// Runs the commands below a heading where kubectl is; each prints what the page shows.
    #[track_caller]
    fn follow(&self, heading: &str) {
        for (command, expected) in self.page.commands(heading, "console") {
            if let Some((_, name)) = command.split_once("rollout status daemonset ") {
                self.roll_out(name);
            }
            if command.contains(" wait pod ") {
                self.start_pod();
            }
            let folder = self.folder.path();
            assert_prints(
                Command::new("sh"),
                &self.cluster.kubeconfig(),
                folder,
                &command,
                &expected,
            );
        }
    }

    /// No controller runs: this one's work is done.
    fn roll_out(&self, name: &str) {
        let path = format!("/apis/apps/v1/namespaces/kube-system/daemonsets/{name}/status");
        let status = json!({"observedGeneration": 99, "currentNumberScheduled": 0,
            "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
        self.cluster.kube.patch(&path, &json!({"status": status}));
    }

    /// No kubelet runs: the pod of our DaemonSet gets ready.
    fn start_pod(&self) {
        let name = "ipam-delegated-whereabouts-x7k2p";
        let template =
            self.cluster.daemon_set("ipam-delegated-whereabouts")["spec"]["template"].clone();
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"],
            "spec": template["spec"]});
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["namespace"] = "kube-system".into();
        pod["spec"]["nodeName"] = "rack1-7".into();
        self.cluster.kube.create(&pod);
        let path = format!("/api/v1/namespaces/kube-system/pods/{name}/status");
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.cluster.kube.patch(&path, &json!({"status": status}));
    }

    fn objects(&self) -> Objects {
        Objects::of(&self.cluster.kube, "kube-system")
    }

    /// Who holds which address.
    fn held(&self) -> Vec<String> {
        let of =
            |held: ipam_testkit::whereabouts::Held| format!("{} {}", held.address, held.entry.id);
        self.objects().held().into_iter().map(of).collect()
    }

    /// An ADD on a node of whereabouts.
    #[track_caller]
    fn add_before(&self, container: &str) -> String {
        let given = self.old.add(container, "net1", &pod(container)).run().unwrap();
        given[0].to_string()
    }

    #[track_caller]
    fn del_before(&self, container: &str) {
        self.old.del(container, "net1", &pod(container)).run().unwrap();
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn pod(container: &str) -> String {
    format!("default/pod-{container}")
}

/// A workload of whereabouts in its least form.
fn workload(kind: &str, name: &str) -> Value {
    let template = json!({"metadata": {"labels": {"name": name}},
        "spec": {"containers": [{"name": name, "image": "whereabouts"}]}});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"name": name}}, "template": template}})
}

/// A command of the page prints what the page shows.
#[track_caller]
fn assert_prints(
    mut shell: Command,
    kubeconfig: &Path,
    folder: &Path,
    command: &str,
    expected: &str,
) {
    let kubectl = kube::kubectl();
    let path = format!("{}:/usr/bin:/bin", kubectl.parent().unwrap().display());
    shell.args(["-ec", &format!("cd '{}'; {command}", folder.display())]).env_clear();
    shell.env("PATH", path).env("HOME", folder).env("KUBECONFIG", kubeconfig).env("LC_ALL", "C");
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    // A test's state folder is on a tmpfs, which lint warns of.
    let printed: String =
        printed.split_inclusive('\n').filter(|line| !line.contains("tmpfs")).collect();
    // The page leaves out what says no more than that the command has succeeded.
    if !expected.is_empty() {
        assert_eq!(masked(&printed), masked(expected), "{command}\n{printed}");
    }
}

/// A node that has moved.
struct Moved<'a> {
    admin: &'a Admin,
    host: PodHost,
    network: Value,
    account: PathBuf,
}

impl<'a> Moved<'a> {
    /// A node with the program and the login of whereabouts, which the pod of our DaemonSet then takes
    /// over.
    fn new(admin: &'a Admin) -> Self {
        let daemon_set = admin.cluster.daemon_set("ipam-delegated-whereabouts");
        let host = PodHost::new(&daemon_set, &PROGRAMS);
        let account = host.volume("account");
        let network = admin.cluster.network("whereabouts-conf");
        host.host.shell("mkdir -p /var/lib/cni/multus/results");
        let moved = Self { admin, host, network, account };
        moved.old_pod();
        let copied = moved.host.init();
        assert!(copied.contains("keep whereabouts as whereabouts.orig\n"), "{copied}");
        assert!(copied.contains("copy ipam-delegated to whereabouts\n"), "{copied}");
        moved
    }

    /// What the pod of whereabouts does when it starts.
    fn old_pod(&self) {
        let source = self.host.host.path("/run/whereabouts");
        fs::write(&source, OLD_PROGRAM).unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
        let settings = json!({
            "datastore": "kubernetes", "configuration_path": SETTINGS,
            "kubernetes": {"kubeconfig": format!("{SETTINGS}/whereabouts.kubeconfig")},
            "reconciler_cron_expression": "30 4 * * *",
        });
        self.host.host.shell(&format!(
            "mkdir -p {SETTINGS} /opt/cni/bin; cd {SETTINGS}; echo 'token: old' >whereabouts.kubeconfig
             echo '{settings}' >whereabouts.conf; cp -f /run/whereabouts {PLUGIN}"
        ));
    }

    fn keep_login(&self) -> Keeper {
        self.admin.cluster.account().mount(&self.account);
        let port = self.admin.cluster.kube.address().port().to_string();
        let variables =
            [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", &*port)];
        let keeper = self.host.keep_login(&variables);
        until("the login is ours", || self.has_own_login());
        keeper
    }

    fn has_own_login(&self) -> bool {
        let text = fs::read_to_string(self.host.login("whereabouts.kubeconfig"));
        text.is_ok_and(|text| text.contains("tokenFile: token"))
    }

    /// A call as Multus makes it, which Debian has no package of: some arguments come twice.
    fn call(&self, verb: &str, container: &str, ifname: &str, network: &Value) -> Outcome {
        let name = format!("pod-{container}");
        let of_pod = format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
        let args = format!(
            "IgnoreUnknown=true;{of_pod};K8S_POD_INFRA_CONTAINER_ID={container};IgnoreUnknown=1;{of_pod};K8S_POD_UID=uid-{container}"
        );
        let variables = [("CNI_ARGS", &*args), ("CNI_IFNAME", ifname)];
        self.host.call_with(&variables, verb, container, network)
    }

    /// The network as Multus sends it on a DEL, if the default network is a list: stripped.
    fn stripped(&self) -> Value {
        let mut network = self.network.clone();
        network["ipam"] = json!({"type": "whereabouts"});
        network
    }

    #[track_caller]
    fn follow(&self, heading: &str) {
        for (command, expected) in self.admin.page.commands(heading, "console on the node") {
            let shell = self.host.host.enter("/bin/sh");
            let folder = self.admin.folder.path();
            assert_prints(shell, &self.admin.cluster.kubeconfig(), folder, &command, &expected);
        }
    }

    /// What `lint` prints, without its warning of the test's tmpfs.
    fn lint(&self) -> String {
        let mut lint = self.host.host.enter("/opt/cni/bin/ipam-delegated");
        let file = self.admin.folder.path().join("whereabouts-conf.json");
        let output = lint.arg("lint").arg(file).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_inclusive('\n').filter(|line| !line.contains("tmpfs")).collect()
    }

    fn start_old_process(&self) -> Child {
        self.host.host.shell("cp /bin/sleep /run/ip-control-loop");
        let process = self.host.host.enter("/run/ip-control-loop").arg("60").spawn().unwrap();
        let comm = format!("/proc/{}/comm", process.id());
        until("it runs", || fs::read_to_string(&comm).unwrap().trim() == "ip-control-loop");
        process
    }

    fn is_ours(&self) -> bool {
        let [plugin, own] =
            [PLUGIN, "/opt/cni/bin/ipam-delegated"].map(|path| self.host.host.path(path));
        assert_ne!(fs::metadata(&plugin).unwrap().ino(), fs::metadata(&own).unwrap().ino());
        fs::read(plugin).unwrap() == fs::read(own).unwrap()
    }
}

#[test]
fn a_node_moves_and_goes_back_and_each_side_releases_what_the_other_gave() {
    let admin = Admin::new();
    assert_eq!(admin.add_before("before"), "192.168.2.225");
    admin.follow("Before");
    admin.follow("Moving");
    let node = Moved::new(&admin);
    let _keeper = node.keep_login();
    assert!(node.is_ours());

    assert_eq!(node.call("ADD", "after", "net1", &node.network).ips(), ["192.168.2.226/28"]);
    let reservation = admin.objects().reservation("192.168.2.226").unwrap();
    assert_eq!(reservation["metadata"]["labels"]["ipam-delegated/node"], "rack1-7");
    node.follow("Check");
    // Whereabouts has no CHECK.
    let mut known = node.network.clone();
    known["cniVersion"] = "0.4.0".into();
    for (container, held) in [("before", 225), ("after", 226), ("after", 225)] {
        let address = format!("192.168.2.{held}/28");
        let ips = json!([{"version": "4", "address": address}]);
        known["prevResult"] = json!({"cniVersion": "0.4.0", "ips": ips});
        let checked = node.call("CHECK", container, "net1", &known);
        match (container, held) {
            ("after", 225) => assert_eq!(checked.failure().0, 104),
            _ => checked.ended_well(),
        }
    }
    let versions = node.call("VERSION", "", "", &known).success();
    assert_eq!(versions["supportedVersions"][3], "0.3.1");
    // Multus attaches a network twice by two interfaces.
    assert_eq!(node.call("ADD", "after", "net2", &node.network).ips(), ["192.168.2.227/28"]);
    assert_eq!(admin.add_before("elsewhere"), "192.168.2.228");
    for ifname in ["net2", "net1"] {
        node.call("DEL", "after", ifname, &node.stripped()).success();
    }
    node.call("DEL", "before", "net1", &node.stripped()).success();
    assert_eq!(admin.held(), ["192.168.2.228 elsewhere"]);

    // A process by which the pod of whereabouts shows itself.
    let mut process = node.start_old_process();
    let warned = node.lint();
    assert!(warned.contains("the pod of whereabouts runs on this node"), "{warned}");
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(!node.lint().contains("the pod of whereabouts"));

    // The pod of whereabouts starts once more beside ours.
    node.call("ADD", "third", "net1", &node.network).success();
    let own = fs::read(node.host.host.path("/opt/cni/bin/ipam-delegated")).unwrap();
    node.old_pod();
    assert!(!node.is_ours());
    assert_eq!(fs::read(node.host.host.path("/opt/cni/bin/ipam-delegated")).unwrap(), own);
    until("the login is ours again", || node.has_own_login());
    let lint = node.lint();
    assert!(
        lint.contains("warning: /opt/cni/bin/whereabouts is not this program any more"),
        "{lint}"
    );
    admin.del_before("third");
    assert_eq!(admin.add_before("fourth"), "192.168.2.225");
    assert!(node.host.init().contains("copy ipam-delegated to whereabouts\n"));
    assert!(node.is_ours());
    let settings = json!({"node": "rack1-7", "gcGrace": "1ms", "kubeconfigDirs": [SETTINGS]});
    node.host.host.settings(&settings);
    node.follow("If the pod of whereabouts returns by itself");
    assert_eq!(admin.held(), ["192.168.2.225 fourth", "192.168.2.228 elsewhere"]);

    // The pod of one address is there.
    let live = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "pod-fourth", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "c"}]}});
    admin.cluster.kube.create(&live);
    admin.follow("After the last node");

    // Back.
    assert_eq!(node.call("ADD", "last", "net1", &node.network).ips(), ["192.168.2.226/28"]);
    admin.follow("Going back");
    node.old_pod();
    for container in ["last", "fourth", "elsewhere"] {
        admin.del_before(container);
    }
    assert_eq!(admin.held(), [""; 0]);
    assert_eq!(admin.objects().reservations().len(), 0);

    // A node that never had whereabouts gets the flat file, too.
    node.host.host.shell(&format!("rm -r {SETTINGS}/whereabouts.conf"));
    node.host.init();
    let shipped = fs::read(node.host.login("whereabouts.conf")).unwrap();
    assert_eq!(shipped, fs::read(admin.folder.path().join("whereabouts.conf")).unwrap());
    assert_eq!(node.call("ADD", "new", "net1", &node.network).ips(), ["192.168.2.225/28"]);
}

/// The differences that a page lists.
fn differences(page: &str) -> Vec<String> {
    let page = Page::read(page);
    let rows = page.section("Differences").lines().filter(|line| line.starts_with("| "));
    let differences = rows.skip(1).map(|row| {
        let (ours, theirs) = row[1..].trim_end_matches('|').split_once(" | ").unwrap();
        match (ours.trim(), theirs.trim()) {
            (ours, "") => format!("{ours}."),
            (ours, theirs) => format!("{ours}; {theirs}."),
        }
    });
    differences.collect()
}

#[test]
fn the_pages_list_what_the_preset_says_that_changes() {
    let mut listed = differences("docs/moving/whereabouts.md");
    listed.extend(differences("docs/moving/whereabouts-provider.md"));
    assert_eq!(listed, ipam_delegated::presets::WHEREABOUTS_DIFFERENCES);
}
