//! What a test asks of a server, by a client of its own.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::servers::http::{Answer, exchange};
use crate::servers::process;

/// How long each piece of an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one server, with somebody's credential. What is not said to try has to succeed.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    token: Option<String>,
    patience: Duration,
}

impl Client {
    pub(super) fn new(address: SocketAddr, tls: Arc<ClientConfig>, token: Option<String>) -> Self {
        Self { address, tls, token, patience: PATIENCE }
    }

    /// The same that waits no longer than this.
    pub fn patient_for(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// One request, with path and query. A PATCH with an array is a JSON patch, another merges.
    pub fn try_ask(&self, method: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
        let kind = match (method, body.first()) {
            ("PATCH", Some(b'[')) => "application/json-patch+json",
            ("PATCH", _) => "application/merge-patch+json",
            _ => "application/json",
        };
        let token = self.token.as_ref();
        let token = token.map_or_else(String::new, |t| format!("Authorization: Bearer {t}\r\n"));
        let head = format!(
            "{method} {target} HTTP/1.0\r\nHost: {address}\r\nUser-Agent: test\r\n{token}\
             Accept: application/json\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n",
            address = self.address,
            length = body.len(),
        );
        let stream = TcpStream::connect_timeout(&self.address, self.patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.patience))?;
        let name = self.address.ip().into();
        let connection =
            ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
        exchange(StreamOwned::new(connection, stream), &[head.as_bytes(), body].concat())
    }

    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        self.try_ask(method, target, body).unwrap_or_else(|e| panic!("{method} {target}: {e}"))
    }

    /// The object at a path, such as `/api/v1/nodes/node-1`.
    #[track_caller]
    pub fn get(&self, path: &str) -> Option<Value> {
        let answer = self.ask("GET", path, b"");
        (answer.status != 404).then(|| answer.success().json())
    }

    /// Makes an object of any kind, and gives it as the server has it.
    #[track_caller]
    pub fn create(&self, object: &Value) -> Value {
        self.post(&collection(object), object)
    }

    /// What the server answers to an object that is sent to a path.
    #[track_caller]
    pub fn post(&self, path: &str, object: &Value) -> Value {
        self.ask("POST", path, object.to_string().as_bytes()).success().json()
    }

    /// Makes a namespace of a test's own, and gives its name. It stays: a server alone never ends
    /// the deletion of one.
    #[track_caller]
    pub fn create_namespace(&self) -> String {
        let name = process::unique();
        let metadata = json!({"name": name});
        self.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        name
    }

    /// Merges into the object at a path; null removes. The status is an object of its own, at
    /// `…/status`.
    #[track_caller]
    pub fn patch(&self, path: &str, change: &Value) -> Value {
        self.ask("PATCH", path, change.to_string().as_bytes()).success().json()
    }

    /// Removes the object at a path, be it there or not.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        let answer = self.ask("DELETE", path, b"");
        if answer.status != 404 {
            answer.success();
        }
    }
}

/// Where objects of this one's kind lie.
#[track_caller]
fn collection(object: &Value) -> String {
    let text = |key: &str| object[key].as_str().unwrap_or_else(|| panic!("no {key}: {object}"));
    let (version, kind) = (text("apiVersion"), text("kind").to_lowercase());
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.map_or_else(String::new, |name| format!("/namespaces/{name}"));
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    };
    format!("{root}/{version}{namespace}/{plural}")
}
