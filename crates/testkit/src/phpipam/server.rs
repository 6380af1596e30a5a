//! The server: how it is started, and what a test does to it beside its clients.

use std::io::{self, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::api;
use super::database::{Database, Record, Snapshot, SubnetRow};
use super::login::{Logins, Security};
use crate::servers::http::{Answer, exchange};
use crate::servers::relay::read_request;

/// The id of the App.
pub const APP: &str = "cni";

/// The App's code.
pub const CODE: &str = "0123456789abcdef0123456789abcdef";

/// The user, for an App with tokens.
pub const USER: &str = "cni-user";

/// The user's password.
pub const PASSWORD: &str = "a-password-of-phpipam";

/// How the App keeps changes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// One change after another; one that waits too long gets status 200 and a failure.
    File,
    /// Changes meet, and the unique index refuses all but one.
    Disabled,
}

/// Settings of a server, before it starts.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) lock: LockKind,
    pub(super) wait: Duration,
    pub(super) security: Security,
    pub(super) is_read_only: bool,
    key_field: Option<String>,
}

/// What the connections of a server share.
pub(super) struct Site {
    pub(super) options: Builder,
    pub(super) database: Mutex<Database>,
    pub(super) logins: Mutex<Logins>,
    pub(super) turn: Turns,
    /// Whether the database is unreachable.
    pub(super) is_broken: Mutex<bool>,
    /// Whether connections end at once.
    is_down: Mutex<bool>,
}

/// A running server. It ends with the test's process.
pub struct PhpIpam {
    address: SocketAddr,
    site: Arc<Site>,
}

/// The lock of the App.
#[derive(Default)]
pub(super) struct Turns {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// A held lock.
pub struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for the lock; `None` after so long.
    pub(super) fn take(&self, patience: Duration) -> Option<Turn<'_>> {
        let is_taken = lock(&self.is_taken);
        let waited = self.freed.wait_timeout_while(is_taken, patience, |taken| *taken);
        let (mut is_taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *is_taken = true;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.is_taken) = false;
        self.0.freed.notify_one();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Builder {
    /// With changes that are kept apart so.
    pub fn lock(mut self, lock: LockKind) -> Self {
        self.lock = lock;
        self
    }

    /// With changes that wait no longer for the lock.
    pub fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// With an App of this security.
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// With an App that may only read.
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// With a custom field of addresses under a unique index.
    pub fn key_field(mut self, name: &str) -> Self {
        self.key_field = Some(name.to_owned());
        self
    }

    /// Starts a server on 127.0.0.1.
    #[track_caller]
    pub fn start(self) -> PhpIpam {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let database = Database { key_field: self.key_field.clone(), ..Database::default() };
        let site = Arc::new(Site {
            options: self,
            database: Mutex::new(database),
            logins: Mutex::default(),
            turn: Turns::default(),
            is_broken: Mutex::default(),
            is_down: Mutex::default(),
        });
        let kept = Arc::clone(&site);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let site = Arc::clone(&site);
                // A client that goes ends its connection; what it asked for goes on.
                thread::spawn(move || drop(serve(&client, &site)));
            }
        });
        PhpIpam { address, site: kept }
    }
}

fn serve(mut client: &TcpStream, site: &Site) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut requests = BufReader::new(client);
    while let Some(request) = read_request(&mut requests, client)? {
        if *lock(&site.is_down) {
            break;
        }
        let reply = api::answer(site, &request);
        let head = format!(
            "HTTP/1.1 {} X\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n\r\n",
            reply.status,
            reply.body.len()
        );
        client.write_all((head + &reply.body).as_bytes())?;
        if request.header("connection") == Some("close") {
            break;
        }
    }
    Ok(())
}

impl PhpIpam {
    /// The file lock, with which a change waits 30 s, and an App with a code.
    pub fn builder() -> Builder {
        Builder {
            lock: LockKind::File,
            wait: Duration::from_secs(30),
            security: Security::Code,
            is_read_only: false,
            key_field: None,
        }
    }

    /// A server of its own with default settings.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The server that all tests of this binary share. Each has subnets of its own in it.
    #[track_caller]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PhpIpam> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// `ADDRESS:PORT`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// The URL below which `api/` is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// One request below `api/APP/`, with the App's code.
    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: Option<&Value>) -> Answer {
        self.ask_with(method, &format!("{APP}/{target}"), &format!("token: {CODE}"), body)
    }

    /// One request below `api/` with this header.
    #[track_caller]
    pub fn ask_with(
        &self,
        method: &str,
        target: &str,
        header: &str,
        body: Option<&Value>,
    ) -> Answer {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} /api/{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = TcpStream::connect(self.address).unwrap();
        exchange(stream, (head + &body).as_bytes()).unwrap()
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        lock(&self.site.database)
    }

    /// Makes a subnet in the section 1: its id.
    #[track_caller]
    pub fn subnet(&self, cidr: &str, description: &str) -> String {
        self.subnet_in(1, None, cidr, description)
    }

    /// Makes a subnet in a section and inside of another one.
    #[track_caller]
    pub fn subnet_in(
        &self,
        section: u64,
        parent: Option<&str>,
        cidr: &str,
        description: &str,
    ) -> String {
        let parent = parent.map_or(0, |id| id.parse().unwrap());
        let (cidr, description) = (cidr.parse().unwrap(), description.to_owned());
        self.database().add_subnet(SubnetRow { cidr, description, section, parent }).to_string()
    }

    /// Removes a subnet with its records.
    #[track_caller]
    pub fn remove_subnet(&self, id: &str) {
        let id: u64 = id.parse().unwrap();
        let mut database = self.database();
        database.subnets.remove(&id);
        database.addresses.retain(|_, row| row.subnet != id);
    }

    /// Makes a record with these columns, as a person does: its id.
    #[track_caller]
    pub fn record(&self, subnet: &str, address: &str, columns: &[(&str, &str)]) -> String {
        let columns = columns.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let (subnet, address) = (subnet.parse().unwrap(), address.parse::<IpAddr>().unwrap());
        self.database().insert(subnet, address, columns.collect()).unwrap().to_string()
    }

    /// Makes the record of a subnet's gateway.
    #[track_caller]
    pub fn gateway(&self, subnet: &str, address: &str) -> String {
        self.record(subnet, address, &[("hostname", "router"), ("is_gateway", "1")])
    }

    /// The records of a subnet, in the order of their addresses.
    #[track_caller]
    pub fn records(&self, subnet: &str) -> Vec<Record> {
        let (database, subnet) = (self.database(), subnet.parse::<u64>().unwrap());
        let mut rows: Vec<_> =
            database.addresses.iter().filter(|(_, row)| row.subnet == subnet).collect();
        rows.sort_by_key(|(_, row)| row.address);
        rows.iter().map(|(id, row)| database.record(**id, row)).collect()
    }

    /// Changes a column of every record of a subnet.
    #[track_caller]
    pub fn edit(&self, subnet: &str, column: &str, change: impl Fn(&str) -> String) {
        let subnet: u64 = subnet.parse().unwrap();
        let mut database = self.database();
        let rows = database.addresses.values_mut().filter(|row| row.subnet == subnet);
        for row in rows {
            let text = row.columns.entry(column.to_owned()).or_default();
            *text = change(text);
        }
    }

    #[track_caller]
    pub fn delete(&self, record: &str) {
        assert!(self.database().addresses.remove(&record.parse().unwrap()).is_some());
    }

    /// The database, while nothing is written.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.database().clone())
    }

    /// Makes its database that of a snapshot.
    pub fn restore(&self, snapshot: &Snapshot) {
        *self.database() = snapshot.0.clone();
    }

    /// Lets the token of the user expire.
    pub fn expire(&self) {
        lock(&self.site.logins).expire();
    }

    /// How many logins were refused.
    pub fn refused_logins(&self) -> u32 {
        lock(&self.site.logins).refused
    }

    /// Holds the lock of the App, so that changes wait, until the turn is dropped.
    #[track_caller]
    pub fn hold(&self) -> Turn<'_> {
        self.site.turn.take(Duration::from_secs(30)).unwrap()
    }

    /// Sets whether the database is unreachable: each request ends with 500 and no body.
    pub fn set_broken(&self, is_broken: bool) {
        *lock(&self.site.is_broken) = is_broken;
    }

    /// Sets whether each connection ends without an answer.
    pub fn set_down(&self, is_down: bool) {
        *lock(&self.site.is_down) = is_down;
    }

    /// Waits until a condition of its records is met.
    #[track_caller]
    pub fn until(&self, subnet: &str, is_met: impl Fn(&[Record]) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while !is_met(&self.records(subnet)) {
            assert!(Instant::now() < give_up, "{:?}", self.records(subnet));
            thread::sleep(Duration::from_millis(5));
        }
    }
}
