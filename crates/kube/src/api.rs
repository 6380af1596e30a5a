use std::io::{self, Read};
use std::ops::ControlFlow;
use std::time::Duration;

use log::warn;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::credentials::KubeCredentials;
use super::refusal::{ApiRefusal, RequestContext};
use super::resource::Resource;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_servers::{
    Access, Client, HttpAnswer, HttpRequest, Method, Secret, Tls, each_element, escape, media,
};

/// A Kubernetes API server, with credentials.
#[derive(Debug)]
pub struct Kube {
    client: Client,
    credentials: KubeCredentials,
}

/// Objects of a kind.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// The kind; a name has no effect.
    pub resource: Resource<'a>,
    /// A label selector, as in `app=ipam,zone in (a, b)`; empty for all objects.
    pub labels: &'a str,
    /// Objects in a page, from 1 to 500.
    pub page: usize,
}

/// Something to be changed.
#[derive(Clone, Copy, Debug)]
pub struct ApiChange<'a> {
    /// POST makes an object of the kind, PUT replaces the one that is named, PATCH carries out a JSON
    /// patch (RFC 6902) on it, DELETE removes it.
    pub method: Method,
    /// The object; for POST its kind.
    pub resource: Resource<'a>,
    /// JSON: the object, the patch, or for DELETE its options or nothing.
    pub body: &'a [u8],
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiOutcome<T> {
    /// It was done, and this is what the server answered: the object, for DELETE that or a Status.
    Done(T),
    /// It was not done, for a reason that a caller may have expected.
    Refused(ApiRefusal),
    /// It may have been done, or may still be.
    Unknown,
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
    pub fn all(resource: Resource<'a>) -> Self {
        Self { resource, labels: "", page: PAGE }
    }

    /// The path of the first page, with its query.
    fn path(&self) -> String {
        let path = format!("{}?limit={}", self.resource.path(), self.page);
        match self.labels {
            "" => path,
            labels => format!("{path}&labelSelector={}", escape(labels)),
        }
    }
}

impl Kube {
    pub(super) fn new(
        credentials: KubeCredentials,
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
            servers: vec![credentials.server.clone()],
            tls: Tls::default(),
            headers: credentials.token.iter().map(bearer).collect::<Result<_>>()?,
            timeout,
            unreached,
            advice: |status, _| {
                (300..400).contains(&status).then_some("the server is not a Kubernetes API server")
            },
        };
        let client = Client::trusting(access, &credentials.trust, deadline)?.speaking(media::JSON);
        Ok(Self { client, credentials })
    }

    /// The identity of the cluster: a hash of the CA that signs for its API servers, else the server's
    /// URL.
    ///
    /// # Errors
    /// The CA's certificate cannot be read.
    pub(crate) fn cluster(&self) -> Result<String> {
        self.credentials.cluster()
    }

    /// The namespace of the credentials, if they name one: of the kubeconfig's context, or of the pod.
    pub fn namespace(&self) -> Option<&str> {
        self.credentials.namespace.as_deref()
    }

    /// Reads an object; `None` if no object has this name.
    ///
    /// # Errors
    /// The server is unreachable or refuses, see the crate; its answer is another object.
    pub fn get<T: DeserializeOwned>(&mut self, resource: &Resource<'_>) -> Result<Option<T>> {
        let context = RequestContext::new(&self.client, &self.credentials, Method::Get, resource);
        let answer = self.client.read(&request(&resource.path(), OBJECT));
        let answer = answer.map_err(|error| self.explain(error))?;
        match answer.status {
            200 => {}
            404 if context.is_absent(&answer) => return Ok(None),
            _ => return Err(context.refused(&answer)),
        }
        let head =
            ObjectHead::parse(&answer.body).ok_or_else(|| context.not_kubernetes(&answer))?;
        if resource.name.is_some_and(|name| name != head.metadata.name) {
            return Err(context.not_kubernetes(&answer));
        }
        parse(&answer.body).map(Some).map_err(|error| context.not_understood(error))
    }

    /// Reads the objects of a kind in pages, and passes each to `each` at once, until that breaks
    /// off. If a connection breaks, or the list expires between two pages, `each` gets the objects
    /// once more.
    ///
    /// # Errors
    /// The server is unreachable or refuses, see the crate; it does not serve the kind; its
    /// answer is not a list, or a page has more than 500 objects. Discard the objects of before then.
    pub fn list<T: DeserializeOwned>(
        &mut self,
        list: &List<'_>,
        each: &mut dyn FnMut(T) -> ControlFlow<()>,
    ) -> Result<()> {
        let resource = Resource { name: None, ..list.resource };
        let list = List { resource, page: list.page.clamp(1, MOST), ..*list };
        let context = RequestContext::new(&self.client, &self.credentials, Method::Get, &resource);
        let first = list.path();
        let (mut path, mut begun) = (first.clone(), 1);
        loop {
            let mut broken = false;
            let mut take = |status: u16, body: &mut dyn Read| match status {
                200 => read_page(&context, body, list.page, &mut broken, each),
                _ => {
                    let mut answer = HttpAnswer::new(status, Vec::new());
                    body.take(STATUS).read_to_end(&mut answer.body)?;
                    Ok(Ok(answer))
                }
            };
            let read = self.client.read_with(&request(&path, LIST), &mut take);
            let answer = read.map_err(|error| self.explain(error))??;
            match answer.status {
                200 => {}
                410 if path != first && begun < AGAIN => {
                    warn!(
                        "{resource}: the list has been forgotten between two pages, and begins anew"
                    );
                    (path, begun) = (first.clone(), begun + 1);
                    continue;
                }
                410 => return Err(context.refused(&answer).with_code(ErrorCode::TRY_AGAIN)),
                _ => return Err(context.refused(&answer)),
            }
            let head = ObjectHead::parse(&answer.body).filter(ObjectHead::is_list);
            let head = head.ok_or_else(|| context.not_kubernetes(&answer))?;
            parse::<Page>(&answer.body).map_err(|error| context.not_understood(error))?;
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
    /// It was not and will not be done: the server is unreachable or refuses, see the crate.
    pub fn ask<T: DeserializeOwned>(&mut self, change: &ApiChange<'_>) -> Result<ApiOutcome<T>> {
        let ApiChange { method, resource, body } = change;
        let context = RequestContext::new(&self.client, &self.credentials, *method, resource);
        let path = resource.path();
        let media = (*method == Method::Patch).then_some(media::JSON_PATCH);
        let ask = HttpRequest { method: *method, body, media, ..request(&path, OBJECT) };
        let Some(answer) = self.client.write(&ask).map_err(|error| self.explain(error))? else {
            return Ok(ApiOutcome::Unknown);
        };
        if answer.status >= 300 {
            return match context.expected(&answer) {
                Some(refusal) => Ok(ApiOutcome::Refused(refusal)),
                None => Err(context.refused(&answer)),
            };
        }
        let done = match ObjectHead::parse(&answer.body) {
            None => Err(context.not_kubernetes(&answer)),
            Some(_) => parse(&answer.body).map_err(|error| context.not_understood(error)),
        };
        done.map(ApiOutcome::Done).or_else(|error| {
            warn!("the outcome of a request is unknown: {}", error.in_full());
            Ok(ApiOutcome::Unknown)
        })
    }

    /// An error of the client, with the code and the advice for a server that refuses.
    fn explain(&self, error: Error) -> Error {
        if !self.client.is_refused() {
            return error;
        }
        let KubeCredentials { server, trust, server_path, ca_path, .. } = &self.credentials;
        let error = error.with_code(ErrorCode::BACKEND);
        if !server.is_secured() {
            return error.advise(format!("check {server_path}"));
        }
        let error = error.advise(format!("check {server_path} and {ca_path}"));
        match &trust.identity {
            Some(_) => error.advise(format!("check {}", self.credentials.shown())),
            None => error,
        }
    }
}

/// Reads a page of a list, and gives the answer without its objects.
fn read_page<T: DeserializeOwned>(
    context: &RequestContext<'_>,
    body: &mut dyn Read,
    page: usize,
    broken: &mut bool,
    each: &mut dyn FnMut(T) -> ControlFlow<()>,
) -> io::Result<Result<HttpAnswer>> {
    let mut count = 0;
    let rest = each_element(body, Some("items"), OBJECT as usize, |object| {
        count += 1;
        if count > MOST {
            return Err(context.too_many(page, MOST));
        }
        // After a break the rest is still read: the kind of the list follows its objects.
        if !*broken {
            let place = format_args!("items[{}]", count - 1);
            let item = parse(object);
            let item =
                item.map_err(|error| context.not_understood(format_args!("{place}: {error}")))?;
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

/// The members that every object and list has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectHead {
    kind: String,
    #[expect(dead_code, reason = "it is there")]
    api_version: String,
    #[serde(default)]
    metadata: HeadMetadata,
}

#[derive(Default, Deserialize)]
struct HeadMetadata {
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

impl ObjectHead {
    fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    fn is_list(&self) -> bool {
        self.kind.ends_with("List")
    }
}

/// Whether an error says that the API server is unreachable: no connection, no answer in time,
/// overloaded, or failing. A server that refuses is not unreachable.
pub fn is_unreachable(error: &Error) -> bool {
    [ErrorCode::UNREACHED, ErrorCode::TRY_AGAIN, ErrorCode::TIMED_OUT].contains(&error.code())
}
