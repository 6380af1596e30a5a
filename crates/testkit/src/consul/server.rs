//! One server: how it is started, stopped and started again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, Token};
use super::http::Place as Listener;
use super::program;
use crate::servers::daemon::{Daemon, Place, Server};
use crate::servers::process;

/// A running server; as a [`Client`], with every right.
pub type Consul = Daemon<ConsulServer>;

/// A server that serves TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Whether clients need a certificate of this authority.
    pub verify_incoming: bool,
}

/// Settings of a server, before it starts. Elections are as quick as a configuration can make them.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    tls: Option<Tls>,
    acl: bool,
    ports: Option<[u16; 3]>,
}

impl Builder {
    /// With HTTPS and without HTTP, but for the test's own client.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// With ACLs, by which nothing is allowed but to [`Consul::management`] and to tokens.
    pub fn acl(mut self) -> Self {
        self.acl = true;
        self
    }

    /// On the ports of a server that was killed.
    pub fn in_place_of(mut self, killed: &Consul) -> Self {
        let Peers { serf, rpc, .. } = killed.peers;
        self.ports = Some([killed.address().port(), serf, rpc]);
        self
    }

    /// Starts a server of its own on 127.0.0.1 and waits until it answers.
    #[track_caller]
    pub fn start(self) -> Consul {
        Consul::first_ready(|| {
            let [client, serf, rpc] = self.ports.unwrap_or_else(process::free_ports);
            let address = Ipv4Addr::LOCALHOST;
            let place = Place::at(SocketAddrV4::new(address, client).into());
            let peers = Peers { address, serf, rpc, cluster: vec![address] };
            Consul::launch(self.clone(), place, peers)
        })
    }
}

/// Where it meets other servers.
pub(super) struct Peers {
    /// Its address for them, and its ports there.
    pub address: Ipv4Addr,
    pub serf: u16,
    pub rpc: u16,
    /// All members' addresses.
    pub cluster: Vec<Ipv4Addr>,
}

/// What a Consul has of its own.
pub struct ConsulServer {
    pub(super) peers: Peers,
    options: Builder,
    /// With every right, as soon as it is known.
    client: OnceLock<Client>,
    management: OnceLock<Token>,
}

/// A store as it was at one time.
pub struct Snapshot(Vec<u8>);

impl Consul {
    /// Starts a server with default settings on 127.0.0.1 and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The token that may do everything, of a server with ACLs.
    pub fn management(&self) -> &Token {
        self.management.get().expect("a server with ACLs")
    }

    /// The test's own client, without a token.
    pub fn stranger(&self) -> Client {
        Client::new(Listener::Socket(self.socket()), None)
    }

    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.ask("GET", "snapshot", b"").success().body)
    }

    /// Makes its store that of a snapshot, with its tokens.
    #[track_caller]
    pub fn restore(&self, snapshot: &Snapshot) {
        self.ask("PUT", "snapshot", &snapshot.0).success();
    }

    /// Whether it answers a consistent read and is the server that was started: its name is nobody
    /// else's.
    pub fn answers(&self) -> Result<(), String> {
        let client = self.client.get().ok_or("its token is not known yet")?;
        let client = match &self.options.tls {
            None => &Client::to(&self.endpoint()).with_token(client.token()),
            // Nobody else has its socket.
            Some(_) => client,
        };
        let client = client.patient_for(Duration::from_secs(2));
        let itself = asked(&client, "GET", "agent/self")?;
        if itself["Config"]["NodeName"] != self.name() {
            return Err(format!("another server has its port: {}", itself["Config"]));
        }
        if self.options.acl {
            // A member begins with the ACLs of old servers, and knows no tokens.
            asked(&client, "GET", "acl/token/self")?;
        }
        asked(&client, "GET", "kv/?keys&separator=/&consistent").map(drop)
    }

    /// Takes the cluster's token for its own.
    pub(super) fn adopt(&self, token: Option<&Token>) {
        if let Some(token) = token {
            let _ = self.management.set(token.clone());
        }
        let _ = self.client.set(self.stranger().with_token(token.map(|t| t.secret.as_str())));
    }

    pub(super) fn has_acl(&self) -> bool {
        self.options.acl
    }

    /// Starts a server and does not wait.
    pub(super) fn launch(options: Builder, place: Place, peers: Peers) -> Self {
        let (client, management) = (OnceLock::new(), OnceLock::new());
        let consul = Self::new(place, ConsulServer { peers, options, client, management });
        fs::write(consul.path("config.json"), consul.config().to_string()).unwrap();
        consul.launch_again();
        consul
    }

    /// Where the test's own client reaches it, whatever becomes of the network.
    fn socket(&self) -> PathBuf {
        self.path("http")
    }

    fn config(&self) -> Value {
        let peers = &self.peers;
        let socket = format!("unix://{}", self.socket().display());
        let (address, port) = (self.address().ip().to_string(), self.address().port());
        let mut config = json!({
            "server": true,
            "bootstrap_expect": peers.cluster.len(),
            "node_name": self.name(),
            "data_dir": self.path("data"),
            "bind_addr": peers.address,
            "client_addr": address,
            "addresses": {"http": format!("{address} {socket}")},
            "ports": {
                "http": port,
                "https": -1,
                "dns": -1,
                "grpc": -1,
                "serf_lan": peers.serf,
                "serf_wan": -1,
                "server": peers.rpc,
            },
            "performance": {"raft_multiplier": 1},
            // A member that was killed comes back.
            "autopilot": {"cleanup_dead_servers": false},
            "disable_update_check": true,
        });
        if peers.cluster.len() > 1 {
            merge(&mut config, &json!({"retry_join": peers.cluster, "retry_interval": "1s"}));
        }
        if self.options.acl {
            merge(&mut config, &json!({"acl": {"enabled": true, "default_policy": "deny"}}));
        }
        if let Some(tls) = &self.options.tls {
            let tls = json!({
                "addresses": {"http": socket},
                "ports": {"http": 8500, "https": port},
                "ca_file": tls.authority,
                "cert_file": tls.certificate,
                "key_file": tls.key,
                "verify_incoming_https": tls.verify_incoming,
            });
            merge(&mut config, &tls);
        }
        config
    }
}

impl Server for ConsulServer {
    fn program() -> PathBuf {
        program::consul()
    }

    fn configure(consul: &Consul, command: &mut Command) {
        command.arg("agent").arg("-config-file").arg(consul.path("config.json"));
    }

    fn serves_tls(&self) -> bool {
        self.options.tls.is_some()
    }

    /// As [`Consul::answers`], after all that it needs once.
    fn ready(consul: &Consul) -> Result<(), String> {
        if consul.client.get().is_none() {
            if consul.options.acl {
                let stranger = consul.stranger();
                let token = asked(&stranger, "PUT", "acl/bootstrap")?;
                let text = |key: &str| token[key].as_str().unwrap_or_default().to_owned();
                consul
                    .adopt(Some(&Token { accessor: text("AccessorID"), secret: text("SecretID") }));
            } else {
                consul.adopt(None);
            }
        }
        consul.answers()
    }
}

impl Deref for ConsulServer {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.get().expect("a server that has answered")
    }
}

/// Puts the members of an object over those of another.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

/// What a server answers that is asked before it may be ready.
fn asked(client: &Client, method: &str, target: &str) -> Result<Value, String> {
    let answer = client.try_ask(method, target, b"").map_err(|e| format!("{target}: {e}"))?;
    if answer.status == 404 {
        return Ok(Value::Null);
    }
    if answer.status != 200 {
        return Err(format!("{target}: {}: {}", answer.status, answer.text()));
    }
    serde_json::from_slice(&answer.body).map_err(|e| format!("{target}: {e}: {}", answer.text()))
}
