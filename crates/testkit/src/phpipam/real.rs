//! A real phpIPAM, which runs already: `IPAM_DELEGATED_PHPIPAM_URL` names it. It has the Apps and the
//! custom field of `tests/install/phpipam/apps.sql`, and runs on this machine, so that a test can hold
//! its lock.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::login::Security;
use super::server::{APP, Builder, CODE, LockKind, lock};
use crate::servers::http::{Answer, exchange};

const VARIABLE: &str = "IPAM_DELEGATED_PHPIPAM_URL";

/// phpIPAM's own, of the lock type *File*.
const LOCK: &str = "/tmp/phpipam_api_lock.txt";

/// The Apps with their codes; one code means one App.
const UNLOCKED: (&str, &str) = ("cni-unlocked", "0123456789abcdef0123456789unlock");
const BRIEF: (&str, &str) = ("cni-brief", "0123456789abcdef01234567890brief");
const READ: (&str, &str) = ("cni-read", "0123456789abcdef012345678900read");
const CRYPT: (&str, &str) = ("cni-crypt", "0123456789abcdef01234567890crypt");

/// The part of a real server that one handle uses: sections of its own, which end with it.
pub(super) struct RealSite {
    endpoint: String,
    app: (&'static str, &'static str),
    /// The ids of its sections, by the numbers that the test gives them.
    sections: Mutex<BTreeMap<u64, u64>>,
}

/// `ADDRESS:PORT` of the real server, if there is one.
#[track_caller]
pub(super) fn endpoint() -> Option<String> {
    let url = env::var(VARIABLE).ok()?;
    match url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')) {
        Some(endpoint) if !endpoint.contains('/') => Some(endpoint.to_owned()),
        _ => panic!("{VARIABLE} is {url}, but has to be http://ADDRESS:PORT"),
    }
}

/// One request below `api/` with this header.
#[track_caller]
pub(super) fn ask(
    endpoint: &str,
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
    exchange(TcpStream::connect(endpoint).unwrap(), (head + &body).as_bytes()).unwrap()
}

/// Holds the lock of every App with the lock type *File*, until the file is dropped.
#[track_caller]
pub(super) fn lock_file() -> File {
    let file = File::open(LOCK).unwrap_or_else(|e| panic!("{LOCK} of a phpIPAM here: {e}"));
    file.lock().unwrap();
    file
}

impl RealSite {
    /// # Panics
    /// For a custom field that is not that of `apps.sql`.
    #[track_caller]
    pub(super) fn of(endpoint: &str, builder: &Builder) -> Self {
        let field = builder.key_field.as_deref().unwrap_or("cni_key");
        assert_eq!(field, "cni_key", "a real phpIPAM has one custom field");
        let app = match builder.security {
            Security::Crypt => CRYPT,
            _ if builder.is_read_only => READ,
            _ if builder.lock == LockKind::Disabled => UNLOCKED,
            _ if builder.wait.as_secs() < 1 => BRIEF,
            _ if builder.lock == LockKind::MySql => panic!("a test cannot hold this lock"),
            _ => (APP, CODE),
        };
        Self { endpoint: endpoint.to_owned(), app, sections: Mutex::default() }
    }

    pub(super) fn app(&self) -> (&str, &str) {
        self.app
    }

    /// What a person with all rights gets.
    #[track_caller]
    pub(super) fn by_hand(&self, method: &str, target: &str, body: Option<&Value>) -> Value {
        let (target, header) = (format!("{APP}/{target}"), format!("token: {CODE}"));
        ask(&self.endpoint, method, &target, &header, body).json()
    }

    /// The id of the section to which a test gives this number.
    #[track_caller]
    pub(super) fn section(&self, number: u64) -> u64 {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut sections = lock(&self.sections);
        *sections.entry(number).or_insert_with(|| {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("test {} {count}", std::process::id());
            // Without the strict mode, subnets of a section may overlap.
            let section = json!({"name": name, "strictMode": "0"});
            let made = self.by_hand("POST", "sections/", Some(&section));
            let id = made["id"].as_str().and_then(|id| id.parse().ok());
            id.unwrap_or_else(|| panic!("{VARIABLE}, with apps.sql: {made}"))
        })
    }
}

impl Drop for RealSite {
    fn drop(&mut self) {
        let sections = lock(&self.sections);
        for id in sections.values() {
            self.by_hand("DELETE", &format!("sections/{id}/"), None);
        }
    }
}
