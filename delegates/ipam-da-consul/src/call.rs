//! The subject of a call: its verb, keys and pools.

use std::collections::BTreeSet;

use ipam_kit::allocate::{Owner, requested_pools, scope};
use ipam_kit::cni::Verb;
use ipam_kit::host::ResultCache;
use ipam_kit::{Request, Result};

use crate::config::Site;
use crate::keys::{ConsulKeys, check_name};

/// The subject of a call, which nothing changes: its verb, keys and pools.
#[derive(Debug)]
pub(crate) struct CallScope {
    pub(crate) verb: Verb,
    pub(crate) keys: ConsulKeys,
    /// The folders of the pools, by name; that of a pool without a name is the network's.
    pub(crate) folders: Vec<String>,
    /// The names of the pools whose ranges are in Consul.
    pub(crate) defined_in_consul: Vec<String>,
    /// The results that the runtime keeps.
    pub(crate) results: ResultCache,
    /// This node's identity; on STATUS alone.
    pub(crate) node: Option<String>,
}

impl CallScope {
    /// Reads the subject of a request.
    ///
    /// # Errors
    /// A pool's name is invalid in Consul.
    pub(crate) fn of(request: &Request, site: &Site) -> Result<Self> {
        let network = request.network.name();
        let mut folders = BTreeSet::new();
        let mut defined_in_consul = Vec::new();
        let mut has_nameless = false;
        for (i, pool) in requested_pools(request).iter().enumerate() {
            let Some(name) = pool.name() else {
                has_nameless = true;
                folders.insert(network.to_string());
                continue;
            };
            check_name(name, &format!("prevResult.pools[{i}]"))?;
            folders.insert(name.to_owned());
            if pool.ranges().is_empty() {
                defined_in_consul.push(name.to_owned());
            }
        }
        // The identity is in several files, so that only the verb that needs it reads them.
        let node = match request.verb {
            Verb::Status => scope(request).ok().map(|scope| scope.node),
            _ => None,
        };
        Ok(Self {
            verb: request.verb,
            keys: ConsulKeys::new(network, has_nameless),
            folders: folders.into_iter().collect(),
            defined_in_consul,
            results: ResultCache::new(&site.result_cache),
            node,
        })
    }

    /// Returns whether the runtime's cache has a result of this owner, as far as the cache can be
    /// read.
    pub(crate) fn may_be_cached(&self, owner: &Owner) -> bool {
        let cached = self.results.of(&owner.scope.network, &owner.container, &owner.ifname);
        cached.map_or(true, |cached| cached.is_some())
    }
}
