use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use ipam_testkit::kube::{Kube, Kubeconfig, Login, Material, Node};

/// A server with the node of this machine, and the networks that ask it.
pub struct Site {
    pub server: Kube,
    /// A client certificate and a token.
    pub logins: [Known; 2],
    /// The chain that asks nobody.
    pub still: Value,
    /// By selector: the chain that believes what it is remembered, and the one that asks each time.
    pub warm: [Value; 2],
    pub cold: [Value; 2],
    /// The same of the selectors alone, with the client certificate.
    pub warm_alone: [Value; 2],
    /// By selector and login: the selectors that ask each time.
    pub cold_alone: [[Value; 2]; 2],
}

/// A login, with the files that it consists of.
pub struct Known {
    pub kubeconfig: PathBuf,
    authority: PathBuf,
    own: Vec<PathBuf>,
}

/// By what they read of the node object: its podCIDRs, an annotation.
pub const SELECTORS: [&str; 2] = ["ipam-ds-kube-node", "ipam-ds-node-annotation"];

pub const ALLOCATOR: &str = "ipam-da-local";

const NETWORK: &str = "bench";
const NODE: &str = "node-1";
const SUBNET: &str = "10.77.0.0/16";
const ANNOTATION: &str = "example.com/ranges";

impl Site {
    /// Starts a server; logins, leases and state lie in this folder.
    pub fn start(root: &Path) -> Self {
        let server = Kube::start();
        create_node(&server);
        let token = server.user();
        server.allow_reading_nodes(&token, &[NODE]);
        let logins = [
            Known::write(
                &server,
                &server.kubelet(NODE),
                &root.join("certificate"),
                &["crt", "key"],
            ),
            Known::write(&server, &token, &root.join("token"), &["token"]),
        ];
        let networks = Networks { root };
        let kubeconfigs = [0, 1].map(|login| &*logins[login].kubeconfig);
        let [certificate, _] = kubeconfigs;
        Self {
            still: networks.chain(
                "still",
                "ipam-ds-static",
                json!({
                    "ranges": [[{"subnet": SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}],
                }),
            ),
            warm: SELECTORS.map(|selector| {
                networks.chain("warm", selector, asking(selector, certificate, "1h"))
            }),
            cold: SELECTORS.map(|selector| {
                networks.chain("cold", selector, asking(selector, certificate, "0s"))
            }),
            warm_alone: SELECTORS.map(|selector| {
                networks.alone("warm-alone", selector, asking(selector, certificate, "1h"))
            }),
            cold_alone: SELECTORS.map(|selector| {
                kubeconfigs.map(|login| {
                    networks.alone("cold-alone", selector, asking(selector, login, "0s"))
                })
            }),
            server,
            logins,
        }
    }

    /// The arguments of the program `kube-floor`.
    pub fn floor(&self, login: &Known) -> Vec<String> {
        let mut arguments = vec![self.server.endpoint(), path()];
        let files = [&login.authority].into_iter().chain(&login.own);
        arguments.extend(files.map(|file| file.display().to_string()));
        arguments
    }

    /// The arguments of curl, with the client certificate.
    pub fn curl(&self) -> Vec<String> {
        let Known { authority, own, .. } = &self.logins[0];
        let [authority, certificate, key] =
            [authority, &own[0], &own[1]].map(|file| file.display().to_string());
        let url = format!("{}{}", self.server.url(), path());
        let options = [
            "--disable",
            "--silent",
            "--fail",
            "--cacert",
            &authority,
            "--cert",
            &certificate,
            "--key",
            &key,
            &url,
        ];
        options.map(str::to_owned).to_vec()
    }

    /// The arguments of kubectl, with the client certificate; what it keeps lies beside that.
    pub fn kubectl(&self) -> Vec<String> {
        let kubeconfig = &self.logins[0].kubeconfig;
        let cache = kubeconfig.with_file_name("cache");
        let options = [("--kubeconfig", kubeconfig), ("--cache-dir", &cache)]
            .map(|(option, file)| format!("{option}={}", file.display()));
        let what = ["get", "node", NODE, "--output=json"].map(str::to_owned);
        options.into_iter().chain(what).collect()
    }
}

impl Known {
    fn write(server: &Kube, login: &Login, folder: &Path, own: &[&str]) -> Self {
        fs::create_dir(folder).unwrap();
        let file = |name: &str| folder.join(format!("test.{name}"));
        let kubeconfig = Kubeconfig::of(server, login).material(Material::Files);
        Self {
            kubeconfig: kubeconfig.write(&folder.join("kubeconfig")),
            authority: folder.join("test-ca.crt"),
            own: own.iter().map(|name| file(name)).collect(),
        }
    }
}

/// Networks with leases and state of their own each, below a folder.
struct Networks<'a> {
    root: &'a Path,
}

impl Networks<'_> {
    fn chain(&self, name: &str, selector: &str, keys: Value) -> Value {
        let mut network = self.network(&format!("{name}-{selector}"), keys);
        let data = network["ipam"]["stateDir"].as_str().unwrap().to_owned() + ".leases";
        network["ipam"]["type"] = json!("ipam-delegated");
        // An annotation takes the place of the section, so that the folder of leases stands here.
        network["ipam"]["delegates"] = json!([selector, {"type": ALLOCATOR, "dataDir": data}]);
        network
    }

    /// What a chain gives a selector.
    fn alone(&self, name: &str, selector: &str, keys: Value) -> Value {
        let mut network = self.network(&format!("{name}-{selector}"), keys);
        network["ipam"]["type"] = json!(selector);
        network["ipam"]["node"] = json!("bench");
        network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": []});
        network
    }

    fn network(&self, name: &str, mut ipam: Value) -> Value {
        ipam["stateDir"] = json!(self.root.join(name));
        json!({"cniVersion": "1.0.0", "name": NETWORK, "type": "bridge", "ipam": ipam})
    }
}

/// The keys of `ipam` for a selector that asks the server.
fn asking(selector: &str, kubeconfig: &Path, ttl: &str) -> Value {
    let mut keys = json!({"kubeconfig": kubeconfig, "nodeName": NODE, "cacheTtl": ttl});
    if selector == SELECTORS[0] {
        keys["routes"] = json!([{"dst": "0.0.0.0/0"}]);
    } else {
        keys["annotation"] = json!(ANNOTATION);
    }
    keys
}

/// Makes the node object, as large as a kubelet makes it that has pulled as many images as it reports.
fn create_node(server: &Kube) {
    let settings = json!({"ranges": [[{"subnet": SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}]});
    let node = Node::named(NODE).cidrs(&[SUBNET]).annotation(ANNOTATION, &settings.to_string());
    server.create_node(&node);
    let image = |number: u32| {
        let name = format!("registry.example.com/team/application-{number}");
        let digest = format!("{name}@sha256:{number:064x}");
        json!({"names": [digest, format!("{name}:v1.{number}.0")], "sizeBytes": 10_000_000 + number})
    };
    let condition = |kind: &str| {
        let time = "2026-01-02T03:04:05Z";
        json!({
            "type": kind, "status": "False", "reason": format!("KubeletHas{kind}"), "message": "kubelet is as it should be",
            "lastHeartbeatTime": time, "lastTransitionTime": time,
        })
    };
    let amounts = json!({
        "cpu": "8", "ephemeral-storage": "101430960Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": "32860432Ki", "pods": "110",
    });
    let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition);
    let status = json!({
        "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": NODE}],
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": conditions,
        "images": (0..50).map(image).collect::<Vec<_>>(),
        "nodeInfo": {
            "machineID": "0123456789abcdef0123456789abcdef", "systemUUID": "", "bootID": "",
            "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12 (bookworm)",
            "containerRuntimeVersion": "containerd://1.7.0", "kubeletVersion": "v1.20.2",
            "kubeProxyVersion": "v1.20.2", "operatingSystem": "linux", "architecture": "amd64",
        },
    });
    server.patch(&format!("{}/status", path()), &json!({"status": status}));
}

fn path() -> String {
    format!("/api/v1/nodes/{NODE}")
}
