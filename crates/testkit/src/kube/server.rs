//! One server: how it is started, stopped and started again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::client::Client;
use super::logins::{TEST, Taken};
use super::{program, tls};
use crate::certificates::Certificates;
use crate::etcd::Etcd;
use crate::servers::daemon::{Daemon, Place, Server};
use crate::servers::process;

/// A running server. Its store lives on while it is killed.
///
/// It is the test's own client, too, which may do everything; nothing that it does is in the list
/// of requests. Its certificate is for 127.0.0.1, `::1` and localhost.
pub type Kube = Daemon<KubeServer>;

/// Settings of a server, before it starts.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    pub(super) flags: Vec<String>,
    on_ipv6: bool,
}

impl Builder {
    /// On `::1` in place of 127.0.0.1.
    pub fn on_ipv6(mut self) -> Self {
        self.on_ipv6 = true;
        self
    }

    /// Any other flag, as `--name=value`; of those that are there, it takes the place.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts a server of its own on the loopback and waits until it is ready, some 3 s on two
    /// cores. [`Kube::shared`] is there at once.
    #[track_caller]
    pub fn start(self) -> Kube {
        Kube::first_ready(|| Kube::launch(self.clone()))
    }
}

/// What an API server has of its own.
pub struct KubeServer {
    pub(super) options: Builder,
    pub(super) users: Taken,
    client: Client,
    /// What all tokens of this server end with.
    secret: String,
    etcd: Etcd,
    certificates: Certificates,
}

impl Kube {
    /// Starts a server of its own and waits until it is ready.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The certificate of the authority that signed the server's, and by which it knows clients: no
    /// other server has it.
    pub fn authority(&self) -> PathBuf {
        self.certificates.authority()
    }

    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Its store.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// All folders of it and its store.
    pub fn folders(&self) -> [PathBuf; 3] {
        [self.folder(), self.certificates.folder().into(), self.etcd.folder()]
    }

    /// The process ids of it and its store; none of what is killed.
    pub fn pids(&self) -> [Option<u32>; 2] {
        [self.pid(), self.etcd.pid()]
    }

    /// Whether it is ready, and nobody else: no other server has a certificate of its authority.
    pub fn answers(&self) -> Result<(), String> {
        let client = self.client.patient_for(Duration::from_secs(5));
        let answer = client.try_ask("GET", "/readyz", b"").map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    /// Starts a server and does not wait.
    fn launch(options: Builder) -> Self {
        let [v4, v6] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let certificates = Certificates::make_in(process::folder(), &[v6]);
        let etcd = Etcd::start();
        let ip: IpAddr = if options.on_ipv6 { v6 } else { v4 };
        let [port] = process::free_ports();
        let address = SocketAddr::new(ip, port);
        let secret = format!("{:016x}", process::random());
        let tls = tls::client(&certificates.authority(), None);
        let client = Client::new(address, tls, Some(format!("{TEST}-{secret}")));
        let users = Taken::default();
        let server = KubeServer { options, users, client, secret, etcd, certificates };
        let kube = Self::new(Place::at(address), server);
        kube.write_files();
        kube.launch_again();
        kube
    }
}

impl Server for KubeServer {
    fn program() -> PathBuf {
        program::kube_apiserver()
    }

    fn configure(kube: &Kube, command: &mut Command) {
        command.args(kube.flags()).current_dir(kube.folder());
    }

    fn serves_tls(&self) -> bool {
        true
    }

    fn ready(kube: &Kube) -> Result<(), String> {
        kube.answers()
    }
}

impl Deref for KubeServer {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
