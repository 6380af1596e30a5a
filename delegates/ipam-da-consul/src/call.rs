//! What a call is about.

use std::collections::BTreeSet;

use ipam_kit::allocate::{requested_pools, scope};
use ipam_kit::cni::Verb;
use ipam_kit::host::ResultCache;
use ipam_kit::{Request, Result};

use crate::config::Site;
use crate::keys::{ConsulKeys, check_name};

/// What is asked, which nothing changes.
#[derive(Debug)]
pub(crate) struct CallScope {
    pub(crate) verb: Verb,
    pub(crate) keys: ConsulKeys,
    /// The folders of the pools that the call is about.
    pub(crate) asked: Vec<String>,
    /// Those whose ranges stand in Consul.
    pub(crate) named: Vec<String>,
    /// The results that the runtime keeps.
    pub(crate) results: ResultCache,
    /// This node's identity.
    pub(crate) node: Option<String>,
}

impl CallScope {
    /// What a request asks of a store.
    ///
    /// # Errors
    /// A pool's name cannot be one in Consul.
    pub(crate) fn of(request: &Request, site: &Site) -> Result<Self> {
        let network = request.network.name();
        let asked = requested_pools(request);
        for (i, name) in asked.iter().enumerate().filter_map(|(i, pool)| Some((i, pool.name()?))) {
            check_name(name, &format!("prevResult.pools[{i}]"))?;
        }
        let stands = asked.iter().filter(|pool| pool.ranges().is_empty());
        let named = stands.filter_map(|pool| pool.name().map(str::to_owned)).collect();
        let nameless = asked.iter().any(|pool| pool.name().is_none());
        let folder = |name: Option<&str>| name.unwrap_or(network.as_str()).to_owned();
        let asked: BTreeSet<String> = asked.iter().map(|pool| folder(pool.name())).collect();
        Ok(Self {
            verb: request.verb,
            keys: ConsulKeys::new(network, nameless),
            asked: asked.into_iter().collect(),
            named,
            results: ResultCache::new(&site.result_cache),
            // Nothing else asks for it, and it is in several files.
            node: (request.verb == Verb::Status)
                .then(|| scope(request).ok())
                .flatten()
                .map(|scope| scope.node),
        })
    }
}
