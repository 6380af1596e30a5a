//! The least that a process costs which changes something in etcd with the client library: what
//! `ipam-da-etcd` is compared with:
//!
//! ```text
//! etcd-floor ADD URL OWNER-KEY ADDRESS-KEY VALUE    puts both keys if there is no such owner
//! etcd-floor DEL URL OWNER-KEY ADDRESS-KEY VALUE    deletes both if there is
//! ```

use std::error::Error;
use std::io::Write;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
// For its memory allocator, the same as the delegate's.
use ipam_kit as _;
use tokio::runtime::Builder;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, url, owner, address, value] = &arguments[..] else {
        return Err("expected: ADD|DEL URL OWNER-KEY ADDRESS-KEY VALUE".into());
    };
    let (expected, writes) = match verb.as_str() {
        "ADD" => (CompareOp::Equal, [address, owner].map(|key| TxnOp::put(&**key, &**value, None))),
        _ => (CompareOp::Greater, [address, owner].map(|key| TxnOp::delete(&**key, None))),
    };
    let guard = Compare::create_revision(&**owner, expected, 0);
    let reads = TxnOp::get(&**owner, None);
    let txn = Txn::new().when([guard]).and_then(writes).or_else([reads]);
    let answer = Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut client = Client::connect([url], None).await?;
        client.txn(txn).await
    })?;
    if !answer.succeeded() {
        return Err("the owner is not as expected".into());
    }
    let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
    writeln!(std::io::stdout(), "{{\"revision\":{revision}}}")?;
    Ok(())
}
