//! The role of a selector: a delegate that chooses pools, keeps no state and gives no address.

use std::ffi::OsString;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cni::{Dns, IpConfig, IpamResult, Route, ValidAttachments, Verb};
use crate::contract::DelegateAnswer;
use crate::delegate::selector_keys::is_chain_key;
use crate::delegate::{CliCall, Delegate, Request};
use crate::error::Result;
use crate::ipam_section::{self, IpamSection, SectionPool};
use crate::keys::{Key, MisspeltKey, warn_of};
use crate::pool::{Placement, Pool};

/// A selector: it chooses the pools that a later delegate allocates from.
///
/// Name the program `ipam-ds-…`: the chain knows a selector by its name, and does not run it on a
/// DEL or CHECK whose attachment it has a record of.
pub trait Selector {
    /// The settings that the selector reads from the section `ipam`. It ignores the keys of other
    /// delegates.
    type Config: DeserializeOwned;

    /// The keys of `ipam` that the selector reads; `None` claims every key.
    const KEYS: Option<&'static [Key]> = None;

    /// Chooses the pools for this call.
    ///
    /// [`Request::attachment`] has the attachment; STATUS and GC are without one.
    fn select(&self, config: Self::Config, request: &Request) -> Result<Selection>;

    /// See [`Delegate::expand_args`].
    fn expand_args(&self, typed: Vec<OsString>) -> Vec<OsString> {
        typed
    }

    /// See [`Delegate::cli`]. `about` is answered without it.
    fn cli(&self, _call: &CliCall) -> Option<Result<String>> {
        None
    }
}

/// The answer of a selector.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The pools, one address each; `None` leaves it to the allocator to read `ipam` by itself.
    pub pools: Option<Vec<Pool>>,
    /// The rule for the pools of the selectors before it.
    pub placing: Placement,
    /// Addresses outside of pools, which the next allocator answers beside one for each pool.
    pub static_addresses: Vec<IpConfig>,
    /// Routes of the selector's source.
    pub routes: Vec<Route>,
    /// Name resolution of the selector's source.
    pub dns: Dns,
    /// Settings for later delegates: a JSON merge patch for `ipam`. Useful if a standard plugin
    /// follows, which does not know pools.
    pub ipam: Map<String, Value>,
    /// If the source was not asked in this call: the age and origin of the remembered answer, as a
    /// text. `explain` shows it.
    pub remembered: Option<String>,
    /// Settings without the effect that a person may expect, a text for each. STATUS answers them,
    /// and `lint` shows them as warnings.
    pub remarks: Vec<String>,
}

impl Selection {
    /// Pools and nothing else.
    pub fn of(pools: impl IntoIterator<Item = Pool>) -> Self {
        Self { pools: Some(pools.into_iter().collect()), ..Self::default() }
    }

    /// Replaces the whole section `ipam` of the configuration by these settings, except the keys of
    /// the chain itself, and the pools of the selectors before it by its own. Delegates of ours
    /// still read from the configuration what a selector may not set, such as the store.
    #[must_use]
    pub fn replacing(mut self, old: &Map<String, Value>, new: Map<String, Value>) -> Self {
        self.placing = Placement::Replace;
        self.ipam = replacement(old, new);
        self.ipam.retain(|key, value| !(value.is_null() && is_chain_key(key)));
        self
    }
}

impl From<IpamSection> for Selection {
    /// The pools of the section, for allocators that know pools, and as ranges for a plain
    /// host-local.
    fn from(offer: IpamSection) -> Self {
        Self {
            ipam: offer.for_host_local(),
            pools: Some(offer.pools.into_iter().map(SectionPool::into_pool).collect()),
            routes: offer.routes,
            dns: offer.dns,
            ..Self::default()
        }
    }
}

/// The merge patch that makes one object out of another.
fn replacement(old: &Map<String, Value>, mut new: Map<String, Value>) -> Map<String, Value> {
    for (key, value) in old {
        match (value, new.get_mut(key)) {
            (Value::Object(value), Some(Value::Object(inner))) => {
                *inner = replacement(value, std::mem::take(inner));
            }
            (_, Some(_)) => {}
            (_, None) => {
                new.insert(key.clone(), Value::Null);
            }
        }
    }
    new
}

/// The misspelt keys of the configuration, and those of the pools that are not among them.
fn not_twice(mut of_config: Vec<MisspeltKey>, of_pools: Vec<MisspeltKey>) -> Vec<MisspeltKey> {
    for it in of_pools {
        if !of_config.iter().any(|other| other.key == it.key) {
            of_config.push(it);
        }
    }
    of_config
}

/// A [`Selector`] as a [`Delegate`].
#[derive(Clone, Copy, Debug)]
pub struct Select<S>(pub S);

impl<S: Selector> Select<S> {
    /// The previous result with the selected pools, and with routes and dns where there are any.
    fn answer(&self, request: &Request) -> Result<IpamResult> {
        let keys = S::KEYS.filter(|_| request.is_strict()).unwrap_or_default();
        let mut misspelt = ipam_section::misspelt_settings(&request.network, keys);
        let ipam = request.network.ipam();
        ipam_section::refuse(ipam, &misspelt)?;
        let mut selection = self.0.select(request.network.settings()?, request)?;
        let mut result = request.prev_result()?;
        let mut answer = DelegateAnswer::passed_on(&result)?;
        if let Some(pools) = selection.pools {
            let there = answer.pools.as_deref().filter(|_| selection.placing == Placement::Add);
            let there = there.unwrap_or_default();
            let own: Vec<Value> = pools.iter().map(Pool::to_json).collect();
            // An allocator tells of the others.
            if request.is_strict() && ipam_section::reads_as_replaced(ipam) {
                misspelt = not_twice(misspelt, Pool::misspelt(&own, "pools"));
            }
            let pools = selection.placing.place(there, own);
            // A plain host-local serves all pools or fails.
            if !there.is_empty() && selection.ipam.contains_key("ranges") {
                selection.ipam.extend(ipam_section::for_host_local(&pools));
            }
            answer.pools = Some(pools);
        }
        warn_of(&misspelt);
        ipam_section::add_to(&mut result, selection.routes, selection.dns);
        answer.static_addresses.extend(selection.static_addresses);
        answer.ipam = selection.ipam;
        answer.remembered = selection.remembered;
        if request.verb == Verb::Status {
            answer.remarks = selection.remarks;
        }
        answer.write_to(&mut result);
        Ok(result)
    }
}

impl<S: Selector> Delegate for Select<S> {
    fn keys(&self) -> Option<Vec<Key>> {
        S::KEYS.map(<[Key]>::to_vec)
    }

    fn expand_args(&self, typed: Vec<OsString>) -> Vec<OsString> {
        self.0.expand_args(typed)
    }

    fn cli(&self, call: &CliCall) -> Option<Result<String>> {
        let words: Vec<&str> = call.arguments.iter().filter_map(|word| word.to_str()).collect();
        let about = || call.about("selector", None, S::KEYS);
        match words[..] {
            ["about"] => {
                Some(Ok(format!("{} {}: a selector\n", call.name, env!("CARGO_PKG_VERSION"))))
            }
            ["about", "--json"] => Some(Ok(format!("{}\n", about()))),
            _ => self.0.cli(call),
        }
    }

    fn add(&self, request: &Request) -> Result<IpamResult> {
        self.answer(request)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }

    fn gc(&self, request: &Request, _keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_section_is_replaced_at_every_depth_but_for_what_is_the_chains() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let old = object(
            json!({"type": "t", "stateDir": "/s", "annotation": "a", "x": {"a": 1, "b": {"c": 1}}, "y": 1}),
        );
        let new = object(json!({"x": {"b": {"d": 2}}, "y": {"z": 1}, "ranges": []}));
        let patch = Selection::default().replacing(&old, new).ipam;
        let expected = json!({"annotation": null, "x": {"a": null, "b": {"c": null, "d": 2}}, "y": {"z": 1}, "ranges": []});
        assert_eq!(Value::Object(patch), expected);
    }
}
