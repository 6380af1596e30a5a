//! A gRPC server made of a function, for what a real one does not do on demand.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of the preface of HTTP/2, and of a frame's head.
const PREFACE: usize = 24;
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

/// The flags of a frame: an acknowledgement or the end of a stream, and the end of the headers.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A server made of a function from the request's number to the reply.
pub struct Fake {
    pub url: String,
    seen: Arc<Seen>,
}

pub enum Reply {
    /// Answers with this message.
    Say(Vec<u8>),
    /// Refuses with this status and these words.
    Refuse(u8, String),
    Silence,
}

#[derive(Default)]
struct Seen {
    connections: Mutex<Vec<TcpStream>>,
    requests: AtomicUsize,
    pongs: AtomicUsize,
}

impl Fake {
    /// How many connections have come so far.
    pub fn connections(&self) -> usize {
        self.seen.connections.lock().unwrap().len()
    }

    /// How many requests have come so far.
    pub fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// Sends a ping over each connection.
    pub fn ping(&self) {
        for mut stream in self.seen.connections.lock().unwrap().iter() {
            stream.write_all(&frame(PING, 0, [0; 4], &[0; 8])).unwrap();
        }
    }

    /// How many pings were answered so far.
    pub fn pongs(&self) -> usize {
        self.seen.pongs.load(Ordering::SeqCst)
    }
}

pub fn fake(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let fake = Fake { url, seen: Arc::default() };
    let (seen, reply) = (Arc::clone(&fake.seen), Arc::new(reply));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, seen, reply) = (stream.unwrap(), Arc::clone(&seen), Arc::clone(&reply));
            seen.connections.lock().unwrap().push(stream.try_clone().unwrap());
            std::thread::spawn(move || {
                // A client may go at any time.
                let _ = converse(&stream, &seen, &*reply);
                let _ = stream.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    fake
}

/// The URL of a server that answers every request with this status and message.
pub fn refusing(status: u8, message: &str) -> String {
    let message = message.to_owned();
    fake(move |_| Reply::Refuse(status, message.clone())).url
}

fn converse(
    mut stream: &TcpStream,
    seen: &Seen,
    reply: &dyn Fn(usize) -> Reply,
) -> std::io::Result<()> {
    stream.read_exact(&mut [0; PREFACE])?;
    stream.write_all(&frame(SETTINGS, 0, [0; 4], b""))?;
    loop {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        let of = [head[5], head[6], head[7], head[8]];
        match (head[3], head[4] & 1) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, ACK, [0; 4], b""))?,
            (PING, 0) => stream.write_all(&frame(PING, ACK, [0; 4], &payload))?,
            (PING, ACK) => drop(seen.pongs.fetch_add(1, Ordering::SeqCst)),
            (HEADERS | DATA, END_STREAM) => {
                let number = seen.requests.fetch_add(1, Ordering::SeqCst);
                stream.write_all(&written(reply(number), of))?;
            }
            _ => {}
        }
    }
}

/// The frames of a reply.
fn written(reply: Reply, of: [u8; 4]) -> Vec<u8> {
    match reply {
        Reply::Say(message) => {
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            let message = [&[0][..], &length, &message].concat();
            let mut head = vec![STATUS_200];
            header("content-type", "application/grpc", &mut head);
            let mut end = Vec::new();
            header("grpc-status", "0", &mut end);
            [
                frame(HEADERS, END_HEADERS, of, &head),
                frame(DATA, 0, of, &message),
                frame(HEADERS, END_HEADERS | END_STREAM, of, &end),
            ]
            .concat()
        }
        Reply::Refuse(status, words) => {
            frame(HEADERS, END_HEADERS | END_STREAM, of, &refusal(status, &words))
        }
        Reply::Silence => Vec::new(),
    }
}

fn frame(kind: u8, flags: u8, of: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &of, payload].concat()
}

/// The status 200, which HPACK knows by a number.
const STATUS_200: u8 = 0x88;

fn refusal(status: u8, message: &str) -> Vec<u8> {
    let message: String = message.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut block = vec![STATUS_200];
    header("content-type", "application/grpc", &mut block);
    header("grpc-status", &status.to_string(), &mut block);
    header("grpc-message", &message, &mut block);
    block
}

fn header(name: &str, value: &str, block: &mut Vec<u8>) {
    block.push(0);
    text(name, block);
    text(value, block);
}

/// A text of HPACK: its length in seven bits, the rest in groups of seven.
fn text(text: &str, block: &mut Vec<u8>) {
    match text.len().checked_sub(127) {
        None => block.push(text.len() as u8),
        Some(mut more) => {
            block.push(127);
            while more >= 128 {
                block.push((more % 128) as u8 | 128);
                more /= 128;
            }
            block.push(more as u8);
        }
    }
    block.extend(text.as_bytes());
}
