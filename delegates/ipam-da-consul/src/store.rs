//! Consul's key-value store, as far as it is needed here.

use std::io::Read;
use std::ops::ControlFlow;

use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_servers::{Access, Client, HttpAnswer, HttpRequest, Method, each_element, escape};
use log::warn;

use crate::config::{Consistency, Site};
use crate::errors::{refused, unreadable};
use crate::txn::{self, LARGEST, Op, Pair, TxnOutcome};

/// The store of a datacenter.
#[derive(Debug)]
pub(crate) struct KvStore {
    client: Client,
    /// The query of a change, that of a read, and that of a read which proves what is not there; each
    /// begins with `?` unless it is empty.
    changing: String,
    reading: String,
    proving: String,
    /// Whether all reads have to be proofs.
    requires_proof: bool,
}

/// The largest answer to a transaction, in bytes: ten definitions of the greatest size that Consul
/// keeps, 512 KiB.
const ANSWER: u64 = 8 * 1024 * 1024;

/// What Consul says of every transaction that reads, whatever its outcome.
const READ_SIGN: &str = "x-consul-knownleader";

/// What Consul says of every reading of keys, found or not.
const SIGN: &str = "x-consul-index";

/// The largest listing, in bytes, which nothing holds as a whole.
const LISTING: u64 = 4 * 1024 * 1024 * 1024;

/// The longest element of a listing, in bytes: a value has 512 KiB at most, a third more as base64.
const ELEMENT: usize = 1024 * 1024;

impl KvStore {
    /// A store; it connects when there is something to ask. `unreached` is the code of the error when no
    /// server could be asked for anything.
    ///
    /// # Errors
    /// A certificate file cannot be used.
    pub(crate) fn new(site: Site, unreached: ErrorCode, deadline: Deadline) -> Result<Self> {
        let datacenter = site.datacenter.map(|datacenter| format!("dc={datacenter}"));
        let consistency = match site.consistency {
            Consistency::Default => None,
            Consistency::Consistent => Some("consistent".to_owned()),
            Consistency::Stale => Some("stale".to_owned()),
        };
        let query = |parts: &[&Option<String>]| {
            let parts: Vec<&str> = parts.iter().filter_map(|part| part.as_deref()).collect();
            if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
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
            changing: query(&[&datacenter]),
            reading: query(&[&datacenter, &consistency]),
            proving: query(&[&datacenter, &Some("consistent".to_owned())]),
            requires_proof: site.consistency == Consistency::Consistent,
        })
    }

    /// From here on every read proves what is not there: by a leader that has asked the others whether it
    /// still is, and that has applied its log. One that was just elected has not, and says nothing of it.
    pub(crate) fn require_proof(&mut self) {
        self.requires_proof = true;
    }

    /// Whether what is read is a proof.
    pub(crate) fn requires_proof(&self) -> bool {
        self.requires_proof
    }

    fn reading(&self) -> &str {
        if self.requires_proof { &self.proving } else { &self.reading }
    }

    /// Goes on until another deadline.
    pub(crate) fn go_on(&mut self, deadline: Deadline) {
        self.client.set_deadline(deadline);
    }

    /// Where the server is that answered last.
    pub(crate) fn answering(&self) -> String {
        self.client.answering().without_scheme()
    }

    /// Begins with this server, if it is one of them.
    pub(crate) fn prefer(&mut self, url: &str) {
        self.client.prefer(url);
    }

    /// The server to begin with, where it is not the one that the configuration names first.
    pub(crate) fn preferred(&self) -> Option<String> {
        self.client.preferred().map(str::to_owned)
    }

    /// Reads by a transaction that changes nothing.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn read(&mut self, ops: &[Op]) -> Result<TxnOutcome> {
        let body = txn::to_body(ops);
        let path = format!("v1/txn{}", self.reading());
        let ask = HttpRequest { required_header: Some(READ_SIGN), ..transaction(&path, &body) };
        understood(&self.client.read(&ask)?)
    }

    /// Reads keys, as far as they are there.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn read_keys(&mut self, keys: &[String]) -> Result<Vec<Pair>> {
        let mut found = Vec::new();
        for part in keys.chunks(LARGEST) {
            let ops: Vec<Op> = part.iter().map(|key| Op::GetTree(key.clone())).collect();
            match self.read(&ops)? {
                // Keys that begin as one that was asked for are shown, too.
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

    /// Changes something; `None` when it may have been done, or may still be.
    ///
    /// # Errors
    /// It was not and will not be done.
    pub(crate) fn write(&mut self, ops: &[Op]) -> Result<Option<TxnOutcome>> {
        let body = txn::to_body(ops);
        let path = format!("v1/txn{}", self.changing);
        let Some(answer) = self.client.write(&transaction(&path, &body))? else {
            return Ok(None);
        };
        match understood(&answer) {
            // What stands between may have spoilt the answer to what was carried out.
            Err(error) if answer.status == 200 => {
                warn!("the outcome of a request is unknown: {}", error.in_full());
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Whether a key may be read, be it there or not: a transaction would not tell.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn may_read(&mut self, key: &str) -> Result<bool> {
        let path = format!("v1/kv/{}{}", escaped(key), self.changing);
        let ask = HttpRequest {
            ok_statuses: &[200, 403, 404],
            limit: ANSWER,
            ..HttpRequest::new(Method::Get, &path)
        };
        Ok(self.client.read(&ask)?.status != 403)
    }

    /// Fails when a key may not be read: Consul leaves it out of a listing and says nothing.
    ///
    /// # Errors
    /// Code 103.
    pub(crate) fn check_readable(&mut self, key: &str) -> Result<()> {
        if self.may_read(key)? { Ok(()) } else { Err(unreadable(key)) }
    }

    /// Shows every key that begins so.
    ///
    /// # Errors
    /// No server answers in time; `each` fails.
    pub(crate) fn keys(
        &mut self,
        prefix: &str,
        each: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut progress = Progress::default();
        let mut take = |element: &[u8]| {
            let key: String = serde_json::from_slice(element).map_err(|error| {
                Error::new(ErrorCode::BACKEND, "Consul's listing of keys is not understood")
                    .caused_by(error)
            })?;
            if progress.goes_on_with(&key) {
                each(&key)?
            }
            Ok(ControlFlow::Continue(()))
        };
        self.list(prefix, "keys", &mut take)
    }

    /// Shows every key that begins so, with its value, until it is told to end.
    ///
    /// # Errors
    /// No server answers in time; `each` fails.
    pub(crate) fn below(
        &mut self,
        prefix: &str,
        each: &mut dyn FnMut(Pair) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut progress = Progress::default();
        self.list(prefix, "recurse", &mut |element| {
            let pair = txn::read_pair(element)?;
            if progress.goes_on_with(&pair.key) {
                each(pair)
            } else {
                Ok(ControlFlow::Continue(()))
            }
        })
    }

    /// Shows every key of a folder, with its value, and makes sure that an empty answer is one.
    ///
    /// # Errors
    /// No server answers in time, or the token may not read the folder; `each` fails.
    pub(crate) fn whole(
        &mut self,
        folder: &str,
        each: &mut dyn FnMut(Pair) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut empty = true;
        self.below(folder, &mut |pair| {
            empty = false;
            each(pair)
        })?;
        if empty { self.check_readable(folder) } else { Ok(()) }
    }

    fn list(
        &mut self,
        prefix: &str,
        how: &str,
        take: &mut dyn FnMut(&[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let more =
            self.reading().strip_prefix('?').map(|more| format!("&{more}")).unwrap_or_default();
        let path = format!("v1/kv/{}?{how}{more}", escaped(prefix));
        let ask = HttpRequest {
            ok_statuses: &[200, 404],
            required_header: Some(SIGN),
            limit: LISTING,
            ..HttpRequest::new(Method::Get, &path)
        };
        let mut elements = |status: u16, body: &mut dyn Read| {
            if status == 404 {
                return Ok(Ok(()));
            }
            let taken = each_element(body, None, ELEMENT, |element| match take(element) {
                Ok(ControlFlow::Continue(())) => Ok(()),
                Ok(ControlFlow::Break(())) => Err(None),
                Err(error) => Err(Some(error)),
            })?;
            Ok(taken.map(drop))
        };
        match self.client.read_with(&ask, &mut elements)? {
            Ok(()) | Err(None) => Ok(()),
            Err(Some(error)) => Err(error),
        }
    }
}

/// How far a listing was shown. Where its connection breaks, another server begins it anew; Consul lists
/// keys in the order of their bytes.
#[derive(Default)]
struct Progress {
    last: String,
}

impl Progress {
    /// Whether this key was not shown yet, and is from now on.
    fn goes_on_with(&mut self, key: &str) -> bool {
        let is_new = *key > *self.last;
        if is_new {
            self.last.clear();
            self.last.push_str(key);
        }
        is_new
    }
}

/// A key as it stands in a path.
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

fn understood(answer: &HttpAnswer) -> Result<TxnOutcome> {
    txn::read(answer.status, &answer.body)
}

/// What to do about what a server said instead of an answer.
fn advice(status: u16, body: &str) -> Option<&'static str> {
    Some(match status {
        403 if body.contains("ACL not found") => {
            "this token is unknown to Consul: look at token or tokenFile in ipam.consul"
        }
        401 | 403 => {
            "give a token with the rights on the key prefix ipam/ by token or tokenFile in ipam.consul"
        }
        500 if body.contains("No path to datacenter") => "look at ipam.consul.datacenter",
        500 if body.contains("No cluster leader") => "Consul has no leader: look at its servers",
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
        let new: Vec<&str> = keys.into_iter().filter(|key| progress.goes_on_with(key)).collect();
        assert_eq!(new, ["p/", "p/10.0.0.10", "p/10.0.0.2", "p/10.0.0.3"]);
    }
}
