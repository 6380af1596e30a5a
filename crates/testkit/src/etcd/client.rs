//! What a test asks of a server: by etcdctl, and by its counts.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::programs;
use super::server::Etcd;
use crate::servers::process;

/// The password of root where authentication is on.
pub(super) const ROOT_PASSWORD: &str = "root's own";

impl Etcd {
    /// Runs etcdctl, as root where authentication is on, and gives what it printed.
    #[track_caller]
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        succeeded(arguments, self.try_etcdctl(arguments))
    }

    /// As [`Etcd::etcdctl`], whether it succeeds or not.
    pub fn try_etcdctl(&self, arguments: &[&str]) -> Output {
        self.client().args(arguments).output().unwrap()
    }

    /// Runs etcdctl with this identity and no other, such as `["--user", "name:password"]` or
    /// `["--cert", …, "--key", …]`.
    pub fn etcdctl_as(&self, identity: &[&str], arguments: &[&str]) -> Output {
        self.stranger().args(identity).args(arguments).output().unwrap()
    }

    /// The value of a key.
    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        let text = self.etcdctl(&["get", "--", key]);
        let value = text.strip_prefix(key)?.strip_prefix('\n')?;
        Some(value.strip_suffix('\n')?.to_owned())
    }

    /// The keys that begin with a prefix, sorted.
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let text = self.etcdctl(&["get", "--prefix", "--keys-only", "--", prefix]);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        succeeded(&["put", key], self.try_put(key, value));
    }

    /// Removes a key; whether it was there.
    #[track_caller]
    pub fn del(&self, key: &str) -> bool {
        self.etcdctl(&["del", "--", key]).trim() == "1"
    }

    /// The id of its cluster: another after a restore under another token.
    #[track_caller]
    pub fn cluster_id(&self) -> String {
        number(&self.status()["header"]["cluster_id"])
    }

    /// The revision of its store.
    #[track_caller]
    pub fn revision(&self) -> u64 {
        number(&self.status()["header"]["revision"]).parse().unwrap()
    }

    /// Whether it answers a linearizable read and is the server that was started: its name is
    /// nobody else's.
    pub fn answers(&self) -> Result<(), String> {
        let ask = |arguments: &[&str]| {
            let output = self
                .try_etcdctl(&[&["--dial-timeout=2s", "--command-timeout=5s"], arguments].concat());
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            let failed = || String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(told) } else { Err(failed()) }
        };
        ask(&["get", "no-such-key"])?;
        let list = ask(&["member", "list", "--write-out=json"])?;
        let list: Value =
            serde_json::from_str(&list).map_err(|error| format!("{error}: {list}"))?;
        let members = list["members"].as_array().map_or(&[][..], Vec::as_slice);
        let itself = number(&list["header"]["member_id"]);
        let name = members.iter().find(|member| number(&member["ID"]) == itself);
        if name.is_some_and(|member| member["name"] == self.name()) {
            Ok(())
        } else {
            Err(format!("another server has its port: {list}"))
        }
    }

    /// How many calls of each method it has answered since it started, with whatever result:
    /// `Range`, `Txn`, `Authenticate`, …
    #[track_caller]
    pub fn rpcs(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for line in self.metrics().unwrap().lines() {
            let Some(rest) = line.strip_prefix("grpc_server_handled_total{") else { continue };
            let (labels, count) = rest.rsplit_once("} ").unwrap();
            let method = labels.split("grpc_method=\"").nth(1).unwrap().split('"').next().unwrap();
            // Large numbers are written as 1e+06.
            let count = count.parse::<f64>().unwrap() as u64;
            if count > 0 {
                *counts.entry(method.to_owned()).or_default() += count;
            }
        }
        counts
    }

    /// The calls that it answered while something was done.
    #[track_caller]
    pub fn rpcs_during(&self, done: impl FnOnce()) -> BTreeMap<String, u64> {
        let before = self.rpcs();
        done();
        let mut counts = self.rpcs();
        for (method, count) in before {
            *counts.get_mut(&method).expect("it was not started again") -= count;
        }
        counts.retain(|_, count| *count > 0);
        counts
    }

    /// Its metrics, as they are given out without TLS on a port of their own.
    pub fn metrics(&self) -> std::io::Result<String> {
        let time = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&self.ports.metrics.into(), time)?;
        stream.set_read_timeout(Some(time))?;
        // An answer to HTTP/1.0 comes in one piece.
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    pub(super) fn try_put(&self, key: &str, value: &str) -> Output {
        let mut command = self.client();
        command.args(["put", "--", key]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // An empty value must be an argument, and a long one cannot be.
        if value.is_empty() {
            command.arg(value);
        }
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(value.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Switches authentication on where an account was asked for.
    #[track_caller]
    pub(super) fn apply_account(&self) {
        let Some(account) = self.account() else { return };
        let root = format!("root:{ROOT_PASSWORD}");
        let user = format!("{}:{}", account.name, account.password);
        let role = "below-the-prefix";
        self.etcdctl(&["user", "add", &root]);
        self.etcdctl(&["user", "grant-role", "root", "root"]);
        self.etcdctl(&["role", "add", role]);
        let grant = ["role", "grant-permission", "--prefix=true", role, "readwrite"];
        self.etcdctl(&[&grant[..], &[&account.prefix]].concat());
        self.etcdctl(&["user", "add", &user]);
        self.etcdctl(&["user", "grant-role", &account.name, role]);
        self.etcdctl(&["auth", "enable"]);
        self.state().authenticated = true;
    }

    #[track_caller]
    fn status(&self) -> Value {
        let text = self.etcdctl(&["endpoint", "status", "--write-out=json"]);
        let status: Value = serde_json::from_str(&text).unwrap();
        status[0]["Status"].clone()
    }

    /// etcdctl for this server, as root where authentication is on.
    fn client(&self) -> Command {
        let mut command = self.stranger();
        if let Some((certificate, key)) = self.tls().and_then(|tls| tls.client.as_ref()) {
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        if self.state().authenticated {
            command.args(["--user", "root", "--password", ROOT_PASSWORD]);
        }
        command
    }

    /// etcdctl for this server, as nobody.
    fn stranger(&self) -> Command {
        let mut command = process::plain(programs::etcdctl());
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.url()));
        command.args(["--dial-timeout=10s", "--command-timeout=10s"]);
        if let Some(tls) = self.tls() {
            command.arg("--cacert").arg(&tls.authority);
        }
        command
    }
}

/// What a run printed that must have succeeded.
#[track_caller]
pub(super) fn succeeded(arguments: &[&str], output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {arguments:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// An id in etcdctl's JSON: a number, or in newer ones its text.
fn number(value: &Value) -> String {
    value.to_string().trim_matches('"').to_owned()
}
