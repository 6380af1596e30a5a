//! The server: how it is started, and what a test does to it beside its clients.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::api;
use super::database::{Database, Snapshot};
use super::login::{Logins, Security};
use super::real::{self, RealSite};
use crate::servers::http::Answer;
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
    /// The same by a row of the database, in other words.
    MySql,
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
    pub(super) key_field: Option<String>,
    is_imitation: bool,
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

/// A running server. An imitation ends with the test's process; in a real one, its sections end
/// with it.
pub struct PhpIpam {
    endpoint: String,
    pub(super) kind: Kind,
    key_field: Option<String>,
}

pub(super) enum Kind {
    Imitation(Arc<Site>),
    Real(RealSite),
}

/// The lock of the App.
#[derive(Default)]
pub(super) struct Turns {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// A held lock.
pub struct Turn<'a>(&'a Turns);

/// The lock of the App, held by a test.
pub enum Hold<'a> {
    Imitation(Turn<'a>),
    Real(File),
}

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

    /// An imitation in any case, for a test that does to it what cannot be done to a real server.
    pub fn imitated(mut self) -> Self {
        self.is_imitation = true;
        self
    }

    /// Starts an imitation on 127.0.0.1, or begins with a part of the real server that
    /// `IPAM_DELEGATED_PHPIPAM_URL` names. A test with users is for the imitation.
    #[track_caller]
    pub fn start(self) -> PhpIpam {
        match real::endpoint() {
            Some(endpoint) if !self.is_imitation && self.security != Security::Token => {
                let key_field = self.key_field.clone();
                PhpIpam { kind: Kind::Real(RealSite::of(&endpoint, &self)), endpoint, key_field }
            }
            _ => self.imitate(),
        }
    }

    #[track_caller]
    fn imitate(self) -> PhpIpam {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let key_field = self.key_field.clone();
        let database = Database { key_field: key_field.clone(), ..Database::default() };
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
        PhpIpam { endpoint, kind: Kind::Imitation(kept), key_field }
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
            is_imitation: false,
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
        self.endpoint.clone()
    }

    /// The URL below which `api/` is.
    pub fn url(&self) -> String {
        format!("http://{}", self.endpoint)
    }

    /// The id of the App, and its code.
    pub fn app(&self) -> (&str, &str) {
        match &self.kind {
            Kind::Imitation(_) => (APP, CODE),
            Kind::Real(site) => site.app(),
        }
    }

    /// The name of the custom field, where there is one.
    pub(super) fn key_field(&self) -> Option<&str> {
        self.key_field.as_deref()
    }

    /// One request below `api/APP/`, with the App's code.
    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: Option<&Value>) -> Answer {
        let (app, code) = self.app();
        self.ask_with(method, &format!("{app}/{target}"), &format!("token: {code}"), body)
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
        real::ask(&self.endpoint, method, target, header, body)
    }

    /// What runs the imitation.
    #[track_caller]
    fn imitation(&self) -> &Site {
        match &self.kind {
            Kind::Imitation(site) => site,
            Kind::Real(_) => panic!("a real phpIPAM cannot do this: start an imitation"),
        }
    }

    /// The database, while nothing is written.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(lock(&self.imitation().database).clone())
    }

    /// Makes its database that of a snapshot.
    pub fn restore(&self, snapshot: &Snapshot) {
        *lock(&self.imitation().database) = snapshot.0.clone();
    }

    /// Lets the token of the user expire.
    pub fn expire(&self) {
        lock(&self.imitation().logins).expire();
    }

    /// How many logins were refused.
    pub fn refused_logins(&self) -> u32 {
        lock(&self.imitation().logins).refused
    }

    /// Holds the lock of the App, so that changes wait, until the turn is dropped.
    #[track_caller]
    pub fn hold(&self) -> Hold<'_> {
        match &self.kind {
            Kind::Imitation(site) => {
                Hold::Imitation(site.turn.take(Duration::from_secs(30)).unwrap())
            }
            Kind::Real(_) => Hold::Real(real::lock_file()),
        }
    }

    /// Sets whether the database is unreachable: each request ends with 500 and no body.
    pub fn set_broken(&self, is_broken: bool) {
        *lock(&self.imitation().is_broken) = is_broken;
    }

    /// Sets whether each connection ends without an answer.
    pub fn set_down(&self, is_down: bool) {
        *lock(&self.imitation().is_down) = is_down;
    }

    /// Whether it can be disturbed only by its lock.
    pub fn is_real(&self) -> bool {
        matches!(self.kind, Kind::Real(_))
    }
}
