//! What a test asks of a server, by a client of its own.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::servers::http::{Answer, exchange};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one server, with a token or without. What is not said to try has to succeed.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    token: Option<String>,
    patience: Duration,
}

/// A record of an address.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Record {
    pub id: String,
    #[serde(rename = "ip_address")]
    pub address: String,
    pub description: String,
    /// The id of its subnet.
    pub subnet: String,
    pub modified: String,
}

impl Client {
    pub fn to(address: SocketAddr, token: Option<&str>) -> Self {
        Self { address, token: token.map(str::to_owned), patience: PATIENCE }
    }

    /// The same with another token, or none.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// The same that waits no longer than this.
    pub fn patient_for(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// One request, with path and query below `/api/v1/`, and a body as JSON.
    pub fn try_ask(&self, method: &str, target: &str, body: Option<&Value>) -> io::Result<Answer> {
        self.send(method, &format!("/api/v1/{target}"), body)
    }

    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: Option<&Value>) -> Answer {
        self.try_ask(method, target, body).unwrap_or_else(|e| panic!("{method} {target}: {e}"))
    }

    /// Makes an organization of this name: its id.
    #[track_caller]
    pub fn organization(&self, name: &str) -> String {
        id(&self.create("users/organization/", &json!({"name": name, "slug": name})))
    }

    /// Makes a subnet of an organization, or a shared one: its id.
    #[track_caller]
    pub fn subnet(&self, organization: Option<&str>, cidr: &str, name: &str) -> String {
        self.subnet_of(&json!({"organization": organization, "subnet": cidr, "name": name}))
    }

    /// Makes a subnet with these members: its id.
    #[track_caller]
    pub fn subnet_of(&self, members: &Value) -> String {
        id(&self.create("ipam/subnet/", members))
    }

    /// A subnet as the server has it.
    #[track_caller]
    pub fn subnet_json(&self, id: &str) -> Value {
        self.ask("GET", &format!("ipam/subnet/{id}/"), None).success().json()
    }

    /// Makes a record of an address in a subnet, as a person does.
    #[track_caller]
    pub fn record(&self, subnet: &str, address: &str, description: &str) -> Record {
        let body = json!({"subnet": subnet, "ip_address": address, "description": description});
        let made = self.create(&format!("ipam/subnet/{subnet}/ip-address/"), &body);
        serde_json::from_value(made).unwrap()
    }

    /// All records of a subnet, in the order of the server.
    #[track_caller]
    pub fn records(&self, subnet: &str) -> Vec<Record> {
        let mut records = Vec::new();
        for page in 1.. {
            let target = format!("ipam/subnet/{subnet}/ip-address/?page={page}&page_size=100");
            let answer = self.ask("GET", &target, None).success().json();
            let results: Vec<Record> = serde_json::from_value(answer["results"].clone()).unwrap();
            records.extend(results);
            if answer["next"].is_null() {
                break;
            }
        }
        records
    }

    /// The record of this id.
    #[track_caller]
    pub fn record_by_id(&self, id: &str) -> Option<Record> {
        let answer = self.ask("GET", &format!("ipam/ip-address/{id}/"), None);
        (answer.status != 404).then(|| serde_json::from_value(answer.success().json()).unwrap())
    }

    /// Changes members of a record.
    #[track_caller]
    pub fn change(&self, record: &str, members: &Value) {
        self.ask("PATCH", &format!("ipam/ip-address/{record}/"), Some(members)).success();
    }

    /// Removes a record.
    #[track_caller]
    pub fn delete(&self, record: &str) {
        self.ask("DELETE", &format!("ipam/ip-address/{record}/"), None).success();
    }

    /// Makes something with these members: what the server has made.
    #[track_caller]
    pub(super) fn create(&self, target: &str, members: &Value) -> Value {
        self.ask("POST", target, Some(members)).success().json()
    }

    /// Which server it is.
    pub(super) fn name(&self) -> io::Result<String> {
        self.send("GET", "/name", None).map(|answer| answer.text())
    }

    fn send(&self, method: &str, target: &str, body: Option<&Value>) -> io::Result<Answer> {
        let stream = TcpStream::connect_timeout(&self.address, self.patience)?;
        stream.set_read_timeout(Some(self.patience))?;
        let mut head = format!("{method} {target} HTTP/1.0\r\nHost: {}\r\n", self.address);
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let length = body.len();
        head += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        exchange(stream, (head + &body).as_bytes())
    }
}

#[track_caller]
pub(super) fn id(object: &Value) -> String {
    object["id"].as_str().unwrap_or_else(|| panic!("{object}")).to_owned()
}
