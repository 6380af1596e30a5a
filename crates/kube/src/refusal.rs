use super::api::{Refusal, Why};
use super::login::Login;
use super::resource::Resource;
use super::status::Status;
use ipam_kit::error::{Error, ErrorCode};
use ipam_servers::{Client, HttpAnswer, Method, Secrets};

/// A request, as errors about its answer see it.
pub(super) struct Asked<'a> {
    secrets: Secrets,
    login: &'a Login,
    method: Method,
    what: &'a Resource<'a>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        client: &Client,
        login: &'a Login,
        method: Method,
        what: &'a Resource<'a>,
    ) -> Self {
        Self { secrets: client.secrets().clone(), login, method, what }
    }

    /// What an answer means that is not what was asked for.
    pub(super) fn refused(&self, answer: &HttpAnswer) -> Error {
        let Some(status) = Status::parse(&answer.body) else { return self.stranger(answer) };
        match answer.status {
            401 => self.error("does not know this login (401)", &status).advise(format!(
                "it was shown {}: renew it, or name another one",
                self.login.shown()
            )),
            403 => self.forbidden(&status),
            404 => self
                .error(format_args!("has no {} (404)", self.kind()), &status)
                .advise(self.look_for_the_kind()),
            code => self.error(format_args!("refuses it ({code})"), &status),
        }
    }

    /// What a status of a change means that its caller may have expected.
    pub(super) fn expected(&self, answer: &HttpAnswer) -> Option<Refusal> {
        let status = Status::parse(&answer.body)?;
        let why = match (answer.status, &*status.reason) {
            (404, "NotFound") if self.is_about_an_object(&status) => Why::NotFound,
            (409, "AlreadyExists") => Why::AlreadyExists,
            (409, _) => Why::Conflict,
            (422, _) if self.is_about_a_patch(&status) => Why::TestFailed,
            (422, _) => Why::Invalid,
            _ => return None,
        };
        Some(Refusal { why, message: self.secrets.shown(status.message.as_bytes()) })
    }

    /// Whether a 404 says that there is no such object.
    pub(super) fn is_absent(&self, answer: &HttpAnswer) -> bool {
        Status::parse(&answer.body)
            .is_some_and(|status| status.reason == "NotFound" && self.is_about_an_object(&status))
    }

    /// An answer that no API server gives.
    pub(super) fn stranger(&self, answer: &HttpAnswer) -> Error {
        let said = match self.secrets.shown(&answer.body) {
            said if said.is_empty() => "nothing".to_owned(),
            said => format!("{said:?}"),
        };
        let message = format!("is no Kubernetes API server: it says {} and {said}", answer.status);
        let advice = match answer.status {
            404 if !self.what.group.is_empty() => {
                format!("{}, or {}", self.look_at_the_server(), self.look_for_the_kind())
            }
            _ => self.look_at_the_server(),
        };
        self.fault(message).advise(advice)
    }

    /// A page of a list with more objects than were asked for.
    pub(super) fn too_many(&self, asked: usize, most: usize) -> Error {
        self.fault(format_args!(
            "gives more than {most} objects at once, where {asked} were asked for"
        ))
        .advise(self.look_at_the_server())
    }

    /// An answer that is not understood, from what may be an API server.
    pub(super) fn not_understood(&self, error: impl std::fmt::Display) -> Error {
        self.fault("gives an answer that is not understood")
            .caused_by(self.secrets.shown(error.to_string().as_bytes()))
    }

    pub(super) fn look_at_the_server(&self) -> String {
        format!("look at {}", self.login.server_path)
    }

    fn look_for_the_kind(&self) -> String {
        match self.what.group {
            "" => self.look_at_the_server(),
            group => format!("see that the custom resources of {group} are installed"),
        }
    }

    /// A server that has no such kind names no object.
    fn is_about_an_object(&self, status: &Status) -> bool {
        status.details.as_ref().is_some_and(|details| !details.name.is_empty())
    }

    /// Whether a 422 is about the patch: one about the object names what is wrong with it, and one
    /// of a webhook has no details.
    fn is_about_a_patch(&self, status: &Status) -> bool {
        let details = status.details.as_ref();
        self.method == Method::Patch && details.is_some_and(|details| details.causes.is_empty())
    }

    fn forbidden(&self, status: &Status) -> Error {
        let error = self.error("does not allow it (403)", status);
        match status.user() {
            Some("system:anonymous") => error.advise(format!(
                "it was shown {}, and took that for nobody: name a login that it knows",
                self.login.shown()
            )),
            Some(user) => {
                let (kind, rule) = (self.role(), self.rule());
                error.advise(format!("give {user} {kind} with the rule {rule}"))
            }
            // A quota, a plugin of admission, a namespace that is going: no right is missing.
            None => error,
        }
    }

    fn role(&self) -> String {
        match self.what.namespace {
            Some(namespace) => format!("a Role in the namespace {namespace}"),
            None => "a ClusterRole".to_owned(),
        }
    }

    /// The rule of RBAC that allows what was asked, as JSON, which is YAML.
    fn rule(&self) -> String {
        let Resource { group, plural, name, .. } = self.what;
        let verb = match (self.method, name) {
            (Method::Get, Some(_)) => "get",
            (Method::Get, None) => "list",
            (Method::Put, _) => "update",
            (Method::Post, _) => "create",
            (Method::Patch, _) => "patch",
            (Method::Delete, _) => "delete",
        };
        // What is made has no name by which it could be allowed.
        let names = match name.filter(|_| self.method != Method::Post) {
            Some(name) => format!(", \"resourceNames\": [{name:?}]"),
            None => String::new(),
        };
        format!(
            "{{\"apiGroups\": [{group:?}], \"resources\": [{plural:?}], \"verbs\": [{verb:?}]{names}}}"
        )
    }

    fn kind(&self) -> String {
        Resource { name: None, namespace: None, ..*self.what }.to_string()
    }

    fn error(&self, message: impl std::fmt::Display, status: &Status) -> Error {
        self.fault(message).caused_by(self.secrets.shown(status.message.as_bytes()))
    }

    fn fault(&self, message: impl std::fmt::Display) -> Error {
        let (method, what, server) = (self.method, self.what, &self.login.server);
        Error::new(ErrorCode::BACKEND, format!("{method} {what}: {server} {message}"))
    }
}
