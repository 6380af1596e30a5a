//! One request each: what a client of etcd's own would send, by the server's JSON gateway.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::server::Etcd;
use crate::servers::base64::{decode, encode};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one server, without TLS and as nobody. A request that failed says why.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    address: SocketAddr,
}

/// An answer, or why there is none.
pub type Answer<T> = Result<T, String>;

/// A key as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: String,
    /// The revision that made it.
    pub created: i64,
}

impl Etcd {
    /// A client for single requests.
    #[track_caller]
    pub fn requests(&self) -> Requests {
        assert!(self.tls().is_none() && self.account().is_none(), "{} is guarded", self.name());
        Requests { address: self.address() }
    }
}

impl Requests {
    pub fn put(&self, key: &str, value: &str) -> Answer<()> {
        self.ask("kv/put", &put(key, value, 0)).map(drop)
    }

    pub fn get(&self, key: &str) -> Answer<Option<Entry>> {
        let answer = self.ask("kv/range", &json!({"key": encode(key)}))?;
        Ok(entries(&answer).pop())
    }

    /// The keys that begin with a prefix, sorted.
    pub fn list(&self, prefix: &str) -> Answer<Vec<Entry>> {
        Ok(entries(&self.ask("kv/range", &below(prefix))?))
    }

    /// Whether there was such a key.
    pub fn delete(&self, key: &str) -> Answer<bool> {
        let answer = self.ask("kv/deleterange", &json!({"key": encode(key)}))?;
        Ok(number(&answer["deleted"]) > 0)
    }

    /// Puts these keys with their values in one transaction.
    pub fn put_all(&self, pairs: &[(String, String)]) -> Answer<()> {
        let puts = pairs.iter().map(|(key, value)| json!({"request_put": put(key, value, 0)}));
        self.ask("kv/txn", &json!({"success": puts.collect::<Vec<_>>()})).map(drop)
    }

    /// A lease of so many seconds: its id.
    pub fn grant(&self, seconds: u32) -> Answer<i64> {
        let answer = self.ask("lease/grant", &json!({"TTL": seconds.to_string()}))?;
        Ok(number(&answer["ID"]))
    }

    /// Ends a lease, and with it the keys that hang on it.
    pub fn revoke(&self, lease: i64) -> Answer<()> {
        self.ask("lease/revoke", &json!({"ID": lease.to_string()})).map(drop)
    }

    /// The leases that there are.
    pub fn leases(&self) -> Answer<Vec<i64>> {
        let answer = self.ask("lease/leases", &json!({}))?;
        let list = answer["leases"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(list.iter().map(|lease| number(&lease["ID"])).collect())
    }

    /// Puts a key on a lease unless it is there; whether it was put.
    pub fn create(&self, key: &str, value: &str, lease: i64) -> Answer<bool> {
        let answer = self.ask(
            "kv/txn",
            &json!({
                "compare": [absent(key)],
                "success": [{"request_put": put(key, value, lease)}],
                "failure": [{"request_range": {"key": encode(key)}}],
            }),
        )?;
        Ok(answer["succeeded"] == true)
    }

    /// Puts an empty key on a lease unless it is there, and reads the oldest key with the prefix:
    /// the revision that made the key, and that oldest one.
    pub fn enqueue(&self, prefix: &str, key: &str, lease: i64) -> Answer<(i64, Entry)> {
        let mut oldest = below(prefix);
        oldest["limit"] = json!("1");
        oldest["sort_order"] = json!("ASCEND");
        oldest["sort_target"] = json!("CREATE");
        let oldest = json!({"request_range": oldest});
        let answer = self.ask(
            "kv/txn",
            &json!({
                "compare": [absent(key)],
                "success": [{"request_put": put(key, "", lease)}, oldest],
                "failure": [{"request_range": {"key": encode(key)}}, oldest],
            }),
        )?;
        let [first, second] = [0, 1].map(|n| entries(&answer["responses"][n]["response_range"]));
        let made = first.first().map_or(number(&answer["header"]["revision"]), |own| own.created);
        let oldest = second.into_iter().next().ok_or_else(|| format!("no oldest key: {answer}"))?;
        Ok((made, oldest))
    }

    /// The youngest key with a prefix among those that were made before a revision.
    pub fn youngest_before(&self, prefix: &str, revision: i64) -> Answer<Option<Entry>> {
        let mut range = below(prefix);
        range["limit"] = json!("1");
        range["sort_order"] = json!("DESCEND");
        range["sort_target"] = json!("CREATE");
        range["max_create_revision"] = json!((revision - 1).to_string());
        Ok(entries(&self.ask("kv/range", &range)?).pop())
    }

    fn ask(&self, method: &str, body: &Value) -> Answer<Value> {
        let text = self.send(method, &body.to_string()).map_err(|e| format!("{method}: {e}"))?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or("an answer without a body")?;
        if head.lines().next().is_some_and(|status| status.contains(" 200 ")) {
            serde_json::from_str(body).map_err(|error| format!("{method}: {error}: {text}"))
        } else {
            Err(format!("{method}: {text}"))
        }
    }

    fn send(&self, method: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // An answer to HTTP/1.0 comes in one piece.
        write!(
            stream,
            "POST /v3/{method} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({"key": encode(key), "value": encode(value), "lease": lease.to_string()})
}

fn absent(key: &str) -> Value {
    json!({"key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"})
}

/// The range of the keys that begin with a prefix, which ends in ASCII.
fn below(prefix: &str) -> Value {
    let (rest, last) = prefix.split_at(prefix.len() - 1);
    let end = format!("{rest}{}", char::from(last.as_bytes()[0] + 1));
    json!({"key": encode(prefix), "range_end": encode(&end)})
}

fn entries(answer: &Value) -> Vec<Entry> {
    let list = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |item: &Value| decode(item.as_str().unwrap_or_default());
    let entry = |item: &Value| Entry {
        key: text(&item["key"]),
        value: text(&item["value"]),
        created: number(&item["create_revision"]),
    };
    list.iter().map(entry).collect()
}

/// A number of the gateway's: 64 bits are a text, and 0 is left out.
fn number(value: &Value) -> i64 {
    value.as_str().map_or(0, |text| text.parse().unwrap())
}
