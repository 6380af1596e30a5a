//! Consul's key-value store over HTTP: transactions and listings.

use std::io::Read;
use std::ops::ControlFlow;

use ipam_kit::delegate::Deadline;
use ipam_kit::{ErrorCode, Result};
use ipam_servers::{Access, Client, HttpRequest, Method, each_element, escape};
use log::warn;

use crate::config::{Consistency, Site};
use crate::errors::{refused, unreadable};
use crate::txn::{self, LARGEST, Op, Pair, TxnOutcome};

/// The store of a datacenter.
#[derive(Debug)]
pub(crate) struct KvStore {
    client: Client,
    /// The queries of a change, of a read, and of a read that proves that keys do not exist. Each
    /// begins with `?` or is empty.
    write_query: String,
    read_query: String,
    proof_query: String,
    /// Whether every read has to be a proof.
    requires_proof: bool,
}

/// The largest answer to a transaction, in bytes: ten definitions of the greatest size that Consul
/// keeps, 512 KiB.
const ANSWER: u64 = 8 * 1024 * 1024;

/// A header of every answer to a transaction that reads, whatever its outcome.
const READ_HEADER: &str = "x-consul-knownleader";

/// A header of every answer to a listing, also of missing keys.
const LIST_HEADER: &str = "x-consul-index";

/// The largest listing, in bytes; it is read element by element.
const LISTING: u64 = 4 * 1024 * 1024 * 1024;

/// The longest element of a listing, in bytes: a value has 512 KiB at most, a third more as base64.
const ELEMENT: usize = 1024 * 1024;

impl KvStore {
    /// Makes a store, which connects at the first request. `unreached` is the code of the error if
    /// no server can be reached.
    ///
    /// # Errors
    /// A certificate file cannot be used.
    pub(crate) fn new(site: Site, unreached: ErrorCode, deadline: Deadline) -> Result<Self> {
        let datacenter = site.datacenter.map(|datacenter| format!("dc={datacenter}"));
        let datacenter = datacenter.as_deref();
        let consistency = match site.consistency {
            Consistency::Default => None,
            Consistency::Consistent => Some("consistent"),
            Consistency::Stale => Some("stale"),
        };
        let access = Access {
            service: "Consul",
            servers: site.servers,
            tls: site.tls,
            headers: site.token.map(|token| ("X-Consul-Token", token)).into_iter().collect(),
            timeout: site.timeout,
            unreached,
            advice,
        };
        Ok(Self {
            client: Client::new(access, deadline)?,
            write_query: query([datacenter, None]),
            read_query: query([datacenter, consistency]),
            proof_query: query([datacenter, Some("consistent")]),
            requires_proof: site.consistency == Consistency::Consistent,
        })
    }

    /// Makes every later read a proof of what does not exist: the leader asks the others whether it
    /// still leads, and has applied its log. A leader that was just elected has not, and answers
    /// without a hint.
    pub(crate) fn require_proof(&mut self) {
        self.requires_proof = true;
    }

    /// Returns whether every read is a proof.
    pub(crate) fn requires_proof(&self) -> bool {
        self.requires_proof
    }

    fn read_query(&self) -> &str {
        if self.requires_proof { &self.proof_query } else { &self.read_query }
    }

    /// Sets another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.client.set_deadline(deadline);
    }

    /// Returns the server that answered last, without its scheme.
    pub(crate) fn answering(&self) -> String {
        self.client.answering().without_scheme()
    }

    /// Begins with this server, if it is one of the store's.
    pub(crate) fn prefer(&mut self, url: &str) {
        self.client.prefer(url);
    }

    /// Returns the server to begin with, if it is not the one that the configuration names first.
    pub(crate) fn preferred(&self) -> Option<String> {
        self.client.preferred().map(str::to_owned)
    }

    /// Reads by a transaction.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn read(&mut self, ops: &[Op]) -> Result<TxnOutcome> {
        let body = txn::to_body(ops);
        let path = format!("v1/txn{}", self.read_query());
        let ask = HttpRequest { required_header: Some(READ_HEADER), ..transaction(&path, &body) };
        let answer = self.client.read(&ask)?;
        txn::parse(answer.status, &answer.body)
    }

    /// Reads keys, as far as they exist.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn read_keys(&mut self, keys: &[String]) -> Result<Vec<Pair>> {
        let mut found = Vec::new();
        for part in keys.chunks(LARGEST) {
            let ops: Vec<Op> = part.iter().map(|key| Op::GetTree(key.clone())).collect();
            match self.read(&ops)? {
                // A tree has longer keys, too.
                TxnOutcome::Done(pairs) => {
                    found.extend(pairs.into_iter().filter(|p| part.contains(&p.key)))
                }
                TxnOutcome::Failed(failures) => return Err(refused(&ops, &failures)),
            }
        }
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found.dedup_by(|one, other| one.key == other.key);
        Ok(found)
    }

    /// Changes something; `None` if the outcome is unknown.
    ///
    /// # Errors
    /// Nothing has changed, and nothing will.
    pub(crate) fn write(&mut self, ops: &[Op]) -> Result<Option<TxnOutcome>> {
        let body = txn::to_body(ops);
        let path = format!("v1/txn{}", self.write_query);
        let Some(answer) = self.client.write(&transaction(&path, &body))? else {
            return Ok(None);
        };
        match txn::parse(answer.status, &answer.body) {
            // A proxy may have spoilt the answer to a change that was made.
            Err(error) if answer.status == 200 => {
                warn!("outcome of a change unknown: {}", error.in_full());
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Returns whether the token may read a key, existing or not; a transaction does not show that.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn may_read(&mut self, key: &str) -> Result<bool> {
        let path = format!("v1/kv/{}{}", escaped(key), self.write_query);
        let ask = HttpRequest {
            ok_statuses: &[200, 403, 404],
            limit: ANSWER,
            ..HttpRequest::new(Method::Get, &path)
        };
        Ok(self.client.read(&ask)?.status != 403)
    }

    /// Fails if the token may not read a key: Consul leaves such keys out of its answers.
    ///
    /// # Errors
    /// Code 103.
    pub(crate) fn check_readable(&mut self, key: &str) -> Result<()> {
        if self.may_read(key)? { Ok(()) } else { Err(unreadable(key)) }
    }

    /// Shows every key with a prefix.
    ///
    /// # Errors
    /// No server answers in time; `each` fails.
    pub(crate) fn list_keys(
        &mut self,
        prefix: &str,
        each: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut progress = Progress::default();
        self.list(prefix, "keys", &mut |element| {
            let key: String = serde_json::from_slice(element).map_err(txn::malformed_list)?;
            if progress.is_new(&key) {
                each(&key)?;
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Shows every key with a prefix, and its value, until `each` breaks.
    ///
    /// # Errors
    /// No server answers in time; `each` fails.
    pub(crate) fn list_pairs(
        &mut self,
        prefix: &str,
        each: &mut dyn FnMut(Pair) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut progress = Progress::default();
        self.list(prefix, "recurse", &mut |element| {
            let pair = txn::parse_pair(element)?;
            if progress.is_new(&pair.key) {
                return each(pair);
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Shows every key of a folder, and its value; an empty listing is proved by the right to read.
    ///
    /// # Errors
    /// No server answers in time; the token may not read the folder; `each` fails.
    pub(crate) fn list_folder(
        &mut self,
        folder: &str,
        each: &mut dyn FnMut(Pair) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut is_empty = true;
        self.list_pairs(folder, &mut |pair| {
            is_empty = false;
            each(pair)
        })?;
        if is_empty { self.check_readable(folder) } else { Ok(()) }
    }

    fn list(
        &mut self,
        prefix: &str,
        mode: &str,
        each: &mut dyn FnMut(&[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let more =
            self.read_query().strip_prefix('?').map(|more| format!("&{more}")).unwrap_or_default();
        let path = format!("v1/kv/{}?{mode}{more}", escaped(prefix));
        let ask = HttpRequest {
            ok_statuses: &[200, 404],
            required_header: Some(LIST_HEADER),
            limit: LISTING,
            ..HttpRequest::new(Method::Get, &path)
        };
        let listed = self.client.read_with(&ask, &mut |head, body: &mut dyn Read| {
            if head.status == 404 {
                return Ok(Ok(()));
            }
            let shown = each_element(body, None, ELEMENT, |element| match each(element) {
                Ok(ControlFlow::Continue(())) => Ok(()),
                Ok(ControlFlow::Break(())) => Err(None),
                Err(error) => Err(Some(error)),
            })?;
            Ok(shown.map(drop))
        })?;
        match listed {
            Ok(()) | Err(None) => Ok(()),
            Err(Some(error)) => Err(error),
        }
    }
}

/// The progress of a listing. If its connection breaks, another server begins it again; Consul
/// lists keys in the order of their bytes.
#[derive(Default)]
struct Progress {
    last: String,
}

impl Progress {
    /// Returns whether a key was not shown yet, and marks it as shown.
    fn is_new(&mut self, key: &str) -> bool {
        let is_new = *key > *self.last;
        if is_new {
            self.last.clear();
            self.last.push_str(key);
        }
        is_new
    }
}

/// Makes a query of the given parts.
fn query(parts: [Option<&str>; 2]) -> String {
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
}

/// Escapes a key for the path of a URL.
fn escaped(key: &str) -> String {
    let segments: Vec<String> = key.split('/').map(escape).collect();
    segments.join("/")
}

fn transaction<'a>(path: &'a str, body: &'a str) -> HttpRequest<'a> {
    HttpRequest {
        body: body.as_bytes(),
        ok_statuses: &[200, 409],
        limit: ANSWER,
        ..HttpRequest::new(Method::Put, path)
    }
}

/// Returns the advice for an answer with another status.
fn advice(status: u16, body: &str) -> Option<&'static str> {
    Some(match status {
        403 if body.contains("ACL not found") => {
            "Consul does not know this token: correct token or tokenFile in ipam.consul"
        }
        401 | 403 => "set token or tokenFile in ipam.consul to a token that may write below ipam/",
        500 if body.contains("No path to datacenter") => "check ipam.consul.datacenter",
        500 if body.contains("No cluster leader") => {
            "Consul has no leader: check its servers (consul operator raft list-peers)"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_begins_anew_shows_each_key_once() {
        let mut progress = Progress::default();
        let keys =
            ["p/", "p/10.0.0.10", "p/10.0.0.2", "p/", "p/10.0.0.10", "p/10.0.0.2", "p/10.0.0.3"];
        let new: Vec<&str> = keys.into_iter().filter(|key| progress.is_new(key)).collect();
        assert_eq!(new, ["p/", "p/10.0.0.10", "p/10.0.0.2", "p/10.0.0.3"]);
    }
}
