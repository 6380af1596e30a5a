//! The least that a process costs which changes something in Consul: what `ipam-da-consul` is
//! compared with:
//!
//! ```text
//! consul-floor VERB SERVER ADD-BODY DEL-BODY    carries out one of the two transactions
//! ```
//!
//! SERVER is `ADDRESS:PORT`.

use std::error::Error;
use std::io::{self, Write};
use std::net::TcpStream;

// For its memory allocator, the same as the delegate's.
use ipam_kit as _;
use ipam_testkit::servers::http::exchange;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, server, add, del] = &arguments[..] else {
        return Err("expected: ADD|DEL SERVER ADD-BODY DEL-BODY".into());
    };
    transaction(server, if verb == "ADD" { add } else { del })?;
    writeln!(io::stdout(), "{{}}")?;
    Ok(())
}

/// Sends a transaction with nothing but the standard library; it has to be carried out.
fn transaction(server: &str, body: &str) -> io::Result<()> {
    let request = format!("PUT /v1/txn HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let answer = exchange(TcpStream::connect(server)?, request.as_bytes())?;
    if answer.status == 200 { Ok(()) } else { Err(io::Error::other(answer.text())) }
}
