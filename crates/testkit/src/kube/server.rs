//! One server: how it is started, stopped and started again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::client::Client;
use super::logins::{TEST, Taken};
use super::{program, tls};
use crate::certificates::Certificates;
use crate::etcd::Etcd;
use crate::servers::process;
use crate::servers::running::{IN_USE, Running};

/// Settings of a server, before it starts.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    pub(super) users: Vec<(String, Vec<String>)>,
    pub(super) flags: Vec<String>,
    on_ipv6: bool,
}

impl Builder {
    /// With a user of this name, in these groups, who has a static token. Users of other names, too,
    /// have one: see [`Kube::user`].
    pub fn user(mut self, name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push((name.to_owned(), groups));
        self
    }

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
        let mut attempts = 0;
        loop {
            attempts += 1;
            let kube = Kube::launch(self.clone());
            match kube.running.wait(|| kube.answers()) {
                Ok(()) => return kube,
                // Another program took a port between our looking and the server's listening.
                Err(reason) if reason.contains(IN_USE) && attempts < 10 => {}
                Err(reason) => panic!("{reason}"),
            }
        }
    }
}

/// A running server. It is killed and its data are removed when this is dropped.
///
/// It is the test's own client, too, which may do everything; nothing that it does is in the list
/// of requests.
pub struct Kube {
    pub(super) options: Builder,
    pub(super) users: Taken,
    address: SocketAddr,
    client: Client,
    /// What all tokens of this server end with.
    secret: String,
    running: Running,
    // It goes after the process, and so does what follows.
    etcd: Etcd,
    certificates: Certificates,
    folder: TempDir,
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

    /// `ADDRESS:PORT` for clients.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// `https://ADDRESS:PORT`. The certificate is for 127.0.0.1, `::1` and localhost.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
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
        [self.folder.path().into(), self.certificates.folder().into(), self.etcd.folder()]
    }

    /// The process ids of it and its store; none of what is killed.
    pub fn pids(&self) -> [Option<u32>; 2] {
        [self.running.pid(), self.etcd.pid()]
    }

    /// Stops its process, which keeps its connections and answers nothing until [`Kube::cont`].
    #[track_caller]
    pub fn stop(&self) {
        self.running.stop();
    }

    /// Lets a stopped process go on.
    #[track_caller]
    pub fn cont(&self) {
        self.running.cont();
    }

    /// Kills it with SIGKILL and waits until it has gone; nothing where it has gone before. Its
    /// store lives on.
    pub fn kill(&self) {
        self.running.kill();
    }

    /// Kills it, starts it again with the same port, data and logins, and waits until it is ready.
    #[track_caller]
    pub fn restart(&self) {
        self.running.restart(|| self.launch_again(), || self.answers());
    }

    /// What it has logged since it was last started.
    pub fn log(&self) -> String {
        self.running.log()
    }

    /// Whether it is ready, and nobody else: no other server has a certificate of its authority.
    pub fn answers(&self) -> Result<(), String> {
        let client = self.client.patient_for(Duration::from_secs(5));
        let answer = client.try_ask("GET", "/readyz", b"").map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    /// Starts a server and does not wait.
    fn launch(options: Builder) -> Self {
        let folder = process::folder();
        let [v4, v6] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let certificates = Certificates::make_in(process::folder(), &[v6]);
        let etcd = Etcd::start();
        let ip: IpAddr = if options.on_ipv6 { v6 } else { v4 };
        let [port] = process::free_ports();
        let address = SocketAddr::new(ip, port);
        let secret = format!("{:016x}", process::random());
        let tls = tls::client(&certificates.authority(), None);
        let client = Client::new(address, tls, Some(format!("{TEST}-{secret}")));
        let running = Running::new(folder.path().join("log"));
        let users = Taken::default();
        let this =
            Self { options, users, address, client, secret, running, etcd, certificates, folder };
        this.write_files();
        this.launch_again();
        this
    }

    #[track_caller]
    fn launch_again(&self) {
        let mut command = process::tied(&program::kube_apiserver(), None);
        command.args(self.flags()).current_dir(self.folder.path());
        self.running.start(command);
    }
}

impl Deref for Kube {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
