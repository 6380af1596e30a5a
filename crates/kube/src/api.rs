use std::io::{self, Read};
use std::ops::ControlFlow;

use log::warn;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::change::{ApiChange, ApiOutcome};
use super::refusal::RequestContext;
use super::resource::Resource;
use super::session::KubeSession;
use super::source::CredentialsSource;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_servers::{HttpAnswer, HttpRequest, Method, each_element, escape, media};

/// A Kubernetes API server, with credentials.
#[derive(Debug)]
pub struct Kube {
    session: KubeSession,
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

/// The statuses of which the body says more. The first is an answer to changes alone: a read is
/// repeated.
const ANSWERS: [u16; 15] =
    [500, 200, 201, 202, 400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422];

/// The `Accept` of a change whose answer may leave out everything but the metadata.
const METADATA_ONLY: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

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
    /// The identity of the cluster: a hash of the CA that signs for its API servers, else the server's
    /// URL.
    ///
    /// # Errors
    /// The CA's certificate cannot be read.
    pub(crate) fn cluster(&self) -> Result<String> {
        self.session.credentials().cluster()
    }

    /// Whether other credentials lead to the same API server: by the same URL and CA.
    pub fn has_server_of(&self, other: &Self) -> bool {
        let (own, other) = (self.session.credentials(), other.session.credentials());
        let has_same_ca = match (own.cluster(), other.cluster()) {
            (Ok(own), Ok(other)) => own == other,
            _ => false,
        };
        own.server == other.server && has_same_ca
    }

    /// The namespace of the credentials, if they name one: of the kubeconfig's context, or of the pod.
    pub fn namespace(&self) -> Option<&str> {
        self.session.credentials().namespace.as_ref().map(|(_, name)| &**name)
    }

    /// The place of [`Kube::namespace`], for errors: in the kubeconfig, or the file of the pod.
    pub fn namespace_path(&self) -> Option<&str> {
        self.session.credentials().namespace.as_ref().map(|(path, _)| &**path)
    }

    /// Reads an object; `None` if no object has this name.
    ///
    /// # Errors
    /// The server is unreachable or refuses, see the crate; its answer is another object.
    pub fn get<T: DeserializeOwned>(&mut self, resource: &Resource<'_>) -> Result<Option<T>> {
        let answer = self.session.read(&request(&resource.path(), OBJECT))?;
        let context = self.session.context(Method::Get, resource);
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
        let first = list.path();
        let (mut path, mut begun) = (first.clone(), 1);
        loop {
            let mut broken = false;
            let mut take =
                |context: &RequestContext<'_>, status: u16, body: &mut dyn Read| match status {
                    200 => read_page(context, body, list.page, &mut broken, each),
                    _ => {
                        let mut answer = HttpAnswer::new(status, Vec::new());
                        body.take(STATUS).read_to_end(&mut answer.body)?;
                        Ok(Ok(answer))
                    }
                };
            let ask = request(&path, LIST);
            let answer = self.session.read_with(&ask, &resource, &mut take)??;
            match answer.status {
                401 if self.session.renew() => continue,
                410 if path != first && begun < AGAIN => {
                    warn!(
                        "{resource}: the list has been forgotten between two pages, and begins anew"
                    );
                    (path, begun) = (first.clone(), begun + 1);
                    continue;
                }
                _ => {}
            }
            let context = self.session.context(Method::Get, &resource);
            match answer.status {
                200 => {}
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
        let ApiChange { method, resource, body, metadata_only } = *change;
        let path = resource.path();
        let ask = HttpRequest {
            method,
            body,
            media: (method == Method::Patch).then_some(media::JSON_PATCH),
            headers: if metadata_only { &[("Accept", METADATA_ONLY)] } else { &[] },
            ok_statuses: &ANSWERS,
            ..request(&path, OBJECT)
        };
        let Some(answer) = self.session.write(&ask)? else {
            return Ok(ApiOutcome::Unknown);
        };
        let context = self.session.context(method, &resource);
        if answer.status >= 300 {
            let refusal = context.expected(&answer).map(ApiOutcome::Refused);
            return refusal.map_or_else(|| open_if_failed(&answer, context.refused(&answer)), Ok);
        }
        let done = match ObjectHead::parse(&answer.body) {
            None => Err(context.not_kubernetes(&answer)),
            Some(_) => parse(&answer.body).map_err(|error| context.not_understood(error)),
        };
        Ok(done.map_or_else(|error| unknown(&error), ApiOutcome::Done))
    }
}

impl CredentialsSource {
    /// Reads the files and makes a client, which connects with its first request. `unreached` is the
    /// code of an error if no request reached the API server.
    ///
    /// # Errors
    /// Error 7: a file cannot be read, is wrong, or has a setting that is not supported.
    pub fn open(&self, unreached: ErrorCode, deadline: Deadline) -> Result<Kube> {
        KubeSession::open(self.clone(), unreached, deadline).map(|session| Kube { session })
    }
}

/// The outcome of a change that was neither done nor refused: the error, unless the server failed.
fn open_if_failed<T>(answer: &HttpAnswer, error: Error) -> Result<ApiOutcome<T>> {
    if answer.status < 500 { Err(error) } else { Ok(unknown(&error)) }
}

fn unknown<T>(error: &Error) -> ApiOutcome<T> {
    warn!("the outcome of a request is unknown: {}", error.in_full());
    ApiOutcome::Unknown
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
    HttpRequest { ok_statuses: &ANSWERS[1..], limit, ..HttpRequest::new(Method::Get, path) }
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
