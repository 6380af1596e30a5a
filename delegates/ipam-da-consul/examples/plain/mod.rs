//! One transaction over a connection of its own, with nothing but the standard library.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Sends a transaction to a server, `ADDRESS:PORT`; it has to be carried out.
pub fn transaction(server: &str, body: &str) -> io::Result<()> {
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
