//! One server: how it is started, stopped and started again.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::programs;
use crate::servers::process;
use crate::servers::running::{IN_USE, PATIENCE, Running};

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

    /// How many seconds a token of an authenticated user lives without being used.
    pub fn token_ttl(self, seconds: u32) -> Self {
        self.flag(format!("--auth-token-ttl={seconds}"))
    }

    /// On the ports of a server that was killed.
    pub fn in_place_of(mut self, killed: &Etcd) -> Self {
        let Place { client, peer, metrics, .. } = &killed.place;
        self.ports = Some([client, peer, metrics].map(SocketAddrV4::port));
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
        let mut attempts = 0;
        loop {
            attempts += 1;
            let etcd = Etcd::launch(self.clone(), Place::local(self.ports));
            match etcd.running.wait(|| etcd.ready()) {
                Ok(()) => {
                    etcd.apply_account();
                    return etcd;
                }
                // Another program took a port between our looking and etcd's listening.
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
    pub peer: SocketAddrV4,
    pub metrics: SocketAddrV4,
    /// Of a member: all members' names and addresses, and the token of the cluster.
    pub cluster: Option<(String, String)>,
}

impl Place {
    fn local(ports: Option<[u16; 3]>) -> Self {
        let ports = ports.unwrap_or_else(process::free_ports);
        let [client, peer, metrics] =
            ports.map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        let name = process::unique();
        Self { name, namespace: None, client, peer, metrics, cluster: None }
    }

    /// `NAME=URL,…` of all members.
    pub fn members(&self) -> String {
        let alone = || format!("{}=http://{}", self.name, self.peer);
        self.cluster.as_ref().map_or_else(alone, |(members, _)| members.clone())
    }
}

/// A running server. It is killed and its data are removed when this is dropped.
pub struct Etcd {
    pub(super) place: Place,
    pub(super) options: Builder,
    pub(super) state: Mutex<State>,
    running: Running,
    // It goes after the process.
    pub(super) folder: TempDir,
}

/// What changes while a server lives.
pub(super) struct State {
    pub data: PathBuf,
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

    /// `ADDRESS:PORT` for clients.
    pub fn endpoint(&self) -> String {
        self.place.client.to_string()
    }

    /// The endpoint with `http://`, or with `https://` where it serves TLS.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.place.client)
    }

    /// The name it gave itself in its cluster.
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

    /// Stops its process, which keeps its connections and answers nothing until [`Etcd::cont`].
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

    /// As [`Etcd::restart`], without waiting: for a member while most others are away.
    #[track_caller]
    pub fn launch_again(&self) {
        let mut command = process::tied(&programs::etcd(), self.place.namespace.as_deref());
        if cfg!(target_arch = "aarch64") {
            // Before 3.5 it would not start there.
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command.args(self.flags(&self.state()));
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

    pub(super) fn tls(&self) -> Option<&Tls> {
        self.options.tls.as_ref()
    }

    pub(super) fn account(&self) -> Option<&Account> {
        self.options.account.as_ref()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a server and does not wait.
    pub(super) fn launch(options: Builder, place: Place) -> Self {
        let folder = process::folder();
        let token = place.cluster.as_ref().map_or_else(process::unique, |(_, token)| token.clone());
        let data = folder.path().join("data");
        let state = Mutex::new(State { data, token, authenticated: false });
        let running = Running::new(folder.path().join("log"));
        let this = Self { place, options, state, running, folder };
        this.launch_again();
        this
    }

    fn flags(&self, state: &State) -> Vec<String> {
        let place = &self.place;
        let mut flags = vec![
            format!("--name={}", place.name),
            format!("--data-dir={}", state.data.display()),
            format!("--listen-client-urls={}", self.url()),
            format!("--advertise-client-urls={}", self.url()),
            format!("--listen-peer-urls=http://{}", place.peer),
            format!("--initial-advertise-peer-urls=http://{}", place.peer),
            format!("--listen-metrics-urls=http://{}", place.metrics),
            format!("--initial-cluster={}", place.members()),
            format!("--initial-cluster-token={}", state.token),
            // Passwords are hashed quickly: they guard nothing here.
            "--bcrypt-cost=4".to_owned(),
        ];
        if place.cluster.is_none() {
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

    /// Whether this very server, and no other on its port, answers a linearizable read.
    fn ready(&self) -> Result<(), String> {
        // etcdctl would wait a second before it tries again.
        TcpStream::connect_timeout(&self.place.client.into(), PATIENCE / 60)
            .map_err(|error| error.to_string())?;
        self.answers()
    }
}
