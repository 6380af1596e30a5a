//! The least that a process costs which changes something in Consul: what `ipam-da-consul` is
//! compared with:
//!
//! ```text
//! consul-floor VERB SERVER ADD-BODY DEL-BODY    carries out one of the two transactions
//! ```
//!
//! SERVER is `ADDRESS:PORT`.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::TcpStream;
// For its memory allocator, the same as the delegate's.
use ipam_kit as _;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, server, add, del] = &arguments[..] else {
        return Err("expected: ADD|DEL SERVER ADD-BODY DEL-BODY".into());
    };
    transaction(server, if verb == "ADD" { add } else { del })?;
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
