//! A relay in plain HTTP to an API server, which notes requests, and can end, answer and edit them.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use ipam_testkit::kube::Client;

/// A request on its way.
pub struct Ask {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub body: String,
}

/// What becomes of a request.
pub enum Fate {
    /// It is passed on, as it is now.
    Pass,
    /// The client gets this status and body.
    Answer(u16, String),
    /// The client is told to ask again after a second.
    Busy,
    /// The connection ends without an answer.
    End,
    /// It is passed on, and this is called in place of an answer.
    Lose(Box<dyn FnOnce() + Send>),
}

type Decide = Arc<dyn Fn(&Ask) -> Fate + Send + Sync>;

/// A bug of a client: it changes a request, or gives an answer of its own.
pub type Bug = fn(&Client, &mut Ask) -> Option<(u16, String)>;

/// Passes requests on by a client of its own. It ends with the test's process.
pub struct Relay {
    address: SocketAddr,
    way: Arc<Way>,
}

/// What all connections of a relay share.
struct Way {
    client: Client,
    bug: Bug,
    decide: Mutex<Decide>,
    /// The requests that the server has answered.
    answered: Mutex<Vec<String>>,
}

/// The relay of a client without a bug.
pub fn no_bug(_: &Client, _: &mut Ask) -> Option<(u16, String)> {
    None
}

impl Relay {
    /// A relay to the server of a client, with a bug.
    pub fn to(client: &Client, bug: Bug) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let decide: Mutex<Decide> = Mutex::new(Arc::new(|_| Fate::Pass));
        let way = Way { client: client.clone(), bug, decide, answered: Mutex::default() };
        let way = Arc::new(way);
        let its = way.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let way = its.clone();
                thread::spawn(move || way.serve(stream));
            }
        });
        Self { address, way }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asks this about each request from now on.
    pub fn decide(&self, decide: impl Fn(&Ask) -> Fate + Send + Sync + 'static) {
        *self.way.decide.lock().unwrap() = Arc::new(decide);
    }

    /// Passes all requests on from now on.
    pub fn pass(&self) {
        self.decide(|_| Fate::Pass);
    }

    /// The requests that are answered while something is done, as `LIST ippools 200`,
    /// `PATCH ippools/10.0.0.0-24 422`.
    #[track_caller]
    pub fn during(&self, done: impl FnOnce()) -> Vec<String> {
        self.way.answered.lock().unwrap().clear();
        done();
        std::mem::take(&mut *self.way.answered.lock().unwrap())
    }
}

impl Way {
    /// Serves a connection to its end.
    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        stream.set_nodelay(true).unwrap();
        while let Some(ask) = read(&mut reader) {
            let decide = self.decide.lock().unwrap().clone();
            let mut header = "";
            let (status, body) = match decide(&ask) {
                Fate::Pass => self.pass(ask),
                Fate::Answer(status, body) => (status, body),
                Fate::Busy => {
                    header = "Retry-After: 1\r\n";
                    (429, r#"{"kind": "Status", "message": "busy", "code": 429}"#.to_owned())
                }
                Fate::End => return,
                Fate::Lose(then) => {
                    self.pass(ask);
                    return then();
                }
            };
            let head = format!(
                "HTTP/1.1 {status} X\r\n{header}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            // A client that was killed reads nothing.
            if stream.write_all((head + &body).as_bytes()).is_err() {
                return;
            }
        }
    }

    fn pass(&self, mut ask: Ask) -> (u16, String) {
        let (status, body) = (self.bug)(&self.client, &mut ask).unwrap_or_else(|| {
            let answer = self.client.ask(&ask.method, &ask.target, ask.body.as_bytes());
            (answer.status, answer.text())
        });
        self.answered.lock().unwrap().push(ask.line(status));
        (status, body)
    }
}

impl Ask {
    fn line(&self, status: u16) -> String {
        let path = self.target.split('?').next().unwrap();
        let object = path.strip_prefix("/api/v1/");
        let object = object.unwrap_or_else(|| path.splitn(7, '/').last().unwrap());
        let is_list = self.method == "GET" && !object.contains('/');
        format!("{} {object} {status}", if is_list { "LIST" } else { &self.method })
    }
}

fn read(reader: &mut impl BufRead) -> Option<Ask> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = |line: &str| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok();
    let mut body = vec![0; head.lines().find_map(length).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let mut words = head.split(' ').map(str::to_owned);
    let [method, target] = [(); 2].map(|()| words.next().unwrap());
    Some(Ask { method, target, body: String::from_utf8(body).unwrap() })
}
