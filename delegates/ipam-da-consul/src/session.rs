//! What a call has of the store: the way to it, and what is known of it by now.

use ipam_kit::cni::Verb;
use ipam_kit::{Request, Result};
use ipam_servers::escape;

use crate::config::Site;
use crate::keys::Keys;
use crate::memory::{self, Memory};
use crate::pools::Pools;
use crate::present;
use crate::store::Store;

/// All that a call changes.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) store: Store,
    pub(crate) memory: Memory,
    pub(crate) pools: Pools,
    pub(crate) lessons: Lessons,
}

/// What refused changes have taught this call.
#[derive(Debug, Default)]
pub(crate) struct Lessons {
    /// How many races were lost.
    pub(crate) lost: u32,
    /// Whether the owner's key was met though it was not seen.
    pub(crate) hidden: bool,
    /// Whether the owner's key said what the keys of its addresses did not.
    pub(crate) doubtful: bool,
}

impl Session {
    /// The store of a site, or the one that the configuration names now.
    ///
    /// # Errors
    /// There is no state folder; a certificate file cannot be used.
    pub(crate) fn open(site: Site, request: &Request, keys: &Keys) -> Result<Self> {
        let state = request.state_dir()?;
        let place =
            format!("{}#{}", site.servers[0], site.datacenter.as_deref().unwrap_or_default());
        let folder = memory::folder(&state).join("pools").join(escape(&place));
        // A person who looks at a store that was swapped is to see what is in it.
        let trusting = request.is_reassert() || request.environment.text("CNI_COMMAND").is_none();
        let memory = Memory::open(&state, keys.network(), trusting);
        let mut store = match present::proven(request, &site, &memory, keys) {
            Some(store) => store,
            None => Store::new(site, request.unreached(), request.deadline)?,
        };
        // What a server that is behind does not show would never be released.
        if matches!(request.verb, Verb::Del | Verb::Gc | Verb::Check) || !memory.is_indexed() {
            store.insist();
        }
        if let Some(server) = memory.server() {
            store.prefer(&server);
        }
        let pools = Pools::at(folder, keys.network());
        Ok(Self { store, memory, pools, lessons: Lessons::default() })
    }

    /// Does without keys of owners from here on: the store lets us have none. No change is guarded by one
    /// then, so that what an owner holds has to be known for sure before it, too.
    pub(crate) fn go_without_index(&mut self) {
        self.store.insist();
        self.memory.note_unindexed();
    }
}
