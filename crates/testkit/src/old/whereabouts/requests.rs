//! How the programs send requests: typed clients of client-go, which hold them back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Played, Steps};
use crate::kube::Client;
use crate::whereabouts::{API, Release, collection};

/// The name of the kind of the lease, which a client of its own asks for.
pub(super) const LEASES: &str = "leases";

/// `rest.DefaultBurst` and `rest.DefaultQPS` of client-go: a client sends ten requests at once,
/// then five a second. Nothing in whereabouts sets others.
const BURST: u32 = 10;
const INTERVAL: Duration = Duration::from_millis(200);

/// The API server, as one call of a program uses it.
pub(super) struct Api {
    steps: Steps,
    release: Release,
    pub(super) namespace: String,
    /// What each client may still send, and since when.
    buckets: RefCell<BTreeMap<&'static str, (u32, Instant)>>,
}

/// What the server answered.
pub(super) struct Reply {
    /// 0 without an answer.
    pub(super) status: u16,
    pub(super) body: Value,
    /// What an error says.
    pub(super) text: String,
}

impl Api {
    pub(super) fn new(steps: Steps, release: Release, namespace: &str) -> Self {
        Self { steps, release, namespace: namespace.to_owned(), buckets: RefCell::default() }
    }

    /// One request about objects of a kind, by its plural; all of them where none is named. It is
    /// told as `GET ippools/10.0.0.0-24 200`, `LIST ippools 200`, `GET leases/whereabouts: no
    /// answer`. A request that could not be sent until `limit` is not a step.
    pub(super) fn ask(
        &self,
        method: &str,
        plural: &'static str,
        name: &str,
        body: &Value,
        limit: Option<Instant>,
    ) -> Played<Reply> {
        let client = self.client_of(plural);
        let wait = self.wait_of(client);
        if limit.is_some_and(|limit| Instant::now() + wait >= limit) {
            let text = "client rate limiter Wait returned an error: context deadline exceeded";
            return Ok(Reply { status: 0, body: Value::Null, text: text.to_owned() });
        }
        let folder = match plural {
            LEASES => format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace),
            _ => collection(&self.namespace, plural),
        };
        let named = !name.is_empty();
        let path = if named { format!("{folder}/{name}") } else { folder };
        let verb = if method == "GET" && !named { "LIST" } else { method };
        let object = if named { format!("{plural}/{name}") } else { plural.to_owned() };
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = |http: &Client| {
            thread::sleep(wait);
            Ok(http.try_ask(method, &path, &bytes))
        };
        let answer = self.steps.step(request, |answer| match answer {
            Ok(answer) => format!("{verb} {object} {}", answer.status),
            Err(_) => format!("{verb} {object}: no answer"),
        })?;
        self.spend(client);
        Ok(match answer {
            Ok(answer) => Reply {
                status: answer.status,
                body: serde_json::from_slice(&answer.body).unwrap_or_default(),
                text: answer.text(),
            },
            Err(error) => Reply { status: 0, body: Value::Null, text: error.to_string() },
        })
    }

    /// An object that is to be made.
    pub(super) fn object(&self, kind: &str, name: &str, spec: &Value) -> Value {
        let metadata = json!({"name": name, "namespace": self.namespace});
        json!({"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec})
    }

    /// Which client asks for a kind. The client of v0.5.4 and the fork, of controller-runtime, has
    /// one for each kind; later releases have one for each group.
    fn client_of(&self, plural: &'static str) -> &'static str {
        match self.release {
            Release::V04 | Release::V054 | Release::Fork => plural,
            Release::V07 | Release::V094 if plural == LEASES => LEASES,
            Release::V07 | Release::V094 => "whereabouts",
        }
    }

    /// How long a client holds its next request back.
    fn wait_of(&self, client: &'static str) -> Duration {
        let mut buckets = self.buckets.borrow_mut();
        let (tokens, since) = buckets.entry(client).or_insert_with(|| (BURST, Instant::now()));
        while *tokens < BURST && since.elapsed() >= INTERVAL {
            (*tokens, *since) = (*tokens + 1, *since + INTERVAL);
        }
        if *tokens > 0 { Duration::ZERO } else { INTERVAL.saturating_sub(since.elapsed()) }
    }

    fn spend(&self, client: &'static str) {
        self.wait_of(client);
        let mut buckets = self.buckets.borrow_mut();
        let (tokens, since) = buckets.get_mut(client).unwrap();
        if *tokens == BURST {
            *since = Instant::now();
        }
        *tokens = tokens.saturating_sub(1);
    }
}

impl Reply {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}
