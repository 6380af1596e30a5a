//! The least that a process costs which changes something in Consul: what `ipam-da-consul` is
//! compared with:
//!
//! ```text
//! consul-floor ADD SERVER OWNER-KEY ADDRESS-KEY VALUE    creates both keys
//! consul-floor DEL SERVER OWNER-KEY ADDRESS-KEY VALUE    deletes both
//! ```
//!
//! SERVER is `ADDRESS:PORT`, VALUE in base64.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::TcpStream;
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
    transaction(server, &format!("[{}]", ops.join(",")))?;
    writeln!(std::io::stdout(), "{{}}")?;
    Ok(())
}

/// Sends a transaction with nothing but the standard library; it has to be carried out.
fn transaction(server: &str, body: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    // An answer to HTTP/1.0 comes in one piece, and ends with the connection.
    let request = format!("PUT /v1/txn HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let is_done = answer.get(9..12) == Some(b"200");
    is_done
        .then_some(())
        .ok_or_else(|| io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
}
