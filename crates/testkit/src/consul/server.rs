//! One server: how it is started, stopped and started again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Client, Token};
use super::http::Place as Listener;
use super::program;
use crate::servers::process;
use crate::servers::running::{IN_USE, Running};

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
#[derive(Clone, Debug)]
pub struct Builder {
    tls: Option<Tls>,
    acl: bool,
    more: Value,
    ports: Option<[u16; 3]>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { tls: None, acl: false, more: json!({}), ports: None }
    }
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

    /// Any other member of the agent's configuration; objects are merged.
    pub fn config(mut self, more: &Value) -> Self {
        merge(&mut self.more, more);
        self
    }

    /// On the ports of a server that was killed.
    pub fn in_place_of(mut self, killed: &Consul) -> Self {
        let Place { client, serf, rpc, .. } = &killed.place;
        self.ports = Some([client.port(), *serf, *rpc]);
        self
    }

    /// Starts a server of its own on 127.0.0.1 and waits until it answers.
    #[track_caller]
    pub fn start(self) -> Consul {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let consul = Consul::launch(self.clone(), Place::local(self.ports));
            match consul.running.wait(|| consul.ready()) {
                Ok(()) => return consul,
                // Another program took a port between our looking and Consul's listening.
                Err(reason) if reason.contains(IN_USE) && attempts < 10 => {}
                Err(reason) => panic!("{reason}"),
            }
        }
    }
}

/// Where a server runs.
pub(super) struct Place {
    /// Its name, which no other server has.
    pub name: String,
    pub namespace: Option<PathBuf>,
    pub client: SocketAddrV4,
    /// Its address for other servers, and its ports there.
    pub peer: Ipv4Addr,
    pub serf: u16,
    pub rpc: u16,
    /// Of a member: all members' addresses.
    pub cluster: Vec<Ipv4Addr>,
}

impl Place {
    fn local(ports: Option<[u16; 3]>) -> Self {
        let [client, serf, rpc] = ports.unwrap_or_else(process::free_ports);
        let peer = Ipv4Addr::LOCALHOST;
        let client = SocketAddrV4::new(peer, client);
        let (name, cluster) = (process::unique(), vec![peer]);
        Self { name, namespace: None, client, peer, serf, rpc, cluster }
    }
}

/// A running server; as a [`Client`], with every right. It is killed and its data are removed when
/// this is dropped.
pub struct Consul {
    pub(super) place: Place,
    options: Builder,
    /// With every right, as soon as it is known.
    client: OnceLock<Client>,
    management: OnceLock<Token>,
    running: Running,
    // It goes after the process.
    folder: TempDir,
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

    /// `ADDRESS:PORT` for clients.
    pub fn endpoint(&self) -> String {
        self.place.client.to_string()
    }

    /// The endpoint with `http://`, or with `https://` where it serves TLS.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.place.client)
    }

    /// The name it gave itself.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Its process id; none while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.running.pid()
    }

    /// Stops its process, which keeps its connections and answers nothing until [`Consul::cont`].
    #[track_caller]
    pub fn stop(&self) {
        self.running.stop();
    }

    /// Lets a stopped process go on.
    #[track_caller]
    pub fn cont(&self) {
        self.running.cont();
    }

    /// Kills it with SIGKILL and waits until it has gone; nothing where it has gone before.
    pub fn kill(&self) {
        self.running.kill();
    }

    /// Kills it, starts it again with the same ports and data, and waits until it answers. A member
    /// answers when most members do.
    #[track_caller]
    pub fn restart(&self) {
        self.running.restart(|| self.launch_again(), || self.ready());
    }

    /// As [`Consul::restart`], without waiting: for a member while most others are away.
    #[track_caller]
    pub fn launch_again(&self) {
        let mut command = process::tied(&program::consul(), self.place.namespace.as_deref());
        command.arg("agent").arg("-config-file").arg(self.folder.path().join("config.json"));
        self.running.start(command);
    }

    /// Waits until it answers.
    #[track_caller]
    pub fn until_ready(&self) {
        self.running.wait(|| self.ready()).unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// What it has logged since it was last started.
    pub fn log(&self) -> String {
        self.running.log()
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

    /// As [`Consul::answers`], after all that it needs once.
    pub(super) fn ready(&self) -> Result<(), String> {
        if self.client.get().is_none() {
            if self.options.acl {
                let stranger = self.stranger();
                let token = asked(&stranger, "PUT", "acl/bootstrap")?;
                let text = |key: &str| token[key].as_str().unwrap_or_default().to_owned();
                self.adopt(Some(&Token { accessor: text("AccessorID"), secret: text("SecretID") }));
            } else {
                self.adopt(None);
            }
        }
        self.answers()
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
    pub(super) fn launch(options: Builder, place: Place) -> Self {
        let folder = process::folder();
        let running = Running::new(folder.path().join("log"));
        let (client, management) = (OnceLock::new(), OnceLock::new());
        let this = Self { place, options, client, management, running, folder };
        let config = this.config().to_string();
        fs::write(this.folder.path().join("config.json"), config).unwrap();
        this.launch_again();
        this
    }

    /// Where the test's own client reaches it, whatever becomes of the network.
    fn socket(&self) -> PathBuf {
        self.folder.path().join("http")
    }

    fn config(&self) -> Value {
        let place = &self.place;
        let socket = format!("unix://{}", self.socket().display());
        let (address, port) = (place.client.ip().to_string(), place.client.port());
        let mut config = json!({
            "server": true,
            "bootstrap_expect": place.cluster.len(),
            "node_name": place.name,
            "data_dir": self.folder.path().join("data"),
            "bind_addr": place.peer,
            "client_addr": address,
            "addresses": {"http": format!("{address} {socket}")},
            "ports": {
                "http": port,
                "https": -1,
                "dns": -1,
                "grpc": -1,
                "serf_lan": place.serf,
                "serf_wan": -1,
                "server": place.rpc,
            },
            "performance": {"raft_multiplier": 1},
            // A member that was killed comes back.
            "autopilot": {"cleanup_dead_servers": false},
            "disable_update_check": true,
        });
        if place.cluster.len() > 1 {
            merge(&mut config, &json!({"retry_join": place.cluster, "retry_interval": "1s"}));
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
        merge(&mut config, &self.options.more);
        config
    }
}

impl Deref for Consul {
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
