//! Endpoints that accept and never answer, or say the same to everyone.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Listens on a port of its own. The kernel accepts connections and takes what is sent; nothing is
/// ever answered.
pub struct Silent {
    listener: TcpListener,
    accepted: Mutex<Vec<TcpStream>>,
}

impl Silent {
    pub fn listen() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, accepted: Mutex::default() }
    }

    /// `127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// How many connections have come so far.
    pub fn connections(&self) -> usize {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok((stream, _)) = self.listener.accept() {
            accepted.push(stream);
        }
        accepted.len()
    }
}

/// A server that answers whatever comes with these bytes; its endpoint.
pub fn saying(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(bytes);
            let _ = client.shutdown(Shutdown::Write);
            let _ = io::copy(&mut client, &mut io::sink());
        }
    });
    endpoint
}
