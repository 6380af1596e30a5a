//! A way to a server, byte by byte, that can be shut.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Passes connections on to a server until it is shut. Then connections there are refused.
pub struct Passage {
    address: SocketAddr,
    shut: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Passage {
    /// One on a free port to `ADDRESS:PORT`.
    pub fn to(endpoint: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shut = Arc::new(AtomicBool::new(false));
        let (server, is_shut) = (endpoint.to_owned(), shut.clone());
        let accepting = thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_shut.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect(&server) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { address, shut, accepting: Some(accepting) }
    }

    /// `127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Shuts it.
    pub fn shut(&mut self) {
        self.shut.store(true, Ordering::SeqCst);
        // The thread waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }
}
