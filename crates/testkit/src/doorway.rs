//! A way to a server that can be shut, and that may begin in another network namespace.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Passes connections on to a server, byte by byte, until it is shut.
pub struct Doorway {
    address: SocketAddr,
    shut: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Doorway {
    /// One on a free port of the loopback.
    pub fn to(server: SocketAddr) -> Self {
        Self::open(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), server)
    }

    /// One on the server's own address in a network namespace, where nobody else has it.
    #[track_caller]
    pub fn inside(namespace: &Path, server: SocketAddr) -> Self {
        let namespace = File::open(namespace).unwrap();
        // A socket stays in the namespace of the thread that made it.
        let bind = move || -> io::Result<TcpListener> {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind)?;
            TcpListener::bind(server)
        };
        Self::open(thread::spawn(bind).join().unwrap().unwrap(), server)
    }

    /// Where clients knock.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Shuts it: nobody listens there any more.
    pub fn shut(&mut self) {
        self.shut.store(true, Ordering::SeqCst);
        // The thread waits for somebody to come; what listens in another namespace ends with the test.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }

    fn open(listener: TcpListener, server: SocketAddr) -> Self {
        let address = listener.local_addr().unwrap();
        let shut = Arc::new(AtomicBool::new(false));
        let is_shut = Arc::clone(&shut);
        let accepting = thread::spawn(move || {
            for client in listener.incoming() {
                if is_shut.load(Ordering::SeqCst) {
                    return;
                }
                // What fails ends the connection.
                let _ = client.and_then(|client| pass(client, server));
            }
        });
        Self { address, shut, accepting: Some(accepting) }
    }
}

fn pass(client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        thread::spawn(move || {
            let _ = io::copy(&mut &from, &mut &to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
