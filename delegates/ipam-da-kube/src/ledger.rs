//! Leases in Kubernetes, as a ledger.
//!
//! - ADD: `view` reads the pools (`read_pool`) and finds the owner's leases in them
//!   (`owner_search`). `commit` writes an entry and a reservation for each claim (`claim`), and
//!   confirms the leases that stay.
//! - DEL: `view` shows the leases of the record without a request; `commit` releases them
//!   (`release`). If they have changed, `view` reads the pools, and `commit` comes again.
//! - GC, release and lists: `scan` shows entries, `remove` releases them (`release`).

use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery, unknown_ranges};
use ipam_kit::allocate::{ClaimLimits, Owner, PoolRequest, Profile, Reach, Strategy};
use ipam_kit::keys::Key;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Request, Result};
use ipam_kube::is_forbidden;

use crate::commit::commit;
use crate::config::{KEYS, KubeConfig};
use crate::names::readable_part;
use crate::pools_token::PoolsToken;
use crate::session::LeaseSession;
use crate::view::view;

/// The leases of one network in a whole cluster.
#[derive(Debug)]
pub struct IpPools {
    session: LeaseSession,
}

impl IpPools {
    /// Returns the state of the call, for a verb of this ledger alone.
    pub(crate) fn into_session(self) -> LeaseSession {
        self.session
    }
}

impl Ledger for IpPools {
    type Config = KubeConfig;
    type Token = PoolsToken;

    const KEYS: Option<&'static [Key]> = Some(KEYS);
    const REACH: Reach = Reach::Cluster;

    fn open(config: KubeConfig, request: &Request) -> Result<Self> {
        Ok(Self { session: LeaseSession::open(config, request)? })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<PoolsToken>,
    ) -> Result<View<PoolsToken>> {
        // It may have turns at pools, which this view takes.
        drop(earlier);
        view(&mut self.session, query)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: PoolsToken,
        change: &Change<'_>,
    ) -> Result<Commit<PoolsToken>> {
        if !seen.is_all_of(change) {
            self.session.trusts_notes = false;
            return Ok(Commit::Outdated);
        }
        commit(&mut self.session, owner, seen, change)
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.session.remove(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.session.scan(node, each)
    }

    fn ready(&mut self) -> Result<()> {
        let LeaseSession { memory, store, .. } = &mut self.session;
        memory.check_not_restored(store.namespace())?;
        store.check_ready()
    }

    fn accept(&mut self) -> Result<bool> {
        // A server that cannot be reached is not accepted.
        let LeaseSession { store, memory, notes, .. } = &mut self.session;
        store.check_ready()?;
        let cluster = match store.read_cluster() {
            Err(error) if is_forbidden(&error) => None,
            cluster => cluster?,
        };
        if let Some(cluster) = &cluster {
            notes.forget_other_clusters(cluster);
        }
        memory.accept(cluster)?;
        Ok(true)
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        let LeaseSession { store, overlap_check, is_sticky, .. } = &mut self.session;
        // `lint`, which asks for them, names missing rights before another call needs them.
        store.check_rights(*overlap_check, *is_sticky)?;
        let remark = store.cluster_remark()?;
        let mut entries = self.session.foreign_entries()?;
        entries.extend(remark);
        Ok(entries)
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        let set = request.set.clone().ok_or_else(|| unknown_ranges(request))?;
        Ok(readable_part(&set, &request.path).unwrap_or(set))
    }

    fn profile(&self) -> Profile {
        Profile {
            strategy: Strategy::Lowest,
            keeps_sticky: true,
            knows_freed: true,
            ..Profile::default()
        }
    }

    fn claim_limits(&self, _claims: usize) -> ClaimLimits {
        // The view shows whole pools.
        ClaimLimits { look_first: true, ..ClaimLimits::IN_ORDER }
    }
}
