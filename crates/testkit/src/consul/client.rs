//! What a test asks of a server, by a client of its own.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{self, Place};
use crate::servers::base64::{decode, encode};
use crate::servers::http::Answer;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one server, with or without a token. What is not said to try has to succeed.
///
/// Reads are `consistent`: a leader that was stopped answers others from its past for a moment.
#[derive(Clone, Debug)]
pub struct Client {
    place: Place,
    token: Option<String>,
    patience: Duration,
}

/// A key as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: String,
    pub flags: u64,
    /// The index that made it.
    pub created: u64,
    /// The index of its latest change.
    pub modified: u64,
}

/// A token of a server with ACLs.
#[derive(Clone, Debug)]
pub struct Token {
    /// By what it is named in public.
    pub accessor: String,
    pub secret: String,
}

impl Client {
    /// A client without a token of `ADDRESS:PORT`, over HTTP.
    #[track_caller]
    pub fn to(endpoint: &str) -> Self {
        Self::new(Place::Tcp(endpoint.parse().unwrap()), None)
    }

    pub(super) fn new(place: Place, token: Option<String>) -> Self {
        Self { place, token, patience: PATIENCE }
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The same with another token, or none.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// The same that waits no longer than this.
    pub fn patient_for(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// One request, with path and query below `/v1/`.
    pub fn try_ask(&self, method: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
        let target = format!("/v1/{target}");
        http::ask(&self.place, self.patience, [method, &target], self.token.as_deref(), body)
    }

    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        self.try_ask(method, target, body).unwrap_or_else(|e| panic!("{method} {target}: {e}"))
    }

    /// The value of a key.
    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        self.entry(key).map(|entry| entry.value)
    }

    #[track_caller]
    pub fn entry(&self, key: &str) -> Option<Entry> {
        entries(self.ask("GET", &format!("{}?consistent", kv(key)), b"")).pop()
    }

    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        self.ask("PUT", &kv(key), value.as_bytes()).success();
    }

    /// Writes if the key was last changed by this index, 0 for one that is not there; whether it
    /// was.
    #[track_caller]
    pub fn cas(&self, key: &str, value: &str, index: u64) -> bool {
        let answer = self.ask("PUT", &format!("{}?cas={index}", kv(key)), value.as_bytes());
        answer.success().json() == true
    }

    /// Removes a key, be it there or not.
    #[track_caller]
    pub fn delete(&self, key: &str) {
        self.ask("DELETE", &kv(key), b"").success();
    }

    /// Removes the keys that begin with a prefix.
    #[track_caller]
    pub fn delete_all(&self, prefix: &str) {
        self.ask("DELETE", &format!("{}?recurse", kv(prefix)), b"").success();
    }

    /// The keys that begin with a prefix, sorted.
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let answer = self.ask("GET", &format!("{}?keys&consistent", kv(prefix)), b"");
        if answer.status == 404 {
            return Vec::new();
        }
        serde_json::from_value(answer.success().json()).unwrap()
    }

    /// The same with their values.
    #[track_caller]
    pub fn list(&self, prefix: &str) -> Vec<Entry> {
        entries(self.ask("GET", &format!("{}?recurse&consistent", kv(prefix)), b""))
    }

    /// A transaction of operations as in `{"Verb": "cas", "Key": …, "Value": …, "Index": …}`; a
    /// value is plain text here.
    pub fn txn(&self, operations: &[Value]) -> Answer {
        let operation = |operation: &Value| {
            let mut operation = operation.clone();
            if let Some(value) = operation["Value"].as_str().map(encode) {
                operation["Value"] = value.into();
            }
            json!({"KV": operation})
        };
        let body: Value = operations.iter().map(operation).collect();
        self.ask("PUT", "txn", body.to_string().as_bytes())
    }

    /// Writes many keys.
    #[track_caller]
    pub fn put_all(&self, pairs: impl IntoIterator<Item = (String, String)>) {
        let set = |(key, value)| json!({"Verb": "set", "Key": key, "Value": value});
        let operations: Vec<Value> = pairs.into_iter().map(set).collect();
        // No transaction may have more.
        for batch in operations.chunks(64) {
            self.txn(batch).success();
        }
    }

    /// Makes a token with these rules, such as `key_prefix "ipam/" { policy = "write" }`.
    #[track_caller]
    pub fn create_token(&self, rules: &str) -> Token {
        // Every policy has a name of its own.
        let name = format!("policy-{:x}", crate::servers::process::random());
        let policy = json!({"Name": name, "Rules": rules}).to_string();
        let policy = self.ask("PUT", "acl/policy", policy.as_bytes()).success().json();
        let token = json!({"Policies": [{"ID": policy["ID"]}]}).to_string();
        let token = self.ask("PUT", "acl/token", token.as_bytes()).success().json();
        let text = |key: &str| token[key].as_str().unwrap().to_owned();
        Token { accessor: text("AccessorID"), secret: text("SecretID") }
    }

    /// Ends a token.
    #[track_caller]
    pub fn revoke(&self, token: &Token) {
        self.ask("DELETE", &format!("acl/token/{}", token.accessor), b"").success();
    }
}

/// The path of a key below `/v1/`.
fn kv(key: &str) -> String {
    let mut path = "kv/".to_owned();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

#[track_caller]
fn entries(answer: Answer) -> Vec<Entry> {
    if answer.status == 404 {
        return Vec::new();
    }
    let list = answer.success().json();
    let number = |item: &Value, key: &str| item[key].as_u64().unwrap();
    let entry = |item: &Value| Entry {
        key: item["Key"].as_str().unwrap().to_owned(),
        // An empty value is null.
        value: item["Value"].as_str().map(decode).unwrap_or_default(),
        flags: number(item, "Flags"),
        created: number(item, "CreateIndex"),
        modified: number(item, "ModifyIndex"),
    };
    list.as_array().unwrap().iter().map(entry).collect()
}
