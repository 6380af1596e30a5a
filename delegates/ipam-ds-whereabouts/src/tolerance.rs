//! Which errors end a call.

use ipam_kit::cni::{Verb, parse_value};
use ipam_kit::{Error, Result};
use log::warn;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The rule for errors of a call. A release needs the login alone: it logs all others.
#[derive(Debug)]
pub(crate) struct Tolerance {
    is_release: bool,
    /// The first error that was logged.
    first: Option<Error>,
}

impl Tolerance {
    /// The rule for calls of a verb.
    pub(crate) fn of(verb: Verb) -> Self {
        Self { is_release: matches!(verb, Verb::Del | Verb::Gc), first: None }
    }

    /// The value, or on a release the default of a value that cannot be had.
    ///
    /// # Errors
    /// The error of any other call.
    pub(crate) fn allow<T: Default>(&mut self, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if self.is_release => {
                warn!("{}", error.in_full());
                self.first.get_or_insert(error);
                Ok(T::default())
            }
            result => result,
        }
    }

    /// Reads the keys of a section; on a release those of the wrong type count as missing.
    ///
    /// # Errors
    /// A key has the wrong type, and the call is not a release.
    pub(crate) fn keys<K: DeserializeOwned>(&mut self, section: &Value, path: &str) -> Result<K> {
        let keys = parse_value(section, path);
        let (Err(_), true, Value::Object(members)) = (&keys, self.is_release, section) else {
            return keys;
        };
        let mut readable = Map::new();
        for (key, value) in members {
            let one = Map::from_iter([(key.clone(), value.clone())]);
            let is_readable = parse_value::<K>(&one.clone().into(), path).map(|_| true);
            if self.allow(is_readable)? {
                readable.extend(one);
            }
        }
        parse_value(&readable.into(), path)
    }

    /// The error of a call without a login: the first one may be why.
    pub(crate) fn ended_by(&mut self, error: Error) -> Error {
        self.first.take().unwrap_or(error)
    }
}
