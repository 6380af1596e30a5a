//! Consul's transactions: operations of which all are carried out, or none.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipam_kit::allocate::owner_index::to_text;
use ipam_kit::{Error, ErrorCode, Result};
use serde::{Deserialize, Serialize};

/// An operation of a transaction.
///
/// [Verbs](https://developer.hashicorp.com/consul/api-docs/txn): `get` of a key that is missing
/// fails the transaction, `delete-cas` of one does not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    /// Shows a key, which has to exist.
    Get(String),
    /// Shows the keys with this prefix, if there are any.
    GetTree(String),
    /// Writes a key whatever its index.
    Set(String, String),
    /// Writes a key that is at this index; a missing key has index 0.
    Cas(String, u64, String),
    /// Deletes a key that is at this index, or is missing.
    DeleteCas(String, u64),
    /// Fails unless the key is at this index.
    CheckIndex(String, u64),
    /// Fails unless the key is missing and may be written.
    CheckAbsent(String),
}

/// How many operations a transaction may have.
pub(crate) const LARGEST: usize = 64;

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    pub(crate) key: String,
    /// `None` for an empty value, and for a key that was written.
    pub(crate) value: Option<Vec<u8>>,
    /// The index that made it.
    pub(crate) created: u64,
    /// The modification index.
    pub(crate) index: u64,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TxnOutcome {
    /// All operations were carried out; what they read and wrote, in order.
    Done(Vec<Pair>),
    /// None was carried out, because these failed.
    Failed(Vec<TxnFailure>),
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TxnFailure {
    /// The index of the operation.
    pub(crate) op_index: usize,
    /// Consul's reason.
    pub(crate) what: String,
}

impl TxnFailure {
    /// Returns whether the token lacks the right.
    pub(crate) fn is_denied(&self) -> bool {
        self.what.contains("ermission denied")
    }
}

impl Op {
    /// Returns the key.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Get(key) | Self::GetTree(key) | Self::CheckAbsent(key) => key,
            Self::Set(key, _) | Self::Cas(key, ..) => key,
            Self::DeleteCas(key, _) | Self::CheckIndex(key, _) => key,
        }
    }

    fn to_body(&self) -> OpBody<'_> {
        let (verb, index, value) = match self {
            Self::Get(_) => ("get", None, None),
            Self::GetTree(_) => ("get-tree", None, None),
            Self::Set(_, value) => ("set", None, Some(encoded(value))),
            Self::Cas(_, index, value) => ("cas", Some(*index), Some(encoded(value))),
            Self::DeleteCas(_, index) => ("delete-cas", Some(*index), None),
            Self::CheckIndex(_, index) => ("check-index", Some(*index), None),
            Self::CheckAbsent(_) => ("check-not-exists", None, None),
        };
        OpBody { kv: KvBody { index, key: self.key(), value, verb } }
    }
}

/// Returns the pair of a key.
pub(crate) fn find<'a>(pairs: &'a [Pair], key: &str) -> Option<&'a Pair> {
    pairs.iter().find(|pair| pair.key == key)
}

/// Returns the body of a request.
pub(crate) fn to_body(ops: &[Op]) -> String {
    to_text(&ops.iter().map(Op::to_body).collect::<Vec<_>>())
}

/// Parses the answer to a transaction with its status, 200 or 409.
///
/// # Errors
/// The answer is malformed.
pub(crate) fn parse(status: u16, body: &[u8]) -> Result<TxnOutcome> {
    let answer: TxnAnswer = serde_json::from_slice(body).map_err(|error| {
        malformed("malformed answer to a transaction from Consul").caused_by(error)
    })?;
    if status == 200 {
        let results = answer.results.unwrap_or_default();
        return results
            .into_iter()
            .map(|result| result.kv.into_pair())
            .collect::<Result<_>>()
            .map(TxnOutcome::Done);
    }
    let errors = answer.errors.unwrap_or_default();
    if errors.is_empty() {
        return Err(malformed("Consul rejected a transaction without a reason"));
    }
    let failures =
        errors.into_iter().map(|OpError { op_index, what }| TxnFailure { op_index, what });
    Ok(TxnOutcome::Failed(failures.collect()))
}

/// Parses an element of a listing.
///
/// # Errors
/// The element is malformed.
pub(crate) fn parse_pair(element: &[u8]) -> Result<Pair> {
    let kv: Kv = serde_json::from_slice(element).map_err(malformed_list)?;
    kv.into_pair()
}

/// Makes the error of a malformed list of keys.
pub(crate) fn malformed_list(error: serde_json::Error) -> Error {
    malformed("malformed list of keys from Consul").caused_by(error)
}

fn malformed(message: &str) -> Error {
    Error::new(ErrorCode::BACKEND, message)
        .advise("check that ipam.consul_servers names Consul's HTTP API, and any proxy before it")
}

/// An operation as Consul reads it.
#[derive(Serialize)]
struct OpBody<'a> {
    #[serde(rename = "KV")]
    kv: KvBody<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct KvBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    key: &'a str,
    /// Sent by an operation that writes; null is an empty value.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Option<String>>,
    verb: &'static str,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TxnAnswer {
    results: Option<Vec<OpResult>>,
    errors: Option<Vec<OpError>>,
}

#[derive(Deserialize)]
struct OpResult {
    #[serde(rename = "KV")]
    kv: Kv,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OpError {
    op_index: usize,
    what: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Kv {
    key: String,
    value: Option<String>,
    create_index: u64,
    modify_index: u64,
}

impl Kv {
    fn into_pair(self) -> Result<Pair> {
        let Self { key, value, create_index: created, modify_index: index } = self;
        let value = value.filter(|value| !value.is_empty());
        let value = value.map(|value| STANDARD.decode(value)).transpose().map_err(|error| {
            malformed(&format!("malformed value of the key {key} from Consul: expected base64"))
                .caused_by(error)
        })?;
        Ok(Pair { key, value, created, index })
    }
}

fn encoded(value: &str) -> Option<String> {
    // An empty value is null, as `consul kv put` writes a folder.
    (!value.is_empty()).then(|| STANDARD.encode(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let body = br#"{"Results":[{"KV":{"LockIndex":0,"Key":"ipam/","Flags":0,"Value":null,"CreateIndex":8,"ModifyIndex":8}},
            {"KV":{"LockIndex":0,"Key":"ipam/p","Flags":0,"Value":"YWI=","CreateIndex":8,"ModifyIndex":9}}],"Errors":null}"#;
        let pair = |key: &str, value: Option<&[u8]>, index| Pair {
            key: key.into(),
            value: value.map(<[u8]>::to_vec),
            created: 8,
            index,
        };
        let done = TxnOutcome::Done(vec![pair("ipam/", None, 8), pair("ipam/p", Some(b"ab"), 9)]);
        assert_eq!(parse(200, body).unwrap(), done);
        let body = br#"{"Results":null,"Errors":[{"OpIndex":1,"What":"key \"ipam/p/\" doesn't exist"}],"Index":0}"#;
        let TxnOutcome::Failed(failures) = parse(409, body).unwrap() else { panic!() };
        assert_eq!((failures[0].op_index, failures[0].is_denied()), (1, false));
        let denied = br#"{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied"}]}"#;
        let TxnOutcome::Failed(failures) = parse(409, denied).unwrap() else { panic!() };
        assert!(failures[0].is_denied());
        assert!(parse(200, b"<html>").is_err());
        assert!(parse(409, b"{}").is_err());
    }

    #[test]
    fn a_body_says_what_is_to_be_done() {
        let ops = [Op::Cas("a/b".into(), 0, "{}".into()), Op::Set("f/".into(), String::new())];
        assert_eq!(
            to_body(&ops),
            r#"[{"KV":{"Index":0,"Key":"a/b","Value":"e30=","Verb":"cas"}},{"KV":{"Key":"f/","Value":null,"Verb":"set"}}]"#
        );
    }
}
