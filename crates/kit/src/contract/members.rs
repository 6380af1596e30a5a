use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Purpose, key};
use crate::cni::{IpConfig, IpamResult, parse_value};
use crate::error::{Error, Result};

/// The input of a delegate, as it reads it: what [`DelegateInput`](super::DelegateInput) writes.
///
/// Each member is read when it is needed: a DEL must not fail by pools that it does not need.
#[derive(Clone, Copy, Debug)]
pub struct InputMembers<'a>(Option<&'a Map<String, Value>>);

impl<'a> InputMembers<'a> {
    /// The input in a `prevResult` as it came; empty if that is missing or not an object.
    pub fn of(prev_result: Option<&'a Value>) -> Self {
        Self(prev_result.and_then(Value::as_object))
    }

    /// The input in a `prevResult` that was read.
    pub fn of_result(prev_result: &'a IpamResult) -> Self {
        Self(Some(&prev_result.extra))
    }

    /// The pools to serve; `None` if no delegate has named any.
    ///
    /// # Errors
    /// Error 7: the member is not an array.
    pub fn pools(&self) -> Result<Option<&'a [Value]>> {
        match self.get(key::POOLS) {
            None => Ok(None),
            Some(Value::Array(pools)) => Ok(Some(pools)),
            Some(_) => Err(Error::config("prevResult.pools", "expected an array of pools")),
        }
    }

    /// The leases that the delegate answered for this attachment, in a form of its own.
    ///
    /// # Errors
    /// Error 7: they do not have that form.
    pub fn leases<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let leases = self.get(key::LEASES);
        let leases = leases.map(|leases| parse_value(leases, "prevResult.leases")).transpose()?;
        Ok(leases.unwrap_or_default())
    }

    /// The static addresses that selectors named outside of pools, without those already answered.
    ///
    /// # Errors
    /// Error 7: an entry is not an address with a prefix length.
    pub fn static_addresses(&self) -> Result<Vec<IpConfig>> {
        IpConfig::parse_all(self.get(key::STATIC).cloned(), "prevResult.static")
    }

    /// Why the delegate is called.
    ///
    /// # Errors
    /// Error 7: the member cannot be read. A DEL must then release nothing.
    pub fn purpose(&self) -> Result<Purpose> {
        self.0.map_or(Ok(Purpose::Runtime), Purpose::read)
    }

    /// The section `ipam` of the present configuration, if the record names the store by another
    /// one.
    pub fn present(&self) -> Option<&'a Map<String, Value>> {
        let ipam = self.get(key::PRESENT)?.as_object()?;
        ipam.get("type").is_some_and(Value::is_string).then_some(ipam)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0?.get(key).filter(|value| !value.is_null())
    }
}
