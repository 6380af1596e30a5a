//! A relay to a server of HTTP/1, which counts what it passes on and can spoil answers.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Fate {
    /// The client gets the server's answer.
    Pass,
    /// It does not reach the server; the connection ends without a word.
    Refuse,
    /// The server has done what it was asked for, and the connection ends without a word.
    Lose,
    /// The server has done what it was asked for, and the connection ends within its answer.
    Cut,
    /// The server has done what it was asked for, and the answer comes so much later.
    Delay(Duration),
    /// The server has done what it was asked for, and the client gets this status and text.
    Answer(u16, String),
    /// It goes to another server, by its `ADDRESS:PORT`, whose answer the client gets.
    Elsewhere(String),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Each name in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// All of it, as it goes on.
    raw: Vec<u8>,
}

impl Request {
    /// `METHOD TARGET`.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// Passes requests on to a server. It ends with the test's process.
pub struct Relay {
    address: SocketAddr,
    books: Arc<Books>,
}

struct Books {
    server: String,
    decide: Box<dyn Fn(&Request) -> Fate + Send + Sync>,
    /// What becomes of the next requests, before `decide` is asked.
    fates: Mutex<VecDeque<Fate>>,
    requests: Mutex<Vec<Request>>,
}

impl Relay {
    /// A relay on 127.0.0.1 to `ADDRESS:PORT`.
    pub fn to(endpoint: &str) -> Self {
        Self::deciding(endpoint, |_| Fate::Pass)
    }

    /// The same, which asks what becomes of each request, and waits until it is told.
    pub fn deciding(
        endpoint: &str,
        decide: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self::on(Ipv4Addr::LOCALHOST, endpoint, decide)
    }

    /// The same on an address of this machine.
    pub fn on(
        address: Ipv4Addr,
        endpoint: &str,
        decide: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((IpAddr::from(address), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let books = Arc::new(Books {
            server: endpoint.to_owned(),
            decide: Box::new(decide),
            fates: Mutex::default(),
            requests: Mutex::default(),
        });
        let kept = books.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let books = books.clone();
                // What fails ends the connection.
                thread::spawn(move || drop(serve(&client, &books)));
            }
        });
        Self { address, books: kept }
    }

    /// `ADDRESS:PORT`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// What becomes of the next requests, in the order in which they come.
    pub fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        lock(&self.books.fates).extend(fates);
    }

    /// The requests that have come so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.books.requests).clone()
    }

    /// The requests that come while something is done, as `METHOD TARGET`.
    pub fn during(&self, done: impl FnOnce()) -> Vec<String> {
        let before = lock(&self.books.requests).len();
        done();
        lock(&self.books.requests)[before..].iter().map(Request::line).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a connection to its end.
fn serve(mut client: &TcpStream, books: &Books) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut from_client = BufReader::new(client);
    let mut server: Option<BufReader<TcpStream>> = None;
    while let Some(request) = read_request(&mut from_client, client)? {
        lock(&books.requests).push(request.clone());
        let fate = lock(&books.fates).pop_front();
        let fate = fate.unwrap_or_else(|| (books.decide)(&request));
        if matches!(fate, Fate::Refuse) {
            return Ok(());
        }
        if let Fate::Elsewhere(other) = &fate {
            let mut other = BufReader::new(TcpStream::connect(other)?);
            other.get_mut().write_all(&request.raw)?;
            client.write_all(&read_answer(&mut other, &request.method)?.0)?;
            continue;
        }
        let server = match &mut server {
            Some(server) => server,
            None => {
                let stream = TcpStream::connect(&books.server)?;
                stream.set_nodelay(true)?;
                server.insert(BufReader::new(stream))
            }
        };
        server.get_mut().write_all(&request.raw)?;
        let (answer, ends) = read_answer(server, &request.method)?;
        match fate {
            Fate::Refuse | Fate::Lose => return Ok(()),
            Fate::Cut => return client.write_all(&answer[..answer.len() / 2]),
            Fate::Delay(time) => thread::sleep(time),
            Fate::Pass | Fate::Elsewhere(_) => {}
            Fate::Answer(status, text) => {
                let length = text.len();
                let head = format!("HTTP/1.1 {status} Told\r\nContent-Length: {length}");
                let end = "\r\nConnection: close\r\n\r\n";
                return client.write_all((head + end + &text).as_bytes());
            }
        }
        client.write_all(&answer)?;
        if ends {
            break;
        }
    }
    Ok(())
}

type Headers = Vec<(String, String)>;

fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Reads to the empty line: the first line and the headers. None where the connection has ended.
fn read_head(
    stream: &mut impl BufRead,
    raw: &mut Vec<u8>,
) -> io::Result<Option<(String, Headers)>> {
    let start = raw.len();
    while !raw[start..].ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', raw)? == 0 {
            let nothing = raw.len() == start;
            return if nothing { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
    let text = String::from_utf8_lossy(&raw[start..]).into_owned();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().to_owned();
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_lowercase(), value.trim().to_owned()))
    };
    Ok(Some((first, lines.filter_map(pair).collect())))
}

/// Reads a body whose end the headers tell: whether they do.
fn read_body(stream: &mut impl BufRead, headers: &Headers, raw: &mut Vec<u8>) -> io::Result<bool> {
    if header(headers, "transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let start = raw.len();
            stream.read_until(b'\n', raw)?;
            let line = String::from_utf8_lossy(&raw[start..]).into_owned();
            let length = line.trim().split(';').next().unwrap_or_default();
            let length = u64::from_str_radix(length, 16).map_err(io::Error::other)?;
            read_exactly(stream, length + 2, raw)?;
            if length == 0 {
                return Ok(true);
            }
        }
    }
    let Some(length) = header(headers, "content-length") else { return Ok(false) };
    read_exactly(stream, length.parse().map_err(io::Error::other)?, raw)?;
    Ok(true)
}

fn read_exactly(stream: &mut impl Read, length: u64, raw: &mut Vec<u8>) -> io::Result<()> {
    let read = stream.take(length).read_to_end(raw)?;
    if read as u64 == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads a request; none where the connection has ended.
pub(crate) fn read_request(
    stream: &mut impl BufRead,
    mut client: &TcpStream,
) -> io::Result<Option<Request>> {
    let mut raw = Vec::new();
    let Some((first, headers)) = read_head(stream, &mut raw)? else { return Ok(None) };
    let head = raw.len();
    if header(&headers, "expect").is_some() {
        // It sends the body once it is told to.
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    read_body(stream, &headers, &mut raw)?;
    let mut words = first.split(' ').map(str::to_owned);
    let [method, target] = [(); 2].map(|()| words.next().unwrap_or_default());
    let body = String::from_utf8_lossy(&raw[head..]).into_owned();
    Ok(Some(Request { method, target, headers, body, raw }))
}

/// An answer, and whether the connection ends with it.
fn read_answer(stream: &mut impl BufRead, method: &str) -> io::Result<(Vec<u8>, bool)> {
    let mut raw = Vec::new();
    let (first, headers) = loop {
        raw.clear();
        let head = read_head(stream, &mut raw)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !head.0.starts_with("HTTP/1.1 100 ") {
            break head;
        }
    };
    let status = first.split(' ').nth(1).unwrap_or_default();
    let ends = first.starts_with("HTTP/1.0")
        || header(&headers, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    if method == "HEAD" || ["204", "304"].contains(&status) {
        return Ok((raw, ends));
    }
    if read_body(stream, &headers, &mut raw)? {
        return Ok((raw, ends));
    }
    stream.read_to_end(&mut raw)?;
    Ok((raw, true))
}
