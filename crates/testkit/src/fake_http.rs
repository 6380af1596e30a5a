//! An HTTP server made of a function, for what a real one does not do on demand.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A server made of a function from the request's number to what is done about it.
pub struct Fake {
    pub url: String,
    /// The requests: the lines of the head, an empty one, the body.
    pub seen: Arc<Mutex<Vec<String>>>,
    pub connections: Arc<AtomicUsize>,
    /// Connections that the server has closed.
    pub ended: Arc<AtomicUsize>,
}

pub enum Reply {
    Say(String),
    SayAndClose(String),
    /// Piece after piece, a while apart.
    Drip(String),
    Silence,
}

use Reply::{Drip, Say, SayAndClose, Silence};

pub fn http(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub fn fake(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Fake {
    answering(move |_, number| reply(number))
}

/// The same, where what is done about a request depends on it, too.
pub fn answering(reply: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let fake =
        Fake { url, seen: Arc::default(), connections: Arc::default(), ended: Arc::default() };
    let (seen, connections) = (Arc::clone(&fake.seen), Arc::clone(&fake.connections));
    let (ended, reply) = (Arc::clone(&fake.ended), Arc::new(reply));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            connections.fetch_add(1, Ordering::SeqCst);
            let (seen, ended, reply) = (Arc::clone(&seen), Arc::clone(&ended), Arc::clone(&reply));
            std::thread::spawn(move || {
                converse(stream.unwrap(), &seen, &*reply);
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    fake
}

fn converse(stream: TcpStream, seen: &Mutex<Vec<String>>, reply: &dyn Fn(&str, usize) -> Reply) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = request(&mut reader) {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        match reply(&request, number) {
            // A client may have seen enough before the end.
            Say(text) if stream.write_all(text.as_bytes()).is_err() => return,
            Say(_) => {}
            SayAndClose(text) => {
                let _ = stream.write_all(text.as_bytes());
                return;
            }
            Drip(text) => {
                for piece in text.as_bytes().chunks(1) {
                    if stream.write_all(piece).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            Silence => {}
        }
    }
}

fn request(reader: &mut impl BufRead) -> Option<String> {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if reader.read_line(&mut text).ok()? == 0 {
            return None;
        }
    }
    let length = |line: &str| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok();
    let mut body = vec![0; text.lines().find_map(length).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(text + std::str::from_utf8(&body).unwrap())
}

impl Fake {
    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// The URL of nobody.
pub fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}
