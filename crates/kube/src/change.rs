use ipam_servers::Method;

use super::refusal::ApiRefusal;
use super::resource::Resource;

/// A change of one object.
#[derive(Clone, Copy, Debug)]
pub struct ApiChange<'a> {
    /// POST makes an object of the kind, PUT replaces the one that is named, PATCH carries out a JSON
    /// patch (RFC 6902) on it, DELETE removes it.
    pub method: Method,
    /// The object; for POST its kind.
    pub resource: Resource<'a>,
    /// JSON: the object, the patch, or for DELETE its options or nothing.
    pub body: &'a [u8],
    /// Asks for an answer of kind PartialObjectMetadata, which has the metadata of the object and
    /// nothing else. A server that does not know that kind sends the object.
    pub metadata_only: bool,
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiOutcome<T> {
    /// It was done, and this is what the server answered: the object, for DELETE that or a Status.
    Done(T),
    /// It was not done, for a reason that a caller may have expected.
    Refused(ApiRefusal),
    /// It may have been done, or may still be: the server failed (5xx), or its answer was late, lost
    /// or cannot be parsed.
    Unknown,
}

impl<'a> ApiChange<'a> {
    /// Creates an object of the kind.
    pub fn post(resource: Resource<'a>, object: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::of(Method::Post, resource, object.as_ref())
    }

    /// Replaces the object.
    pub fn put(resource: Resource<'a>, object: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::of(Method::Put, resource, object.as_ref())
    }

    /// Carries out a JSON patch on the object.
    pub fn patch(resource: Resource<'a>, patch: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::of(Method::Patch, resource, patch.as_ref())
    }

    /// Removes the object, with these options, as in `{"preconditions": {"uid": "…"}}`, or with
    /// nothing.
    pub fn delete(resource: Resource<'a>, options: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::of(Method::Delete, resource, options.as_ref())
    }

    fn of(method: Method, resource: Resource<'a>, body: &'a [u8]) -> Self {
        Self { method, resource, body, metadata_only: false }
    }
}

#[cfg(test)]
mod tests;
