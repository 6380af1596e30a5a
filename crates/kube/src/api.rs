use std::io::{self, Read};
use std::ops::ControlFlow;
use std::time::Duration;

use log::warn;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::login::Login;
use super::refusal::Asked;
use super::resource::Resource;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_servers::{
    Access, Client, HttpAnswer, HttpRequest, Method, Secret, Tls, each_element, escape, media,
};

/// A Kubernetes API server, with a login.
#[derive(Debug)]
pub struct Kube {
    client: Client,
    login: Login,
}

/// Objects of a kind.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// The kind; a name has no effect.
    pub what: Resource<'a>,
    /// A label selector, as in `app=ipam,zone in (a, b)`; empty for all objects.
    pub labels: &'a str,
    /// Objects in a page, from 1 to 500.
    pub page: usize,
}

/// Something to be changed.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// POST makes an object of the kind, PUT replaces the one that is named, PATCH carries out a JSON
    /// patch (RFC 6902) on it, DELETE removes it.
    pub method: Method,
    /// The object; for POST its kind.
    pub what: Resource<'a>,
    /// JSON: the object, the patch, or for DELETE its options or nothing.
    pub body: &'a [u8],
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was done, and this is what the server answered: the object, for DELETE that or a Status.
    Done(T),
    /// It was not done, for a reason that a caller may have expected.
    Refused(Refusal),
    /// It may have been done, or may still be.
    Unknown,
}

/// Why a change was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: Why,
    /// What the server said.
    pub message: String,
}

/// The reason of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is no such object, or no namespace to put it into (404).
    NotFound,
    /// An object of this name exists (409, AlreadyExists).
    AlreadyExists,
    /// The object is another one than the change was made for, or is being changed (409).
    Conflict,
    /// A test of the JSON patch failed, or another of its operations does not fit the object (422):
    /// the object is another one than was seen.
    TestFailed,
    /// The server does not take the object (422): its kind has another schema or version there, or
    /// the caller has a defect.
    Invalid,
}

/// Objects in a page of a list where the caller asks for no other number.
const PAGE: usize = 100;

/// Bytes of one object: twice what an API server keeps, which is 1.5 MiB in another form.
const OBJECT: u64 = 4 << 20;

/// Bytes of a page, which nothing holds as a whole.
const LIST: u64 = 128 << 20;

/// Objects that are read of a page: a server may ignore the limit that it is asked for, within reason.
const MOST: usize = 500;

/// How often a list begins anew.
const AGAIN: usize = 3;

/// The statuses of which the body says more.
const ANSWERS: [u16; 14] = [200, 201, 202, 400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422];

impl<'a> List<'a> {
    /// All objects of a kind, in pages of 100.
    pub fn all(what: Resource<'a>) -> Self {
        Self { what, labels: "", page: PAGE }
    }

    /// The path of the first page, with its query.
    fn path(&self) -> String {
        let path = format!("{}?limit={}", self.what.path(), self.page);
        match self.labels {
            "" => path,
            labels => format!("{path}&labelSelector={}", escape(labels)),
        }
    }
}

impl Kube {
    pub(super) fn new(
        login: Login,
        timeout: Duration,
        unreached: ErrorCode,
        deadline: Deadline,
    ) -> Result<Self> {
        let bearer = |(place, token): &(String, Secret)| {
            let value = Secret::parse(&format!("Bearer {}", token.expose()), place)?;
            Ok(("Authorization", value))
        };
        let access = Access {
            service: "Kubernetes API",
            servers: vec![login.server.clone()],
            tls: Tls::default(),
            headers: login.token.iter().map(bearer).collect::<Result<_>>()?,
            timeout,
            unreached,
            advice: |status, _| {
                (300..400).contains(&status).then_some("this is no Kubernetes API server")
            },
        };
        let client = Client::trusting(access, &login.trust, deadline)?.speaking(media::JSON);
        Ok(Self { client, login })
    }

    /// What tells the cluster from others: the CA that signs for its API servers, else the server's
    /// URL.
    ///
    /// # Errors
    /// The CA's certificate cannot be read.
    pub(crate) fn cluster(&self) -> Result<String> {
        self.login.cluster()
    }

    /// The namespace that the login is for, where it says so: that of the kubeconfig's context, or of the
    /// pod.
    pub fn namespace(&self) -> Option<&str> {
        self.login.namespace.as_deref()
    }

    /// Reads an object; `None` when there is none of this name.
    ///
    /// # Errors
    /// The server is away or refuses, as the module tells; its answer is no such object.
    pub fn get<T: DeserializeOwned>(&mut self, what: &Resource<'_>) -> Result<Option<T>> {
        let asked = Asked::new(&self.client, &self.login, Method::Get, what);
        let answer = self.client.read(&request(&what.path(), OBJECT));
        let answer = answer.map_err(|error| self.told(error))?;
        match answer.status {
            200 => {}
            404 if asked.is_absent(&answer) => return Ok(None),
            _ => return Err(asked.refused(&answer)),
        }
        let head = Head::parse(&answer.body).ok_or_else(|| asked.stranger(&answer))?;
        if what.name.is_some_and(|name| name != head.metadata.name) {
            return Err(asked.stranger(&answer));
        }
        parse(&answer.body).map(Some).map_err(|error| asked.not_understood(error))
    }

    /// Reads objects of a kind in pages, until `each` breaks off. Each is shown as soon as it is
    /// read. Where a connection breaks, or the server has forgotten the list between two pages,
    /// what was shown is shown once more.
    ///
    /// # Errors
    /// The server is away or refuses, as the module tells; it has no such kind; its answer is no list,
    /// or a page has more than 500 objects. What was shown before an error is of no list then.
    pub fn list<T: DeserializeOwned>(
        &mut self,
        list: &List<'_>,
        each: &mut dyn FnMut(T) -> ControlFlow<()>,
    ) -> Result<()> {
        let what = Resource { name: None, ..list.what };
        let list = List { what, page: list.page.clamp(1, MOST), ..*list };
        let asked = Asked::new(&self.client, &self.login, Method::Get, &what);
        let first = list.path();
        let (mut path, mut begun) = (first.clone(), 1);
        loop {
            let mut broken = false;
            let mut take = |status: u16, body: &mut dyn Read| match status {
                200 => read_page(&asked, body, list.page, &mut broken, each),
                _ => {
                    let mut answer = HttpAnswer::new(status, Vec::new());
                    body.take(STATUS).read_to_end(&mut answer.body)?;
                    Ok(Ok(answer))
                }
            };
            let read = self.client.read_with(&request(&path, LIST), &mut take);
            let answer = read.map_err(|error| self.told(error))??;
            match answer.status {
                200 => {}
                410 if path != first && begun < AGAIN => {
                    warn!("{what}: the list has been forgotten between two pages, and begins anew");
                    (path, begun) = (first.clone(), begun + 1);
                    continue;
                }
                410 => return Err(asked.refused(&answer).with_code(ErrorCode::TRY_AGAIN)),
                _ => return Err(asked.refused(&answer)),
            }
            let head = Head::parse(&answer.body).filter(Head::is_list);
            let head = head.ok_or_else(|| asked.stranger(&answer))?;
            parse::<Page>(&answer.body).map_err(|error| asked.not_understood(error))?;
            match head.metadata.next {
                Some(token) if !token.is_empty() && !broken => {
                    path = format!("{first}&continue={}", escape(&token));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Changes something, at most once.
    ///
    /// # Errors
    /// It was not and will not be done: the server is away or refuses, as the module tells.
    pub fn ask<T: DeserializeOwned>(&mut self, change: &Change<'_>) -> Result<Outcome<T>> {
        let Change { method, what, body } = change;
        let asked = Asked::new(&self.client, &self.login, *method, what);
        let path = what.path();
        let media = (*method == Method::Patch).then_some(media::JSON_PATCH);
        let ask = HttpRequest { method: *method, body, media, ..request(&path, OBJECT) };
        let Some(answer) = self.client.write(&ask).map_err(|error| self.told(error))? else {
            return Ok(Outcome::Unknown);
        };
        if answer.status >= 300 {
            return match asked.expected(&answer) {
                Some(refusal) => Ok(Outcome::Refused(refusal)),
                None => Err(asked.refused(&answer)),
            };
        }
        let done = match Head::parse(&answer.body) {
            None => Err(asked.stranger(&answer)),
            Some(_) => parse(&answer.body).map_err(|error| asked.not_understood(error)),
        };
        done.map(Outcome::Done).or_else(|error| {
            warn!("the outcome of a request is unknown: {}", error.in_full());
            Ok(Outcome::Unknown)
        })
    }

    /// An error of the client, with the code that tells a server that refuses from one that is away.
    fn told(&self, error: Error) -> Error {
        if !self.client.is_refused() {
            return error;
        }
        let Login { server, trust, server_path, ca_path, .. } = &self.login;
        let error = error.with_code(ErrorCode::BACKEND);
        if !server.is_secured() {
            return error.advise(format!("{server_path} says whom to call"));
        }
        let error =
            error.advise(format!("{server_path} and {ca_path} say whom to call and to trust"));
        match &trust.identity {
            Some(_) => error.advise(format!("we are known by {}", self.login.shown())),
            None => error,
        }
    }
}

/// Reads a page of a list, and gives the answer without its objects.
fn read_page<T: DeserializeOwned>(
    asked: &Asked<'_>,
    body: &mut dyn Read,
    page: usize,
    broken: &mut bool,
    each: &mut dyn FnMut(T) -> ControlFlow<()>,
) -> io::Result<Result<HttpAnswer>> {
    let mut count = 0;
    let rest = each_element(body, Some("items"), OBJECT as usize, |object| {
        count += 1;
        if count > MOST {
            return Err(asked.too_many(page, MOST));
        }
        // What a list is comes behind what is in it, where it is broken off.
        if !*broken {
            let place = format_args!("items[{}]", count - 1);
            let item = parse(object);
            let item =
                item.map_err(|error| asked.not_understood(format_args!("{place}: {error}")))?;
            *broken = each(item).is_break();
        }
        Ok(())
    })?;
    Ok(rest.map(|body| HttpAnswer::new(200, body)))
}

/// Bytes of an answer that says why a list is refused.
const STATUS: u64 = 64 << 10;

fn request(path: &str, limit: u64) -> HttpRequest<'_> {
    HttpRequest { ok_statuses: &ANSWERS, limit, ..HttpRequest::new(Method::Get, path) }
}

fn parse<T: DeserializeOwned>(
    body: &[u8],
) -> Result<T, serde_path_to_error::Error<serde_json::Error>> {
    // Keeping the path of each member costs more than the rest: that is for errors alone.
    serde_json::from_slice(body).or_else(|_| {
        serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(body))
    })
}

/// What every object and list has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    kind: String,
    #[expect(dead_code, reason = "it is there")]
    api_version: String,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// A page whose objects were taken out.
#[derive(Deserialize)]
struct Page {
    /// Null where a list is empty, in old versions.
    #[expect(dead_code, reason = "it is empty")]
    items: Option<[(); 0]>,
}

impl Head {
    fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    fn is_list(&self) -> bool {
        self.kind.ends_with("List")
    }
}

/// Whether an error says that the API server is away: it cannot be reached, gives no answer in time, is
/// overloaded or fails. One that refuses is not away.
pub fn is_away(error: &Error) -> bool {
    [ErrorCode::UNREACHED, ErrorCode::TRY_AGAIN, ErrorCode::TIMED_OUT].contains(&error.code())
}
