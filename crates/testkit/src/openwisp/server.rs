//! One server: how it is started, stopped and started again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::program::{Installation, MODULES};
use crate::servers::daemon::{Daemon, Place, Server};
use crate::servers::process;
use crate::world::{start, wait};

/// A running server; as a [`Client`], with every right. Its database lives on while it is killed.
pub type OpenWisp = Daemon<OpenWispServer>;

/// The administrator's token, in the database that every server begins with.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";

/// The organization in that database.
pub const ORGANIZATION: &str = "00000000-0000-4000-8000-000000000001";

/// Settings of a server, before it starts.
#[derive(Clone, Debug)]
pub struct Builder {
    workers: usize,
    rate: Option<String>,
    port: Option<u16>,
}

impl Builder {
    /// With so many processes that answer, of which each does one request at a time. With one,
    /// no two requests meet.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// With a limit for each user and worker, such as OpenWISP's `400/hour`.
    pub fn rate(mut self, rate: &str) -> Self {
        self.rate = Some(rate.to_owned());
        self
    }

    /// On the port of a server that was killed.
    pub fn in_place_of(mut self, killed: &OpenWisp) -> Self {
        self.port = Some(killed.address().port());
        self
    }

    /// Starts a server of its own on 127.0.0.1 and waits until it answers, some 2 s on two cores.
    /// [`OpenWisp::shared`] is there at once.
    #[track_caller]
    pub fn start(self) -> OpenWisp {
        OpenWisp::first_ready(|| OpenWisp::launch(self.clone()))
    }
}

/// What an OpenWISP has of its own.
pub struct OpenWispServer {
    options: Builder,
    client: Client,
}

/// A database as it was at one time.
pub struct Snapshot(Vec<u8>);

impl OpenWisp {
    /// Starts a server with default settings on 127.0.0.1 and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Four workers, and no limit of requests.
    pub fn builder() -> Builder {
        Builder { workers: 4, rate: None, port: None }
    }

    /// The database, while nothing is written.
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(fs::read(self.database()).unwrap())
    }

    /// Makes its database that of a snapshot, with its tokens; no request may be under way. A
    /// worker opens the database anew for each request.
    #[track_caller]
    pub fn restore(&self, snapshot: &Snapshot) {
        let new = self.path("restored.sqlite3");
        fs::write(&new, &snapshot.0).unwrap();
        fs::rename(new, self.database()).unwrap();
    }

    /// Makes the records of an organization older by so much.
    #[track_caller]
    pub fn age(&self, organization: &str, by: Duration) {
        let organization = organization.replace('-', "");
        let back = |column: &str| {
            format!(
                "{column} = strftime('%Y-%m-%d %H:%M:%f', {column}, '-{} seconds')",
                by.as_secs()
            )
        };
        self.sql(&format!(
            "UPDATE openwisp_ipam_ipaddress SET {}, {} WHERE subnet_id IN \
             (SELECT id FROM openwisp_ipam_subnet WHERE organization_id = '{organization}')",
            back("created"),
            back("modified"),
        ));
    }

    /// Writes a record of each of many addresses, as if made one after another.
    #[track_caller]
    pub fn records_of<'a>(
        &self,
        subnet: &str,
        records: impl IntoIterator<Item = (String, &'a str)>,
    ) {
        let subnet = subnet.replace('-', "");
        let rows = records.into_iter().map(|(address, text)| json!([address, text, subnet]));
        self.change_all(
            "INSERT INTO openwisp_ipam_ipaddress \
             (id, created, modified, ip_address, description, subnet_id) \
             SELECT lower(hex(randomblob(16))), now, now, ?, ?, ? \
             FROM (SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS now)",
            &rows.collect(),
        );
    }

    /// Changes the database by a statement, beside the server.
    #[track_caller]
    pub fn sql(&self, statement: &str) {
        self.change_all(statement, &json!([[]]));
    }

    /// Carries out a statement with the values of each row.
    #[track_caller]
    fn change_all(&self, statement: &str, rows: &Value) {
        let script = "import json, sqlite3, sys\n\
                      connection = sqlite3.connect(sys.argv[1], timeout=30)\n\
                      connection.executemany(sys.argv[2], json.load(sys.stdin))\n\
                      connection.commit()";
        let mut python = process::plain(Installation::find().python());
        python.args(["-c", script]).arg(self.database()).arg(statement);
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = wait(start(python, rows));
        assert_eq!(outcome.exit, Some(0), "{statement}: {outcome:?}");
    }

    /// Whether it answers a read and is the server that was started: no other one has its name.
    pub fn answers(&self) -> Result<(), String> {
        let client = self.client.patient_for(Duration::from_secs(5));
        let name = client.name().map_err(|error| error.to_string())?;
        if name != self.name() {
            return Err(format!("another server has its port: {name}"));
        }
        let subnets = client.try_ask("GET", "ipam/subnet/?page_size=1", None);
        let subnets = subnets.map_err(|error| error.to_string())?;
        match subnets.status {
            200 | 429 => Ok(()),
            status => Err(format!("{status}: {}", subnets.text())),
        }
    }

    /// Starts a server and does not wait.
    fn launch(options: Builder) -> Self {
        let port = options.port.unwrap_or_else(|| process::free_ports::<1>()[0]);
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into();
        let client = Client::to(address, Some(TOKEN));
        let server = Self::new(Place::at(address), OpenWispServer { options, client });
        fs::copy(Installation::find().database(), server.database()).unwrap();
        server.launch_again();
        server
    }

    fn database(&self) -> PathBuf {
        self.path("database.sqlite3")
    }
}

impl Server for OpenWispServer {
    fn program() -> PathBuf {
        Installation::find().python()
    }

    fn configure(server: &OpenWisp, command: &mut Command) {
        command.args(["-m", "gunicorn", "--config"]).arg(format!("{MODULES}/gunicorn.conf.py"));
        command.arg("--bind").arg(server.endpoint());
        command.arg("--workers").arg(server.options.workers.to_string());
        command.current_dir(server.folder());
        command.env("PYTHONPATH", MODULES).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("DJANGO_SETTINGS_MODULE", "openwisp_settings");
        command.env("OPENWISP_DATABASE", server.database()).env("OPENWISP_NAME", server.name());
        if let Some(rate) = &server.options.rate {
            command.env("OPENWISP_RATE", rate);
        }
    }

    fn serves_tls(&self) -> bool {
        false
    }

    fn ready(server: &OpenWisp) -> Result<(), String> {
        server.answers()
    }
}

impl Deref for OpenWispServer {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
