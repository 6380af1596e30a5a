use std::ops::ControlFlow;

use serde::de::DeserializeOwned;

use super::resource::Resource;
use crate::client::Method;
use crate::error::{Error, ErrorCode, Result};

/// A Kubernetes API server, with a login.
#[derive(Debug)]
pub struct Kube {
    namespace: Option<String>,
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
    /// The server does not take the object, or a test of the patch failed (422).
    Invalid,
}

impl Kube {
    /// The namespace that the login is for, where it says so: that of the kubeconfig's context, or of the
    /// pod.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Reads an object; `None` when there is none of this name.
    ///
    /// # Errors
    /// The server is away or refuses, as the module tells; its answer is no such object.
    pub fn get<T: DeserializeOwned>(&self, what: &Resource<'_>) -> Result<Option<T>> {
        Err(self.unwritten(what))
    }

    /// Reads all objects of a kind, in pages of 100, until `each` breaks off. Where the server has
    /// forgotten the list between two pages it begins anew, and shows what it has shown once more.
    ///
    /// # Errors
    /// As of [`Kube::get`]; the server has no such kind.
    pub fn list<T: DeserializeOwned>(
        &self,
        what: &Resource<'_>,
        each: &mut dyn FnMut(T) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = each;
        Err(self.unwritten(what))
    }

    /// Changes something, at most once.
    ///
    /// # Errors
    /// It was not and will not be done: the server is away or refuses, as the module tells.
    pub fn ask<T: DeserializeOwned>(&self, change: &Change<'_>) -> Result<Outcome<T>> {
        Err(self.unwritten(&change.what))
    }

    fn unwritten(&self, what: &Resource<'_>) -> Error {
        Error::new(ErrorCode::INTERNAL, format!("{}: not written yet", what.path()))
    }
}

/// Whether an error says that the API server is away: it cannot be reached, gives no answer in time, is
/// overloaded or fails. One that refuses is not away.
pub fn is_away(error: &Error) -> bool {
    [ErrorCode::UNREACHED, ErrorCode::TRY_AGAIN, ErrorCode::TIMED_OUT].contains(&error.code())
}
