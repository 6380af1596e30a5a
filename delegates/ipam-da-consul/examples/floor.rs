//! The least that a process costs which changes something in Consul: what `ipam-da-consul` is
//! compared with. `benches/consul.rs` runs it:
//!
//! ```text
//! floor ADD SERVER OWNER-KEY ADDRESS-KEY VALUE    creates both keys
//! floor DEL SERVER OWNER-KEY ADDRESS-KEY VALUE    deletes both
//! ```
//!
//! SERVER is `ADDRESS:PORT`, VALUE in base64.

mod plain;

use std::error::Error;
use std::io::Write;

// For its memory allocator, the same as the delegate's.
use ipam_kit as _;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, server, keys @ .., value] = &arguments[..] else {
        return Err("expected: ADD|DEL SERVER OWNER-KEY ADDRESS-KEY VALUE".into());
    };
    let op = |key: &String| match verb.as_str() {
        "ADD" => {
            format!(r#"{{"KV":{{"Verb":"cas","Key":"{key}","Index":0,"Value":"{value}"}}}}"#)
        }
        _ => format!(r#"{{"KV":{{"Verb":"delete","Key":"{key}"}}}}"#),
    };
    let ops: Vec<String> = keys.iter().map(op).collect();
    plain::transaction(server, &format!("[{}]", ops.join(",")))?;
    writeln!(std::io::stdout(), "{{}}")?;
    Ok(())
}
