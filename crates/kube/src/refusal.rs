use std::error::Error as StdError;
use std::fmt;

use super::credentials::KubeCredentials;
use super::resource::Resource;
use super::status::ApiStatus;
use ipam_kit::error::{Error, ErrorCode};
use ipam_servers::{HttpAnswer, Method, Secrets};

/// Why a change was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRefusal {
    /// The reason.
    pub reason: RefusalReason,
    /// The server's words.
    pub message: String,
}

/// The reason of an [`ApiRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The object, or the namespace for it, does not exist (404).
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
    /// The object or the request is too large: for etcd (a 500, about 1.5 MiB), or for the API
    /// server (413, 3 MiB or 10,000 operations of a patch).
    TooLarge,
}

/// Whether an error says that the server rejected the credentials (401), also those that were read
/// after the first 401. They may have been renewed since.
pub fn is_unauthorized(error: &Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<Unauthorized>())
}

/// Whether an error says that the server denied the request (403): the caller lacks a right, or a rule
/// of admission forbids it.
pub fn is_forbidden(error: &Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<Forbidden>())
}

/// Whether an error says that the server does not serve the kind (404): its custom resource definition
/// is not installed, or the server is another one.
pub fn is_unserved(error: &Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<Unserved>())
}

/// The words of a 500 about an object that was not stored: of the store, and of its client.
const TOO_LARGE: [&str; 2] = ["request is too large", "trying to send message larger than max"];

/// The server's words about credentials that it rejects.
#[derive(Debug)]
struct Unauthorized(String);

/// The server's words about a request that it denies.
#[derive(Debug)]
struct Forbidden(String);

/// The server's words about a kind that it does not serve.
#[derive(Debug)]
struct Unserved(String);

/// The answer of an API server to a path that it does not have.
const NO_SUCH_PATH: &[u8] = b"404 page not found";

/// A request, with what errors about its answer show.
pub(super) struct RequestContext<'a> {
    secrets: Secrets,
    credentials: &'a KubeCredentials,
    method: Method,
    resource: &'a Resource<'a>,
}

impl<'a> RequestContext<'a> {
    pub(super) fn new(
        secrets: Secrets,
        credentials: &'a KubeCredentials,
        method: Method,
        resource: &'a Resource<'a>,
    ) -> Self {
        Self { secrets, credentials, method, resource }
    }

    /// The error of an answer that is not the expected one.
    pub(super) fn refused(&self, answer: &HttpAnswer) -> Error {
        let Some(status) = ApiStatus::parse(&answer.body) else {
            let is_custom = !self.resource.group.is_empty();
            return match answer.status {
                404 if is_custom && answer.body.trim_ascii() == NO_SUCH_PATH => {
                    self.unserved(&answer.body)
                }
                _ => self.not_kubernetes(answer),
            };
        };
        match answer.status {
            401 => self
                .fault("rejected the credentials (401)")
                .caused_by(Unauthorized(self.secrets.shown(status.message.as_bytes())))
                .advise(format!("renew them or configure others: {}", self.credentials.shown())),
            403 => self.forbidden(&status),
            404 => self.unserved(status.message.as_bytes()),
            code @ 500.. => self.error(format_args!("failed ({code})"), &status),
            code => self.error(format_args!("rejected the request ({code})"), &status),
        }
    }

    /// The refusal of a change that its caller may have expected, by the status.
    pub(super) fn expected(&self, answer: &HttpAnswer) -> Option<ApiRefusal> {
        let status = ApiStatus::parse(&answer.body)?;
        let reason = match (answer.status, &*status.reason) {
            (404, "NotFound") if self.is_about_an_object(&status) => RefusalReason::NotFound,
            (409, "AlreadyExists") => RefusalReason::AlreadyExists,
            (409, _) => RefusalReason::Conflict,
            (422, _) if self.is_about_a_patch(&status) => RefusalReason::TestFailed,
            (422, _) => RefusalReason::Invalid,
            (413, _) => RefusalReason::TooLarge,
            (500, _) if TOO_LARGE.iter().any(|words| status.message.contains(words)) => {
                RefusalReason::TooLarge
            }
            _ => return None,
        };
        Some(ApiRefusal { reason, message: self.secrets.shown(status.message.as_bytes()) })
    }

    /// Whether a 404 says that the object does not exist.
    pub(super) fn is_absent(&self, answer: &HttpAnswer) -> bool {
        ApiStatus::parse(&answer.body)
            .is_some_and(|status| status.reason == "NotFound" && self.is_about_an_object(&status))
    }

    /// The error of an answer that no API server gives.
    pub(super) fn not_kubernetes(&self, answer: &HttpAnswer) -> Error {
        let said = match self.secrets.shown(&answer.body) {
            said if said.is_empty() => "without a text".to_owned(),
            said => format!("and {said:?}"),
        };
        let message =
            format!("is not a Kubernetes API server: it answered {} {said}", answer.status);
        self.fault(message).advise(self.look_at_the_server())
    }

    fn unserved(&self, said: &[u8]) -> Error {
        self.fault(format_args!("does not serve {} (404)", self.kind()))
            .caused_by(Unserved(self.secrets.shown(said)))
            .advise(self.look_for_the_kind())
    }

    /// The error of a page with more objects than were asked for.
    pub(super) fn too_many(&self, requested: usize, most: usize) -> Error {
        self.fault(format_args!("sent more than {most} objects in a page of {requested}"))
            .advise(self.look_at_the_server())
    }

    /// The error of an answer that may be an API server's and cannot be parsed.
    pub(super) fn not_understood(&self, error: impl fmt::Display) -> Error {
        self.fault("sent an answer that cannot be parsed")
            .caused_by(self.secrets.shown(error.to_string().as_bytes()))
    }

    pub(super) fn look_at_the_server(&self) -> String {
        format!("check {}", self.credentials.server_path)
    }

    fn look_for_the_kind(&self) -> String {
        match self.resource.group {
            "" => self.look_at_the_server(),
            group => format!(
                "install the custom resource definitions of {group}, or {}",
                self.look_at_the_server()
            ),
        }
    }

    /// A server that has no such kind names no object.
    fn is_about_an_object(&self, status: &ApiStatus) -> bool {
        status.details.as_ref().is_some_and(|details| !details.name.is_empty())
    }

    /// Whether a 422 is about the patch: one about the object names what is wrong with it, and one
    /// of a webhook has no details.
    fn is_about_a_patch(&self, status: &ApiStatus) -> bool {
        let details = status.details.as_ref();
        self.method == Method::Patch && details.is_some_and(|details| details.causes.is_empty())
    }

    fn forbidden(&self, status: &ApiStatus) -> Error {
        let said = self.secrets.shown(status.message.as_bytes());
        let error = self.fault("denied the request (403)").caused_by(Forbidden(said));
        match status.user() {
            Some("system:anonymous") => error.advise(format!(
                "the API server treated the request as anonymous: configure credentials that it accepts; sent: {}",
                self.credentials.shown()
            )),
            Some(user) => {
                let (kind, rule) = (self.role(), self.rule());
                // It denies requests until it has read the rules.
                error
                    .advise(format!("give {user} {kind} with the rule {rule}"))
                    .advise("if the API server has just started, call again")
            }
            // A quota, a plugin of admission, a namespace that is going: no right is missing.
            None => error,
        }
    }

    fn role(&self) -> String {
        let Resource { group, plural, namespace, name, .. } = *self.resource;
        // To RBAC, the object of a namespace is in that namespace.
        let own = name.filter(|_| group.is_empty() && plural == "namespaces");
        match namespace.or(own) {
            Some(namespace) => format!("a Role in the namespace {namespace}"),
            None => "a ClusterRole".to_owned(),
        }
    }

    /// The rule of RBAC that allows what was asked, as JSON, which is YAML.
    fn rule(&self) -> String {
        let Resource { group, plural, name, .. } = self.resource;
        let verb = match (self.method, name) {
            (Method::Get, Some(_)) => "get",
            (Method::Get, None) => "list",
            (Method::Put, _) => "update",
            (Method::Post, _) => "create",
            (Method::Patch, _) => "patch",
            (Method::Delete, _) => "delete",
        };
        // An object of a namespace is one of many that its caller names; what is made has no name by
        // which it could be allowed.
        let is_one_of_many = self.resource.namespace.is_some() || self.method == Method::Post;
        let names = match name.filter(|_| !is_one_of_many) {
            Some(name) => format!(", \"resourceNames\": [{name:?}]"),
            None => String::new(),
        };
        format!(
            "{{\"apiGroups\": [{group:?}], \"resources\": [{plural:?}], \"verbs\": [{verb:?}]{names}}}"
        )
    }

    fn kind(&self) -> String {
        Resource { name: None, namespace: None, ..*self.resource }.to_string()
    }

    fn error(&self, message: impl fmt::Display, status: &ApiStatus) -> Error {
        self.fault(message).caused_by(self.secrets.shown(status.message.as_bytes()))
    }

    fn fault(&self, message: impl fmt::Display) -> Error {
        let (method, resource, server) = (self.method, self.resource, &self.credentials.server);
        Error::new(ErrorCode::BACKEND, format!("{method} {resource}: {server} {message}"))
    }
}

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Unauthorized {}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Forbidden {}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Unserved {}
