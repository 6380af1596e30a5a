//! What a call has of the store: the way to it, and what is known of it by now.

use ipam_kit::cni::Verb;
use ipam_kit::{Request, Result};
use ipam_servers::escape;

use crate::config::Site;
use crate::current_servers;
use crate::keys::ConsulKeys;
use crate::memory::{self, ConsulMemory};
use crate::pools::Pools;
use crate::store::KvStore;

/// All that a call changes.
#[derive(Debug)]
pub(crate) struct ConsulSession {
    pub(crate) store: KvStore,
    pub(crate) memory: ConsulMemory,
    pub(crate) pools: Pools,
    pub(crate) refusals: Refusals,
}

/// What refused changes have taught this call.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// How many races were lost.
    pub(crate) lost: u32,
    /// Whether the owner's key was met though it was not seen.
    pub(crate) hidden: bool,
    /// Whether the owner's key said what the keys of its addresses did not.
    pub(crate) doubtful: bool,
}

impl ConsulSession {
    /// The store of a site, or the one that the configuration names now.
    ///
    /// # Errors
    /// There is no state folder; a certificate file cannot be used.
    pub(crate) fn open(site: Site, request: &Request, keys: &ConsulKeys) -> Result<Self> {
        let state = request.state_dir()?;
        let place =
            format!("{}#{}", site.servers[0], site.datacenter.as_deref().unwrap_or_default());
        let folder = memory::folder(&state).join("pools").join(escape(&place));
        // A person who scans at a store that was swapped is to see what is in it.
        let trusting = request.is_reassert() || request.environment.text("CNI_COMMAND").is_none();
        let memory = ConsulMemory::open(&state, keys.network(), trusting);
        let mut store = match current_servers::proven(request, &site, &memory, keys) {
            Some(store) => store,
            None => KvStore::new(site, request.unreached(), request.deadline)?,
        };
        // What a server that is behind does not show would never be released.
        if matches!(request.verb, Verb::Del | Verb::Gc | Verb::Check) || !memory.is_indexed() {
            store.require_proof();
        }
        if let Some(server) = memory.server() {
            store.prefer(&server);
        }
        let pools = Pools::at(folder, keys.network());
        Ok(Self { store, memory, pools, refusals: Refusals::default() })
    }

    /// Does without keys of owners from here on: the store lets us have none. No change is guarded by one
    /// then, so that what an owner holds has to be known for sure before it, too.
    pub(crate) fn go_without_index(&mut self) {
        self.store.require_proof();
        self.memory.remember_unindexed();
    }
}
