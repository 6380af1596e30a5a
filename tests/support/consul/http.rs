//! One request of HTTP, over TCP or the socket that a test has to its server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// Where a server listens.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Socket(PathBuf),
}

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// All headers, as they came.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The same, which has to be 2xx.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.text());
        self
    }
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

fn exchange(mut stream: impl Read + Write, request: &[u8]) -> io::Result<Answer> {
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "an answer without a head");
    let end = bytes.windows(4).position(|piece| piece == b"\r\n\r\n").ok_or_else(cut)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    Ok(Answer { status, head, body: bytes.split_off(end + 4) })
}
