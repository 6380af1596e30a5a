//! Reads of many keys, and what they found.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::{GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};

use crate::keys::EtcdKeys;

/// How many keys are read at once: with values some 250 KiB.
const PAGE: i64 = 1000;

/// How many keys are read at once without values.
const KEYS_PAGE: i64 = 4096;

/// How many reads of single keys or stretches go into one transaction, which may have 128 operations.
pub(crate) const READS: usize = 100;

/// Reads the first keys from one to before another.
pub(crate) fn read_page(from: Vec<u8>, end: &str, keys_only: bool) -> Txn {
    let mut options = GetOptions::new().with_range(end);
    options = if keys_only {
        options.with_keys_only().with_limit(KEYS_PAGE)
    } else {
        options.with_limit(PAGE)
    };
    Txn::new().and_then([TxnOp::get(from, Some(options))])
}

/// Returns the first key of the next page, if there is one.
pub(crate) fn next_page(page: &GetResponse) -> Option<Vec<u8>> {
    let last = page.kvs().last().filter(|_| page.more())?;
    let mut from = last.key().to_vec();
    from.push(0);
    Some(from)
}

/// Reads which addresses of a window are taken.
pub(crate) fn read_window(keys: &EtcdKeys, from: IpAddr, to: IpAddr) -> Vec<TxnOp> {
    let mut reads = Vec::new();
    for (first, end) in keys.window(from, to) {
        let options = GetOptions::new().with_range(end).with_keys_only();
        reads.push(TxnOp::get(first, Some(options)));
    }
    reads
}

/// Returns the answer to a transaction's first operation, a read.
pub(crate) fn first_get(answers: Vec<TxnOpResponse>) -> Option<GetResponse> {
    match answers.into_iter().next() {
        Some(TxnOpResponse::Get(get)) => Some(get),
        _ => None,
    }
}

/// Returns the keys that the reads of a transaction found.
pub(crate) fn flatten(answers: impl IntoIterator<Item = TxnOpResponse>) -> Vec<KeyValue> {
    let mut found = Vec::new();
    for answer in answers {
        if let TxnOpResponse::Get(mut get) = answer {
            found.extend(get.take_kvs());
        }
    }
    found
}

/// The keys that the reads of a transaction found, each with its value.
pub(crate) type FoundKeys = BTreeMap<Vec<u8>, KeyValue>;

/// Returns the keys that the reads of a transaction found, by key.
pub(crate) fn found_by_key(response: &TxnResponse) -> FoundKeys {
    let found = flatten(response.op_responses());
    found.into_iter().map(|kv| (kv.key().to_vec(), kv)).collect()
}
