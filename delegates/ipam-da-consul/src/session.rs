//! The changing part of a call: the store, and the node's memory of it.

use ipam_kit::cni::Verb;
use ipam_kit::{Request, Result};
use ipam_servers::escape;

use crate::config::Site;
use crate::current_servers;
use crate::keys::ConsulKeys;
use crate::memory::{self, ConsulMemory};
use crate::pools::Pools;
use crate::store::KvStore;

/// The changing part of a call.
#[derive(Debug)]
pub(crate) struct ConsulSession {
    pub(crate) store: KvStore,
    pub(crate) memory: ConsulMemory,
    pub(crate) pools: Pools,
    pub(crate) refusals: Refusals,
}

/// The findings of this call from refused changes.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// How many races were lost.
    pub(crate) lost_races: u32,
    /// Whether the owner's key exists though no read has shown it.
    pub(crate) owner_key_hidden: bool,
    /// Whether the owner's key contradicts the keys of its addresses.
    pub(crate) index_doubtful: bool,
}

impl ConsulSession {
    /// Opens the store of a site, by the servers of the present configuration if they have the same
    /// store.
    ///
    /// # Errors
    /// The state folder is missing; a certificate file cannot be used.
    pub(crate) fn open(site: Site, request: &Request, keys: &ConsulKeys) -> Result<Self> {
        let state = request.state_dir()?;
        let datacenter = site.datacenter.as_deref().unwrap_or_default();
        let store_name = escape(&format!("{}#{datacenter}", site.servers[0]));
        let pools_folder = memory::folder(&state).join("pools").join(store_name);
        let memory = ConsulMemory::open(&state, keys.network(), request.trusts_any_store());
        let mut store = match current_servers::proven(request, &site, &memory, keys) {
            Some(store) => store,
            None => KvStore::new(site, request.unreached(), request.deadline)?,
        };
        // A lease that a server does not show yet would never be released.
        if matches!(request.verb, Verb::Del | Verb::Gc | Verb::Check) || !memory.is_indexed() {
            store.require_proof();
        }
        if let Some(server) = memory.server() {
            store.prefer(&server);
        }
        let pools = Pools::at(pools_folder, keys.network());
        Ok(Self { store, memory, pools, refusals: Refusals::default() })
    }

    /// Continues without keys of owners, because the store refuses them. They guard no change, so
    /// every later read is a proof.
    pub(crate) fn go_without_index(&mut self) {
        self.store.require_proof();
        self.memory.remember_unindexed();
    }
}
