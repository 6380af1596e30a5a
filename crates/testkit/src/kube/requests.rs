//! What a server was asked.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::Kube;

/// A request, as the server has understood it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `patch`, …
    pub verb: String,
    /// Path and query.
    pub path: String,
    /// Empty where the server knows no such credential.
    pub user: String,
    pub user_agent: String,
    /// The status of the answer.
    pub code: u16,
}

impl Request {
    /// `VERB PATH CODE`.
    pub fn line(&self) -> String {
        format!("{} {} {}", self.verb, self.path, self.code)
    }
}

impl Kube {
    /// All requests since it was first started, in the order in which they came, but for the test's
    /// own.
    #[track_caller]
    pub fn requests(&self) -> Vec<Request> {
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            // A request is noted before it is answered, and its status at its end.
            if let Some(requests) = self.ended_requests() {
                return requests;
            }
            assert!(Instant::now() < give_up, "a request does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The requests that come while something is done.
    #[track_caller]
    pub fn requests_during(&self, done: impl FnOnce()) -> Vec<Request> {
        let before = self.requests().len();
        done();
        self.requests().split_off(before)
    }

    /// The requests of one user since it was first started: of a shared server, those of a test.
    #[track_caller]
    pub fn requests_of(&self, user: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.user == user).collect()
    }

    /// None while one has not ended.
    fn ended_requests(&self) -> Option<Vec<Request>> {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut requests: Vec<(Request, bool)> = Vec::new();
        let log = fs::read_to_string(self.audit_log()).unwrap_or_default();
        // The last line may be written just now.
        let (whole, _) = log.rsplit_once('\n').unwrap_or_default();
        for line in whole.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let place = *places.entry(text(&event["auditID"])).or_insert(requests.len());
            let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
            let request = Request {
                verb: text(&event["verb"]),
                path: text(&event["requestURI"]),
                user: text(&event["user"]["username"]),
                user_agent: text(&event["userAgent"]),
                code: u16::try_from(code).unwrap(),
            };
            let ended = event["stage"] != "RequestReceived";
            match requests.get_mut(place) {
                Some(known) if ended => *known = (request, true),
                Some(_) => {}
                None => requests.push((request, ended)),
            }
        }
        // A server that was killed ends none.
        let all_ended = self.pids()[0].is_none() || requests.iter().all(|(_, ended)| *ended);
        all_ended.then(|| requests.into_iter().map(|(request, _)| request).collect())
    }
}
