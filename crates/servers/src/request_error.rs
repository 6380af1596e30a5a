use std::time::Duration;

use ipam_kit::error::Error;

/// Why a server sent no answer, and what became of the request.
#[derive(Debug)]
pub struct RequestError {
    pub(crate) kind: Kind,
    /// Whether something of the request may have reached a server of the service.
    pub(crate) sent: bool,
    /// How long the server asks to wait.
    pub(crate) wait: Option<Duration>,
}

/// The outcome of the request.
#[derive(Debug)]
pub(crate) enum Kind {
    NotDone(String),
    Unknown(String),
    Rejected(String),
    NotUnderstood(Error),
    Refused(Error),
}

impl RequestError {
    /// The longest wait: a day, so that no clock overflows.
    pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 3600);

    /// The request was not carried out; this server may carry it out later. Nothing of it was sent,
    /// unless [`RequestError::sent`] says otherwise.
    pub fn not_done(reason: impl Into<String>) -> Self {
        Self::new(Kind::NotDone(reason.into()), false)
    }

    /// The request may have been carried out, or may still be.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::new(Kind::Unknown(reason.into()), true)
    }

    /// This server did not and will not carry it out; another one may. Nothing of the request was
    /// sent, unless [`RequestError::sent`] says otherwise.
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self::new(Kind::Rejected(reason.into()), false)
    }

    /// The answer cannot be parsed: an error for a read. A change may have been carried out.
    pub fn not_understood(error: Error) -> Self {
        Self::new(Kind::NotUnderstood(error), true)
    }

    /// The service refuses, whichever server is asked, and did not carry it out.
    pub fn refused(error: Error) -> Self {
        Self::new(Kind::Refused(error), true)
    }

    fn new(kind: Kind, sent: bool) -> Self {
        Self { kind, sent, wait: None }
    }

    /// Whether something of the request may have reached a server of the service. If nothing did, for
    /// any request, the final error has the code
    /// [`Service::unreached`](crate::Service::unreached).
    #[must_use]
    pub fn sent(self, sent: bool) -> Self {
        Self { sent, ..self }
    }

    /// How long the server asks to wait, if it does.
    #[must_use]
    pub fn wait(self, wait: Option<Duration>) -> Self {
        Self { wait: wait.map(|wait| wait.min(Self::LONGEST)), ..self }
    }

    /// The same error for a step before the request, such as a login: the request was not sent.
    #[must_use]
    pub fn before_the_request(self) -> Self {
        let kind = match self.kind {
            Kind::Unknown(reason) => Kind::NotDone(reason),
            kind => kind,
        };
        Self { kind, sent: false, ..self }
    }

    /// Changes the words of the reason.
    #[must_use]
    pub fn map_reason(self, change: impl FnOnce(String) -> String) -> Self {
        let kind = match self.kind {
            Kind::NotDone(reason) => Kind::NotDone(change(reason)),
            Kind::Unknown(reason) => Kind::Unknown(change(reason)),
            Kind::Rejected(reason) => Kind::Rejected(change(reason)),
            error @ (Kind::NotUnderstood(_) | Kind::Refused(_)) => error,
        };
        Self { kind, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_before_the_request_leaves_nothing_open() {
        let login = RequestError::unknown("cut").before_the_request();
        assert!(matches!(login.kind, Kind::NotDone(_)) && !login.sent);
        let login = RequestError::rejected("a stranger").sent(true).before_the_request();
        assert!(matches!(login.kind, Kind::Rejected(_)) && !login.sent);
    }
}
