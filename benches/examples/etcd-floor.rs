//! The least that a process costs which changes something in etcd with the client library: what
//! `ipam-da-etcd` is compared with:
//!
//! ```text
//! etcd-floor ADD URL OWNER-KEY ADDRESS-KEY VALUE     puts both keys unless the owner has one
//! etcd-floor DEL URL OWNER-KEY ADDRESS-KEY VALUE     deletes both if there is
//! etcd-floor VERB URL OWNER-KEY POOL-KEY VALUE LINE  reads a pool, then changes a line of it, too
//! ```

use std::error::Error;
use std::io::Write;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
// For its memory allocator, the same as the delegate's.
use ipam_kit as _;
use tokio::runtime::Builder;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (&[verb, url, owner, address, value], line) = arguments.split_at(arguments.len().min(5))
    else {
        return Err("expected: ADD|DEL URL OWNER-KEY ADDRESS-KEY VALUE [LINE]".into());
    };
    let is_add = verb == "ADD";
    let guard_owner = Compare::create_revision(
        owner,
        if is_add { CompareOp::Equal } else { CompareOp::Greater },
        0,
    );
    let write_owner =
        if is_add { TxnOp::put(owner, value, None) } else { TxnOp::delete(owner, None) };
    let revision = Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut client = Client::connect([url], None).await?;
        loop {
            let (guard, write) = match line {
                [] if is_add => (None, TxnOp::put(address, value, None)),
                [] => (None, TxnOp::delete(address, None)),
                [line, ..] => {
                    let (seen, next) = changed(&mut client, address, line, is_add).await?;
                    let guard = Compare::mod_revision(address, CompareOp::Equal, seen);
                    (Some(guard), TxnOp::put(address, next, None))
                }
            };
            let has_line = guard.is_some();
            let guards: Vec<Compare> = guard.into_iter().chain([guard_owner.clone()]).collect();
            let reads = TxnOp::get(owner, None);
            let txn =
                Txn::new().when(guards).and_then([write, write_owner.clone()]).or_else([reads]);
            let answer = client.txn(txn).await?;
            if answer.succeeded() {
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                return Ok::<_, Box<dyn Error>>(revision);
            }
            // Else another process has changed the pool first.
            if !has_line {
                return Err("the owner is not as expected".into());
            }
        }
    })?;
    writeln!(std::io::stdout(), "{{\"revision\":{revision}}}")?;
    Ok(())
}

/// The revision of a pool, and its value with a line more or less.
async fn changed(
    client: &mut Client,
    pool: &str,
    line: &str,
    is_add: bool,
) -> Result<(i64, Vec<u8>), Box<dyn Error>> {
    let answer = client.get(pool, None).await?;
    let found = answer.kvs().first().ok_or("the pool is missing")?;
    let value = found.value();
    let next = match is_add {
        true if value.is_empty() => line.as_bytes().to_vec(),
        true => [value, b"\n", line.as_bytes()].concat(),
        false => {
            let lines = value.split(|byte| *byte == b'\n').filter(|its| *its != line.as_bytes());
            lines.collect::<Vec<_>>().join(&b'\n')
        }
    };
    Ok((found.mod_revision(), next))
}
