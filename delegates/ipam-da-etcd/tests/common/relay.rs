//! A relay to a server that can lose its answers, or change them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Passes connections on to a server. It ends with the test's process.
pub struct Relay {
    address: SocketAddr,
    to_lose: Arc<AtomicUsize>,
}

impl Relay {
    /// A relay on 127.0.0.1 to an endpoint.
    pub fn to(endpoint: &str) -> Self {
        Self::on(Ipv4Addr::LOCALHOST, endpoint)
    }

    /// A relay on 127.0.0.1 that passes each piece of what a client sends on only once this returns.
    pub fn gated(endpoint: &str, gate: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self::with(Ipv4Addr::LOCALHOST, endpoint, Arc::new(gate), None)
    }

    /// The same, which also changes each frame of the server's answers.
    pub fn edited(
        endpoint: &str,
        gate: impl Fn(&[u8]) + Send + Sync + 'static,
        edit: impl Fn(&mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        Self::with(Ipv4Addr::LOCALHOST, endpoint, Arc::new(gate), Some(Arc::new(edit)))
    }

    /// A relay on an address of this machine.
    pub fn on(address: Ipv4Addr, endpoint: &str) -> Self {
        Self::with(address, endpoint, Arc::new(|_| ()), None)
    }

    fn with(address: Ipv4Addr, endpoint: &str, gate: Gate, edit: Option<Edit>) -> Self {
        let listener = TcpListener::bind((IpAddr::from(address), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let to_lose = Arc::new(AtomicUsize::new(0));
        let (server, losing) = (endpoint.to_owned(), to_lose.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, losing) = (server.clone(), losing.clone());
                let (gate, edit) = (gate.clone(), edit.clone());
                thread::spawn(move || relay(client, &server, &losing, gate, edit.as_ref()));
            }
        });
        Self { address, to_lose }
    }

    /// `ADDRESS:PORT`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Loses so many of the next answers, on connections to come: the server has done what it was asked for, and the
    /// connection ends without a word.
    pub fn lose(&self, answers: usize) {
        self.to_lose.store(answers, Ordering::SeqCst);
    }
}

type Gate = Arc<dyn Fn(&[u8]) + Send + Sync>;
type Edit = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

fn relay(client: TcpStream, server: &str, losing: &AtomicUsize, gate: Gate, edit: Option<&Edit>) {
    let Ok(server) = TcpStream::connect(server) else { return };
    let (mut from_client, mut to_server) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        let mut piece = [0; 16 * 1024];
        while let Ok(length @ 1..) = from_client.read(&mut piece) {
            gate(&piece[..length]);
            if to_server.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Write);
    });
    if losing.load(Ordering::SeqCst) == 0 && edit.is_none() {
        // It may be TLS.
        let _ = std::io::copy(&mut &server, &mut &client);
    } else {
        let _ = answers(&server, &client, losing, edit);
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Passes the frames of HTTP/2 on, until the headers of an answer are to be lost.
fn answers(
    mut server: &TcpStream,
    mut client: &TcpStream,
    losing: &AtomicUsize,
    edit: Option<&Edit>,
) -> std::io::Result<()> {
    const HEADERS: u8 = 1;
    loop {
        let mut frame = vec![0; 9];
        server.read_exact(&mut frame)?;
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        frame.resize(9 + length, 0);
        server.read_exact(&mut frame[9..])?;
        let lose = |left: usize| left.checked_sub(1);
        if frame[3] == HEADERS
            && losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lose).is_ok()
        {
            return Ok(());
        }
        if let Some(edit) = edit {
            edit(&mut frame[9..]);
        }
        client.write_all(&frame)?;
    }
}
