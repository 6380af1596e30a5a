//! The selectors `ipam-ds-kube-node` and `ipam-ds-node-annotation`, alone and in front of
//! `ipam-da-local`, beside a bare process that makes one GET and beside a chain that asks nobody.

mod node;

use std::fs;
use std::path::{Path, PathBuf};

use ipam_testkit::kube::{Kube, Kubeconfig, Login, Material};
use serde_json::{Value, json};

use self::node::{ANNOTATION, NODE, create_node, path};
use crate::caller::{Callers, Plugins};
use crate::harness::System;
use crate::network::{first, network, pool};
use crate::programs::installed;
use crate::site::{HELD, Site, Sites, Stage, Turn};
use crate::table::{Row, Table};
use crate::target::Target::{self, Memory, Ratio, Size};

pub const SYSTEM: System = System {
    name: "kube",
    title: "",
    levels: &HELD,
    held: 0,
    runs: 100,
    warm_up: 1,
    start,
    tables: &[
        Table::Cases {
            corner: "one process",
            cases: &[
                "floor",
                "ipam-ds-kube-node alone, cold",
                "ipam-ds-node-annotation alone, cold",
                "ipam-ds-kube-node alone, warm",
                "ipam-ds-node-annotation alone, warm",
                "curl",
                "kubectl",
            ],
            columns: LOGINS,
        },
        Table::Cases {
            corner: "chain with ipam-da-local",
            cases: &CHAINS,
            columns: ["ADD", "DEL"],
        },
    ],
    drawing: None,
    crowd: &[],
    crowded: 0,
    targets: &[
        warm("ipam-ds-kube-node, warm ADD"),
        warm("ipam-ds-node-annotation, warm ADD"),
        cold("ipam-ds-kube-node alone, cold with a client certificate", FLOORS[0]),
        cold("ipam-ds-kube-node alone, cold with a token", FLOORS[1]),
        cold("ipam-ds-node-annotation alone, cold with a client certificate", FLOORS[0]),
        cold("ipam-ds-node-annotation alone, cold with a token", FLOORS[1]),
        memory("ipam-ds-kube-node alone, cold with a client certificate"),
        memory("ipam-ds-node-annotation alone, cold with a client certificate"),
        memory("ipam-ds-kube-node, cold"),
        Size { of: &SELECTORS, most: 3072 },
    ],
    floor: Some("kube-floor"),
};

/// By what they read of the node object: its podCIDRs, an annotation.
const SELECTORS: [&str; 2] = ["ipam-ds-kube-node", "ipam-ds-node-annotation"];

const LOGINS: [&str; 2] = ["with a client certificate", "with a token"];

const FLOORS: [&str; 2] = ["floor with a client certificate", "floor with a token"];

/// By their selectors: one that asks nobody, then those that believe what they remember, and those
/// that ask each time.
const CHAINS: [&str; 5] = [
    "ipam-ds-static",
    "ipam-ds-kube-node, warm",
    "ipam-ds-node-annotation, warm",
    "ipam-ds-kube-node, cold",
    "ipam-ds-node-annotation, cold",
];

const fn warm(of: &'static str) -> Target {
    Ratio { of, to: "ipam-ds-static ADD", held: 0, most: [1.3; 2] }
}

const fn cold(of: &'static str, to: &'static str) -> Target {
    Ratio { of, to, held: 0, most: [1.3; 2] }
}

const fn memory(of: &'static str) -> Target {
    Memory { of, verbs: &["ADD"], most: 8192 }
}

/// A server with the node of this machine, and who asks it.
struct Server {
    kube: Kube,
    callers: Callers,
}

/// A login, with the files that it consists of.
pub struct LoginFiles {
    pub kubeconfig: PathBuf,
    pub authority: String,
    pub own: Vec<String>,
}

fn start(stage: &Stage<'_>, _held: &[usize]) -> Sites {
    let programs =
        ["ipam-delegated", "ipam-ds-static", "ipam-da-local", SELECTORS[0], SELECTORS[1]];
    let plugins = stage.plugins("bin", &programs);
    plugins.install(&stage.build.program("kube-floor"));
    let kube = Kube::start();
    create_node(&kube);
    let token = kube.user();
    kube.allow_reading_nodes(&token, &[NODE]);
    let certificate = kube.kubelet(NODE);
    let logins = [
        LoginFiles::write(&kube, &certificate, &stage.state().join("certificate"), &["crt", "key"]),
        LoginFiles::write(&kube, &token, &stage.state().join("token"), &["token"]),
    ];
    let networks = Networks { root: stage.state(), plugins: &plugins, callers: Callers::new() };
    let mut callers = networks.all(&logins);
    for (name, login) in FLOORS.into_iter().zip(&logins) {
        let get = format!("GET application/json {}", path());
        let mut arguments = vec!["VERB".to_owned(), kube.endpoint(), get, String::new()];
        arguments.push(login.authority.clone());
        arguments.extend_from_slice(&login.own);
        callers.insert(name.to_owned(), plugins.tool("kube-floor", arguments));
    }
    let others = [("curl", curl(&kube, &logins[0])), ("kubectl", kubectl(&logins[0]))];
    for (name, arguments) in others {
        match installed(name) {
            Some(program) => {
                callers.insert(format!("{name} {}", LOGINS[0]), plugins.tool(program, arguments));
            }
            None => println!("without {name}, which is not installed\n"),
        }
    }
    vec![Box::new(Server { kube, callers })]
}

impl Site for Server {
    fn callers(&self) -> &Callers {
        &self.callers
    }

    fn round(&self, turn: &mut Turn<'_>) {
        for (name, caller) in &self.callers {
            if CHAINS.contains(&name.as_str()) {
                turn.pair(&self.callers, name);
            } else {
                turn.push(name, caller.call("ADD", turn.container));
            }
        }
    }

    /// What the server is asked in an ADD of each chain.
    fn more(&self, _stage: &Stage<'_>) -> Vec<Row> {
        let row = |name: &&str| {
            let (chain, wanted) = (&self.callers[*name], usize::from(name.ends_with("cold")));
            let asked = self.kube.requests_during(|| {
                chain.call("ADD", "counted");
            });
            chain.call("DEL", "counted");
            let what = format!("requests of an ADD of the chain with {name}: {wanted}");
            Row::new(what, asked.len().to_string(), asked.len() == wanted)
        };
        CHAINS[1..].iter().map(row).collect()
    }
}

/// Callers with leases and state of their own each, below a folder.
struct Networks<'a> {
    root: &'a Path,
    plugins: &'a Plugins,
    callers: Callers,
}

impl Networks<'_> {
    fn all(mut self, logins: &[LoginFiles; 2]) -> Callers {
        self.chain(CHAINS[0], "ipam-ds-static", pool());
        for selector in SELECTORS {
            for (state, ttl, count) in [("warm", "1h", 1), ("cold", "0s", 2)] {
                for (login, with) in logins.iter().zip(LOGINS).take(count) {
                    let keys = asking(selector, &login.kubeconfig, ttl);
                    self.alone(&format!("{selector} alone, {state} {with}"), selector, keys);
                }
                let keys = asking(selector, &logins[0].kubeconfig, ttl);
                self.chain(&format!("{selector}, {state}"), selector, keys);
            }
        }
        self.callers
    }

    fn chain(&mut self, name: &str, selector: &str, keys: Value) {
        // An annotation takes the place of the section, so the folder of leases is given here.
        let leases = self.root.join(format!("{name}.leases"));
        let delegates = json!([selector, {"type": "ipam-da-local", "dataDir": leases}]);
        let ipam = json!({
            "type": "ipam-delegated", "delegates": delegates, "stateDir": self.root.join(name),
        });
        self.callers.insert(name.to_owned(), self.plugins.plugin(network(ipam, keys)));
    }

    /// What a chain gives a selector.
    fn alone(&mut self, name: &str, selector: &str, keys: Value) {
        let ipam = json!({"type": selector, "node": "bench", "stateDir": self.root.join(name)});
        let network = first(network(ipam, keys));
        self.callers.insert(name.to_owned(), self.plugins.plugin(network));
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

impl LoginFiles {
    pub fn write(server: &Kube, login: &Login, folder: &Path, own: &[&str]) -> Self {
        fs::create_dir(folder).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        let kubeconfig = Kubeconfig::of(server, login).material(Material::Files);
        Self {
            kubeconfig: kubeconfig.write(&folder.join("kubeconfig")),
            authority: file("test-ca.crt"),
            own: own.iter().map(|name| file(&format!("test.{name}"))).collect(),
        }
    }
}

fn curl(server: &Kube, login: &LoginFiles) -> Vec<String> {
    let url = format!("{}{}", server.url(), path());
    let options = ["--disable", "--silent", "--fail", "--cacert", &login.authority];
    let own = ["--cert", &login.own[0], "--key", &login.own[1], &url];
    options.into_iter().chain(own).map(str::to_owned).collect()
}

/// What kubectl keeps lies beside its kubeconfig.
fn kubectl(login: &LoginFiles) -> Vec<String> {
    let cache = login.kubeconfig.with_file_name("cache");
    let files = [("--kubeconfig", &login.kubeconfig), ("--cache-dir", &cache)];
    let files = files.map(|(option, file)| format!("{option}={}", file.display()));
    files.into_iter().chain(["get", "node", NODE, "--output=json"].map(str::to_owned)).collect()
}
