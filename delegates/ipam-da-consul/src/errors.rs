//! Errors about requests that Consul refuses, and about keys in the wrong folder.

use ipam_kit::{Error, ErrorCode};

use crate::txn::{LARGEST, Op, TxnFailure};

/// The advice for a token without the right.
const GRANT: &str = r#"add to the token's policy: key_prefix "ipam/" { policy = "write" }"#;

/// Makes the error of a token that may not read a key.
pub(crate) fn unreadable(key: &str) -> Error {
    let message = format!("permission denied: the Consul token may not read the key {key}");
    Error::new(ErrorCode::BACKEND, message).advise(GRANT)
}

/// Makes the error of a token that may not write the key of an operation.
pub(crate) fn unwritable(op: &Op) -> Error {
    let message = format!("permission denied: the Consul token may not write the key {}", op.key());
    Error::new(ErrorCode::BACKEND, message).advise(GRANT)
}

/// Makes the error of a refused transaction that only reads.
pub(crate) fn refused(ops: &[Op], failures: &[TxnFailure]) -> Error {
    let first = failures.first();
    let key = first.and_then(|failure| ops.get(failure.op_index)).map_or("", Op::key);
    let what = first.map_or("", |failure| failure.what.as_str());
    Error::new(ErrorCode::BACKEND, format!("Consul rejected a read of the key {key}: {what}"))
}

/// Makes the error of a transaction with too many operations.
pub(crate) fn too_many(ops: usize) -> Error {
    let message =
        format!("one transaction needs {ops} operations, and Consul takes at most {LARGEST}");
    Error::new(ErrorCode::BACKEND, message).advise("select fewer pools for one attachment")
}

/// Makes the error of a foreign key in a pool's folder, which is not an address.
pub(crate) fn foreign(key: &str) -> Error {
    Error::new(
        ErrorCode::BACKEND,
        format!("foreign key {key}: expected an address in a pool's folder"),
    )
    .advise(format!("read it (consul kv get '{key}'), and delete it if nothing needs it"))
}
