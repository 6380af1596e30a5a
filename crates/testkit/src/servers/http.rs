//! One request of HTTP over any stream: the answer to it ends with the connection.

use std::io::{self, Read, Write};

use serde_json::Value;

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

/// Sends a request, head and body, and reads to the end of the stream.
pub fn exchange(mut stream: impl Read + Write, request: &[u8]) -> io::Result<Answer> {
    stream.write_all(request)?;
    stream.flush()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "an answer without a head");
    let end = bytes.windows(4).position(|piece| piece == b"\r\n\r\n").ok_or_else(cut)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    let mut body = bytes.split_off(end + 4);
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        body = joined(&body).ok_or_else(cut)?;
    }
    Ok(Answer { status, head, body })
}

/// The text of a body in chunks.
fn joined(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = chunks.windows(2).position(|pair| pair == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&chunks[..end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunks.get(end + 2..end + 2 + size)?);
        chunks = chunks.get(end + size + 4..)?;
    }
}
