//! Leases in the layout of whereabouts, which keeps all leases of a pool in one value.
//!
//! A value names containers alone, so each owner has a key of ours beside it, as in the other
//! layouts. A `view` reads the owner's keys and the values of its pools, or guesses them by what
//! this node wrote last (`written_values`). A `commit` writes the changed values with the owner's
//! key, in one transaction: while each value is as it was seen, and while no process of whereabouts
//! has the mutex of a pool (`pool_locks`). Such a process writes back the whole value that it read,
//! so a release needs the mutex to be free, too.

mod commit;
mod found_owners;
mod owner_lines;
mod pool_locks;
mod pool_txn;
mod pools;
mod removal;
mod scan;
mod view;
mod written_values;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};
use ipam_kit::allocate::{Owner, requested_sets};
use ipam_kit::cni::{IpamResult, Verb};
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipnet::IpNet;

use self::pool_locks::PoolQueues;
use self::pools::ValueKeys;
use self::written_values::WrittenValues;
use super::node_turn::NodeTurn;
use super::owner_hints::OwnerHints;
use crate::config::EtcdStore;
use crate::etcd_ledger::{EntryVisitor, EtcdLedger};
use crate::keys::end_of;
use crate::page::{READS, flatten};
use crate::pool_value::{PoolValue, SeenPool, SeenPools};
use crate::session::EtcdSession;
use crate::view_token::EtcdViewToken;

/// The most pools from which an ADD takes addresses. A transaction has 128 operations, and a pool
/// needs three guards while the ADD queues in its mutex.
const POOLS: usize = 41;

/// How many leases one transaction releases at most, each from a pool of its own: the writes of a
/// release are in an inner transaction, whose operations count beside the guards.
const DROPS: usize = 30;

/// A store that whereabouts uses, too.
#[derive(Debug)]
pub(crate) struct WhereaboutsLedger {
    session: EtcdSession,
    keys: ValueKeys,
    written: WrittenValues,
    hints: OwnerHints,
    locks: PoolQueues,
    node_turn: NodeTurn,
    /// The pools of this network; none when its ranges cannot be read.
    network_pools: BTreeSet<IpNet>,
    /// From how many of them an ADD takes addresses.
    claimed_pools: usize,
    /// The addresses of the attachment by the runtime, on a DEL; `None` if its result is malformed.
    runtime_result: Option<BTreeSet<IpAddr>>,
    verb: Verb,
}

impl WhereaboutsLedger {
    /// Returns a ledger in the layout of whereabouts.
    ///
    /// # Errors
    /// The state folder is missing.
    pub(crate) fn open(session: EtcdSession, store: &EtcdStore, request: &Request) -> Result<Self> {
        let state = request.state_dir()?;
        let runtime_result = match request.verb {
            Verb::Del => request.prev_result().ok(),
            _ => Some(IpamResult::default()),
        };
        let addresses =
            |result: IpamResult| result.ips.iter().map(|ip| ip.address.addr()).collect();
        let sets = requested_sets(request);
        let network_pools: BTreeSet<IpNet> = sets.iter().flat_map(pools::pools_of).collect();
        Ok(Self {
            session,
            keys: ValueKeys::new(&store.prefix),
            written: WrittenValues::new(&state, &store.prefix, request.network.name()),
            hints: OwnerHints::open(&state, &store.result_cache),
            locks: PoolQueues::default(),
            node_turn: NodeTurn::new(&state, request.deadline),
            claimed_pools: sets.len().min(network_pools.len()),
            network_pools,
            runtime_result: runtime_result.map(addresses),
            verb: request.verb,
        })
    }

    /// Reads some keys and the values of pools, all in one transaction if they are few.
    ///
    /// # Errors
    /// As [`EtcdSession::read`]; or the value of a pool is malformed.
    fn read(
        &mut self,
        keys: Vec<TxnOp>,
        subnets: impl IntoIterator<Item = IpNet> + Clone,
    ) -> Result<(Vec<KeyValue>, SeenPools)> {
        let values = subnets.clone().into_iter().map(|subnet| self.keys.read(subnet));
        let reads: Vec<TxnOp> = keys.into_iter().chain(values).collect();
        let mut found = Vec::new();
        for batch in reads.chunks(READS) {
            let answer = self.session.read(&Txn::new().and_then(batch))?;
            found.extend(flatten(answer.response.op_responses()));
        }
        let pools = self.keys.take(subnets, &mut found)?;
        Ok((found, pools))
    }

    /// Fails if there are more pools than an ADD can take addresses from.
    fn refuse_too_many_pools(&self) -> Result<()> {
        if self.claimed_pools <= POOLS {
            return Ok(());
        }
        let message = format!(
            "{} pools: expected at most {POOLS} in the layout whereabouts, one for each address",
            self.claimed_pools
        );
        Err(Error::new(ErrorCode::INVALID_CONFIG, message)
            .advise("remove some of the pools, or move them to another network"))
    }

    /// Shows every key below the prefix.
    ///
    /// # Errors
    /// As [`EtcdSession::read`].
    fn each_key(&mut self, mut each: impl FnMut(&ValueKeys, &[u8])) -> Result<()> {
        let prefix = self.keys.prefix().to_owned();
        let end = end_of(&prefix);
        self.session.each_between(prefix, &end, true, &mut |_, found| {
            each(&self.keys, found.key());
            ControlFlow::Continue(())
        })
    }

    /// Reads the pools of the network, one after the other: each may be large.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_each(
        &mut self,
        subnets: &BTreeSet<IpNet>,
        mut each: impl FnMut(IpNet, SeenPool),
    ) -> Result<()> {
        for subnet in subnets {
            let (_, pools) = self.read(Vec::new(), [*subnet])?;
            pools.into_iter().for_each(|(subnet, pool)| each(subnet, pool));
        }
        Ok(())
    }
}

/// Returns the key and the value of a pool in which containers hold these addresses, as whereabouts
/// writes them.
pub(crate) fn filled(
    prefix: &str,
    subnet: IpNet,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> (String, String) {
    let mut value = PoolValue::default();
    for (n, address) in addresses.into_iter().enumerate() {
        value.add(address, &format!("{n:064x}"));
    }
    (ValueKeys::new(prefix).pool(subnet.trunc()), value.as_str().to_owned())
}

impl EtcdLedger for WhereaboutsLedger {
    /// A change of the value loses against any other one, so another address has the same rivals.
    fn claims_in_cursor_order(&self) -> bool {
        true
    }

    /// No limit: `commit` splits a release itself, since the owner's key must list what is left.
    fn drops_at_once(&self) -> usize {
        usize::MAX
    }

    fn view(&mut self, query: &ViewQuery<'_>, _: EtcdViewToken) -> Result<View<EtcdViewToken>> {
        if self.verb == Verb::Add {
            self.refuse_too_many_pools()?;
        }
        view::view(self, query)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>> {
        let only_drops = change.keep.is_empty() && change.claim.is_empty();
        if !only_drops || change.drop.len() <= DROPS {
            return commit::commit(self, owner, token, change);
        }
        let (first, rest) = change.drop.split_at(DROPS);
        let leave = change.leave.iter().chain(rest).cloned().collect();
        let part = Change { drop: first.to_vec(), leave, ..Change::default() };
        Ok(match commit::commit(self, owner, token, &part)? {
            Commit::Unknown => Commit::Unknown,
            // The next view shows the rest.
            _ => Commit::Outdated,
        })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        removal::remove(self, entries)
    }

    fn scan(&mut self, node: Option<&str>, each: EntryVisitor<'_>) -> Result<()> {
        scan::scan(self, node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.refuse_too_many_pools()?;
        let subnets = self.network_pools.clone();
        let claimed: Vec<IpNet> = subnets.iter().copied().take(READS).collect();
        let pools = claimed.iter().map(|subnet| self.keys.pool(*subnet));
        let written = pools.chain([self.written.key().to_owned()]).collect();
        self.session.ready(self.locks.reads(&self.keys, &claimed), written)?;
        self.read_each(&subnets, |_, _| ())
    }

    fn accept(&mut self) -> Result<()> {
        let latest = self.session.read_latest_claim()?;
        self.session.accept(latest)
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        scan::foreign_entries(self)
    }
}

impl Drop for WhereaboutsLedger {
    /// Leaves the queue of the mutex, however a call ends.
    fn drop(&mut self) {
        self.locks.end(&mut self.session.client);
    }
}
