use std::collections::BTreeMap;
use std::ops::ControlFlow;

use etcd_client::{GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use ipam_kit::Result;

use crate::client::{Answer, Client};
use crate::keys;

/// How many keys are read at once: with values some 250 KiB.
const PAGE: i64 = 1000;

/// How many reads of single keys or stretches go into one transaction, which may have 128 operations.
pub(crate) const READS: usize = 100;

/// How many keys are read at once without values.
const KEYS_PAGE: i64 = 4096;

/// Reads the keys from one to before another in pages, in order.
///
/// # Errors
/// The store does not answer, or `judge` does not take its answer.
pub(crate) fn pages(
    client: &Client,
    from: String,
    end: &str,
    keys_only: bool,
    judge: impl Fn(&Answer) -> Result<()>,
    each: &mut dyn FnMut(&KeyValue) -> ControlFlow<()>,
) -> Result<()> {
    let mut from = from.into_bytes();
    loop {
        let mut options = GetOptions::new().with_range(end);
        options = if keys_only {
            options.with_keys_only().with_limit(KEYS_PAGE)
        } else {
            options.with_limit(PAGE)
        };
        let txn = Txn::new().and_then([TxnOp::get(from, Some(options))]);
        let answer = client.read(&txn)?;
        judge(&answer)?;
        let Some(page) = first_get(answer.response.op_responses()) else { return Ok(()) };
        for found in page.kvs() {
            if each(found).is_break() {
                return Ok(());
            }
        }
        match page.kvs().last() {
            Some(last) if page.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok(()),
        }
    }
}

/// Reads all keys with a prefix that ends in a slash.
///
/// # Errors
/// As [`pages`].
pub(crate) fn below(
    client: &Client,
    prefix: &str,
    judge: impl Fn(&Answer) -> Result<()>,
    each: &mut dyn FnMut(&KeyValue) -> ControlFlow<()>,
) -> Result<()> {
    pages(client, prefix.to_owned(), &keys::end_of(prefix), false, judge, each)
}

/// The answer to a transaction's first operation, a read.
pub(crate) fn first_get(answers: Vec<TxnOpResponse>) -> Option<GetResponse> {
    match answers.into_iter().next() {
        Some(TxnOpResponse::Get(get)) => Some(get),
        _ => None,
    }
}

/// What the reads of a transaction found, by key.
pub(crate) fn found_by_key(response: &TxnResponse) -> BTreeMap<Vec<u8>, KeyValue> {
    let mut found = BTreeMap::new();
    for answer in response.op_responses() {
        if let TxnOpResponse::Get(mut get) = answer {
            found.extend(get.take_kvs().into_iter().map(|kv| (kv.key().to_vec(), kv)));
        }
    }
    found
}
