use std::ops::ControlFlow;

use etcd_client::{GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};
use ipam_delegated::Result;

use crate::client::{Answer, Client};
use crate::keys;

/// How many keys are read at once: with values some 250 KiB.
const PAGE: i64 = 1000;

/// Reads the keys from one to before another in pages, in order.
///
/// # Errors
/// The store does not answer, or `judge` does not take its answer.
pub fn pages(
    client: &Client,
    from: String,
    end: &str,
    keys_only: bool,
    judge: impl Fn(&Answer) -> Result<()>,
    each: &mut dyn FnMut(&KeyValue) -> ControlFlow<()>,
) -> Result<()> {
    let mut from = from.into_bytes();
    loop {
        let mut options = GetOptions::new().with_range(end).with_limit(PAGE);
        if keys_only {
            options = options.with_keys_only();
        }
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
pub fn below(
    client: &Client,
    prefix: &str,
    judge: impl Fn(&Answer) -> Result<()>,
    each: &mut dyn FnMut(&KeyValue) -> ControlFlow<()>,
) -> Result<()> {
    pages(client, prefix.to_owned(), &keys::end_of(prefix), false, judge, each)
}

/// The answer to a transaction's first operation, a read.
pub fn first_get(answers: Vec<TxnOpResponse>) -> Option<GetResponse> {
    match answers.into_iter().next() {
        Some(TxnOpResponse::Get(get)) => Some(get),
        _ => None,
    }
}
