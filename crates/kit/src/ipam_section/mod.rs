//! Pools, routes and name resolution of the section `ipam` itself, with the requests of
//! `runtimeConfig` and `CNI_ARGS`: without a state, and without a server.
//!
//! A selector hands an [`IpamSection`] on; an allocator that is used alone serves it.

mod config;
mod host_local;
mod requested;
mod resolv_conf;
mod section_pool;
mod spelling;

pub use section_pool::SectionPool;
pub(crate) use spelling::refuse;
pub use spelling::{misspelt_settings, reads_as_replaced};

use log::warn;
use serde_json::{Map, Value};

use config::SectionConfig;

use crate::cni::{Dns, IpamResult, Route, Verb};
use crate::delegate::Request;
use crate::error::Result;
use crate::keys::Key;
use crate::pool::{Pool, RangeConfig};

/// The keys of `ipam` that an [`IpamSection`] is read from.
pub const KEYS: &[Key] = &[
    Key::Section("pools", Pool::KEYS),
    Key::Foreign("ranges", RangeConfig::KEYS),
    Key::All(RangeConfig::KEYS),
    Key::Foreign("routes", Route::KEYS),
    Key::Value("resolvConf"),
    Key::Value("rangeRules"),
];

/// The section `ipam` of one call, read.
#[derive(Debug)]
pub struct IpamSection {
    /// The pools, one address each; at least one.
    pub pools: Vec<SectionPool>,
    /// Routes to add to the container.
    pub routes: Vec<Route>,
    /// Name resolution.
    pub dns: Dns,
}

impl IpamSection {
    /// Reads the pools of `ipam.pools`, else host-local's range sets, and finds the pool that each
    /// requested address is for; `None` when there are neither pools nor ranges.
    ///
    /// # Errors
    /// A key, a pool, a range or a route is invalid, two pools overlap, or the `cniVersion` has no
    /// place for so many. On ADD also when a requested address fits no pool, or the file of
    /// `resolvConf` cannot be read.
    pub fn read(request: &Request) -> Result<Option<Self>> {
        Self::read_where(request, |_| true)
    }

    /// [`IpamSection::read`], without some of the pools. The others keep their numbers, and an address that is
    /// requested of one that is left out fits none.
    ///
    /// # Errors
    /// As of [`IpamSection::read`].
    pub fn read_where(
        request: &Request,
        keep: impl Fn(&SectionPool) -> bool,
    ) -> Result<Option<Self>> {
        let config = SectionConfig::read(request.network.ipam())?;
        spelling::check_letters(request.network.ipam())?;
        let mut pools = section_pool::read(&config, &request.network)?;
        if pools.is_empty() {
            return Ok(None);
        }
        if request.is_strict() {
            let ipam = request.network.ipam();
            refuse(ipam, &misspelt_settings(&request.network, KEYS))?;
            match pools.iter().try_for_each(SectionPool::refuse_strategy_in_ranges) {
                // A replaced system ignores it.
                Err(error) if reads_as_replaced(ipam) => {
                    if request.verb == Verb::Add {
                        warn!("{error}: it is ignored");
                    }
                }
                judged => judged?,
            }
        }
        pools.retain(keep);
        requested::assign(&mut pools, request)?;
        Ok(Some(Self { pools, routes: config.routes()?, dns: dns(&config, request.verb)? }))
    }

    /// The settings by which a plain host-local, which knows no pools, gives the same addresses: a
    /// patch of `ipam`.
    ///
    /// They are empty when a pool has no ranges: host-local could not serve it.
    pub(crate) fn for_host_local(&self) -> Map<String, Value> {
        host_local::patch(&self.pools)
    }
}

/// The ranges of pools of several selectors for a plain host-local: a patch of `ipam`, empty when a
/// pool has none.
pub(crate) fn for_host_local(pools: &[Value]) -> Map<String, Value> {
    host_local::joint(pools)
}

/// Adds routes and name resolution to a result: a route that is there already stays once, and name
/// resolution that says nothing changes nothing.
pub(crate) fn add_to(result: &mut IpamResult, routes: Vec<Route>, dns: Dns) {
    for route in routes {
        if !result.routes.contains(&route) {
            result.routes.push(route);
        }
    }
    if !dns.0.is_empty() {
        result.dns = dns;
    }
}

/// Reads the name resolution. A missing file must not make a DEL fail.
fn dns(config: &SectionConfig<'_>, verb: Verb) -> Result<Dns> {
    let Some(path) = &config.resolv_conf else {
        return Ok(Dns::default());
    };
    match resolv_conf::read(path) {
        Err(error) if verb != Verb::Add => {
            warn!("{}", error.in_full());
            Ok(Dns::default())
        }
        read => read,
    }
}

#[cfg(test)]
mod call;

#[cfg(test)]
mod tests;
