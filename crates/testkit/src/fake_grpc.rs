//! A gRPC server that refuses all that it is asked, in words of the test's choice.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Bytes of the preface of HTTP/2, and of a frame's head.
const PREFACE: usize = 24;
const HEAD: usize = 9;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// The URL of a server that answers every request with this status and message.
pub fn refusing(status: u8, message: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let refusal = refusal(status, message);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, refusal) = (stream.unwrap(), refusal.clone());
            // A client may go at any time.
            std::thread::spawn(move || converse(stream, &refusal));
        }
    });
    url
}

fn converse(mut stream: TcpStream, refusal: &[u8]) -> std::io::Result<()> {
    stream.read_exact(&mut [0; PREFACE])?;
    stream.write_all(&frame(SETTINGS, 0, [0; 4], b""))?;
    loop {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize])?;
        let of = [head[5], head[6], head[7], head[8]];
        match (head[3], head[4] & 1) {
            // An acknowledgement.
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, [0; 4], b""))?,
            // The end of the headers and of the stream.
            (HEADERS, _) => stream.write_all(&frame(HEADERS, 5, of, refusal))?,
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, of: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &of, payload].concat()
}

/// The headers, of which HPACK knows the status 200 by a number.
fn refusal(status: u8, message: &str) -> Vec<u8> {
    let message: String = message.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut block = vec![0x88];
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", &status.to_string()),
        ("grpc-message", &message),
    ] {
        block.push(0);
        text(name, &mut block);
        text(value, &mut block);
    }
    block
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
