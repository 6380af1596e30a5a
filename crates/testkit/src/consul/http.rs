//! One request of HTTP, over TCP or the socket that a test has to its server.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::servers::http::{Answer, exchange};

/// Where a server listens.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Socket(PathBuf),
}

/// Sends a request and waits so long for each piece of the answer.
pub(super) fn ask(
    place: &Place,
    patience: Duration,
    [method, target]: [&str; 2],
    token: Option<&str>,
    body: &[u8],
) -> io::Result<Answer> {
    let length = body.len();
    let token = token.map_or_else(String::new, |token| format!("X-Consul-Token: {token}\r\n"));
    // An answer to HTTP/1.0 comes in one piece.
    let head = format!("{method} {target} HTTP/1.0\r\n{token}Content-Length: {length}\r\n\r\n");
    let request = [head.as_bytes(), body].concat();
    match place {
        Place::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, patience)?;
            stream.set_read_timeout(Some(patience))?;
            exchange(stream, &request)
        }
        Place::Socket(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(patience))?;
            exchange(stream, &request)
        }
    }
}
