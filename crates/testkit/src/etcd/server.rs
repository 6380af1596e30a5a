//! One server: how it is started, stopped and started again.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::programs;
use crate::servers::daemon::{Daemon, Place, Server};
use crate::servers::process;

/// A running server.
pub type Etcd = Daemon<EtcdServer>;

/// A server that serves TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    /// What clients check the server's certificate with.
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// With it, clients need a certificate of this authority.
    pub client_authority: Option<PathBuf>,
    /// The certificate and key that [`Etcd::etcdctl`] shows.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A user who may read and write below a prefix.
#[derive(Clone, Debug)]
pub struct Account {
    pub name: String,
    pub password: String,
    pub prefix: String,
}

/// Settings of a server, before it starts.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    tls: Option<Tls>,
    account: Option<Account>,
    flags: Vec<String>,
    ports: Option<[u16; 3]>,
}

impl Builder {
    /// The size in bytes beyond which the alarm NOSPACE is raised.
    pub fn quota(self, bytes: u64) -> Self {
        self.flag(format!("--quota-backend-bytes={bytes}"))
    }

    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Switches authentication on, with this user and with root.
    pub fn auth(mut self, name: &str, password: &str, prefix: &str) -> Self {
        let [name, password, prefix] = [name, password, prefix].map(str::to_owned);
        self.account = Some(Account { name, password, prefix });
        self
    }

    /// On the ports of a server that was killed.
    pub fn in_place_of(mut self, killed: &Etcd) -> Self {
        let Ports { peer, metrics, .. } = &killed.ports;
        self.ports = Some([killed.address().port(), peer.port(), metrics.port()]);
        self
    }

    /// Any other flag, as `--name=value`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts a server of its own on 127.0.0.1 and waits until it answers.
    #[track_caller]
    pub fn start(self) -> Etcd {
        let etcd = Etcd::first_ready(|| {
            let ports = self.ports.unwrap_or_else(process::free_ports);
            let [client, peer, metrics] =
                ports.map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
            let ports = Ports { peer, metrics, cluster: None };
            Etcd::launch(self.clone(), Place::at(client.into()), ports)
        });
        etcd.apply_account();
        etcd
    }
}

/// Where it meets other members, and tells its metrics.
pub(super) struct Ports {
    pub peer: SocketAddrV4,
    pub metrics: SocketAddrV4,
    /// Of a member: all members' names and addresses, and the token of the cluster.
    pub cluster: Option<(String, String)>,
}

/// What an etcd has of its own.
pub struct EtcdServer {
    pub(super) ports: Ports,
    options: Builder,
    state: Mutex<State>,
}

/// What changes while a server lives.
pub(super) struct State {
    /// The folder of its data, in its own.
    pub data: String,
    pub token: String,
    pub authenticated: bool,
}

impl Etcd {
    /// Starts a server with default settings on 127.0.0.1 and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a server and does not wait.
    pub(super) fn launch(options: Builder, place: Place, ports: Ports) -> Self {
        let token = ports.cluster.as_ref().map_or_else(process::unique, |(_, token)| token.clone());
        let state = Mutex::new(State { data: "data".to_owned(), token, authenticated: false });
        let etcd = Self::new(place, EtcdServer { ports, options, state });
        etcd.launch_again();
        etcd
    }

    /// `NAME=URL,…` of all members.
    pub(super) fn members(&self) -> String {
        let alone = || format!("{}=http://{}", self.name(), self.ports.peer);
        self.ports.cluster.as_ref().map_or_else(alone, |(members, _)| members.clone())
    }

    fn flags(&self, state: &State) -> Vec<String> {
        let ports = &self.ports;
        let mut flags = vec![
            format!("--name={}", self.name()),
            format!("--data-dir={}", self.path(&state.data).display()),
            format!("--listen-client-urls={}", self.url()),
            format!("--advertise-client-urls={}", self.url()),
            format!("--listen-peer-urls=http://{}", ports.peer),
            format!("--initial-advertise-peer-urls=http://{}", ports.peer),
            format!("--listen-metrics-urls=http://{}", ports.metrics),
            format!("--initial-cluster={}", self.members()),
            format!("--initial-cluster-token={}", state.token),
            // Passwords are hashed quickly: they guard nothing here.
            "--bcrypt-cost=4".to_owned(),
        ];
        if ports.cluster.is_none() {
            // Alone it waits for nobody's vote.
            flags.extend(["--heartbeat-interval=10", "--election-timeout=100"].map(str::to_owned));
        }
        if let Some(tls) = self.tls() {
            flags.push(format!("--cert-file={}", tls.certificate.display()));
            flags.push(format!("--key-file={}", tls.key.display()));
            if let Some(authority) = &tls.client_authority {
                flags.push("--client-cert-auth".to_owned());
                flags.push(format!("--trusted-ca-file={}", authority.display()));
            }
        }
        flags.extend(self.options.flags.iter().cloned());
        flags
    }
}

impl EtcdServer {
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.options.tls.as_ref()
    }

    pub(super) fn account(&self) -> Option<&Account> {
        self.options.account.as_ref()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server for EtcdServer {
    fn program() -> PathBuf {
        programs::etcd()
    }

    fn configure(etcd: &Etcd, command: &mut Command) {
        if cfg!(target_arch = "aarch64") {
            // Before 3.5 it would not start there.
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command.args(etcd.flags(&etcd.state()));
    }

    fn serves_tls(&self) -> bool {
        self.options.tls.is_some()
    }

    /// By a linearizable read.
    fn ready(etcd: &Etcd) -> Result<(), String> {
        // etcdctl would wait a second before it tries again.
        TcpStream::connect_timeout(&etcd.address(), Duration::from_secs(1))
            .map_err(|error| error.to_string())?;
        etcd.answers()
    }
}
