//! An endpoint over TLS that says what a test gives it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::tls;
use crate::certificates::{Certificates, Pair};

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The next request is read.
    Next,
    /// It ends as TLS wants it.
    Closed,
    /// It ends without a word.
    Cut,
    /// It stays, and nothing more is said until the client goes away.
    Silent,
}

/// Answers every request with bytes of the test's choice. It ends with the test's process.
pub struct Speaker {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

type Say = dyn Fn(&str) -> (Vec<u8>, End) + Send + Sync;

impl Speaker {
    /// With a server's certificate on 127.0.0.1: `say` gets the head of each request, with its
    /// request line, and gives what is written as it is.
    pub fn deciding(
        shown: &Pair,
        say: impl Fn(&str) -> (Vec<u8>, End) + Send + Sync + 'static,
    ) -> Self {
        Self::start(tls::server(shown), Arc::new(say))
    }

    /// Says the same to everyone, with the certificate of a test's server.
    pub fn saying(certificates: &Certificates, text: impl Into<Vec<u8>>, end: End) -> Self {
        let text = text.into();
        Self::deciding(&certificates.server(), move |_| (text.clone(), end))
    }

    /// A whole answer of HTTP/1.1 with its length, to be said or spoiled: `status` as in
    /// `429 Too Many Requests`, `headers` each ending in CRLF.
    pub fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// `127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The heads of the requests that have come so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn start(tls: Arc<ServerConfig>, say: Arc<Say>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::default();
        let kept = Arc::clone(&requests);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&tls)).unwrap();
                let (say, requests) = (Arc::clone(&say), Arc::clone(&requests));
                // What fails ends the connection.
                let serve = move || serve(StreamOwned::new(connection, client), &*say, &requests);
                thread::spawn(move || drop(serve()));
            }
        });
        Self { address, requests: kept }
    }
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

fn serve(stream: Stream, say: &Say, requests: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        requests.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
        let (text, end) = say(&head);
        let tls = stream.get_mut();
        tls.write_all(&text)?;
        tls.flush()?;
        match end {
            End::Next => continue,
            End::Cut => {}
            End::Closed => {
                tls.conn.send_close_notify();
                tls.flush()?;
            }
            End::Silent => drop(stream.read_to_end(&mut Vec::new())),
        }
        return Ok(());
    }
}
