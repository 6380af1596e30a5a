//! Leases in our own layout, which no other plugin reads or writes.
//!
//! Every lease has a key for its address, and every owner one key that lists its leases. An ADD
//! usually takes one request: `view` guesses that the owner holds nothing, and the transaction of
//! `commit` checks the guess while it claims an address. A DEL usually takes one, too: `view` trusts
//! the leases of the attachment record, and the transaction deletes them only at their revisions.
//! When a transaction finds something else, its answer brings the owner's keys, for the next try.

pub(crate) mod key_format;

use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, View, ViewQuery};

use crate::commit_txn::{CommitTxn, CommitTxnOutcome};
use crate::entries::{entries_of_node, entry_of_key, read_holdings};
use crate::etcd_ledger::{EntryVisitor, EtcdLedger};
use crate::keys::EtcdKeys;
use crate::outcome::{finish_commit, owner_keys_after_refusal, report_taken, view_after_refusal};
use crate::owner_leases::{OwnerKeys, OwnerLeases, read_previous_holders};
use crate::removal::remove;
use crate::session::EtcdSession;
use crate::view_reads::{addresses_in_query, build_view, read_for_view, view_without_reading};
use crate::view_token::EtcdViewToken;

/// A store that only this delegate uses.
#[derive(Debug)]
pub(crate) struct NativeLedger(pub(crate) EtcdSession);

impl EtcdLedger for NativeLedger {
    fn claims_in_cursor_order(&self) -> bool {
        false
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: EtcdViewToken,
    ) -> Result<View<EtcdViewToken>> {
        let session = &mut self.0;
        if let Some(view) = view_without_reading(session, query, false, &earlier) {
            return Ok(view);
        }
        let addresses = addresses_in_query(query);
        let reads = read_for_view(session, query, addresses, Vec::new())?;
        let held = leases_of(&session.keys, query.owner, &reads.owner)?;
        Ok(build_view(session, query, reads.used, held, &earlier))
    }

    fn commit(
        &mut self,
        owner: &Owner,
        token: &EtcdViewToken,
        change: &Change<'_>,
    ) -> Result<Commit<EtcdViewToken>> {
        let session = &mut self.0;
        let previous_holders = read_previous_holders(session, change)?;
        let commit = CommitTxn {
            keys: &session.keys,
            owner,
            guard: &token.guard,
            change,
            latest: session.latest(),
            previous_holders: &previous_holders,
            indexed: true,
            additions: &(),
        };
        let Some(answer) = session.client.write(&commit.transaction())? else {
            return Ok(Commit::Unknown);
        };
        match commit.outcome(&answer.response) {
            CommitTxnOutcome::Done(chosen) => {
                finish_commit(session, owner, &token.guard, change, &answer, &chosen)
            }
            CommitTxnOutcome::Taken(claim, found) => {
                session.check_answer(&answer)?;
                Ok(report_taken(session, owner, token, change, claim, found.as_deref()))
            }
            CommitTxnOutcome::Stale(found) => {
                session.check_answer(&answer)?;
                let keys = owner_keys_after_refusal(session, owner, change, found)?;
                let held = leases_of(&session.keys, owner, &keys)?;
                let view = view_after_refusal(session, token, change, &keys, held)?;
                Ok(Commit::Lost { taken: Vec::new(), view })
            }
        }
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        remove(&mut self.0, entries)
    }

    fn scan(&mut self, node: Option<&str>, each: EntryVisitor<'_>) -> Result<()> {
        let session = &mut self.0;
        let Some(node) = node else {
            return session.each_below(session.keys.leases().to_owned(), &mut |keys, found| {
                entry_of_key(keys, found).map_or(ControlFlow::Continue(()), &mut *each)
            });
        };
        let prefix = session.keys.of_node(node);
        let holdings = read_holdings(session, prefix)?;
        let network = session.keys.network().as_str();
        // A visitor that ends early has seen what it needs.
        let _ = entries_of_node(&holdings, node, network).try_for_each(each);
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        let written = vec![self.0.keys.leases().to_owned()];
        self.0.ready(Vec::new(), written)
    }

    fn accept(&mut self) -> Result<()> {
        let latest = self.0.read_latest_claim()?;
        self.0.accept(latest)
    }
}

/// Returns the owner's leases from its own key or, if that key was deleted by hand, from the keys
/// of the addresses.
fn leases_of(keys: &EtcdKeys, owner: &Owner, found: &OwnerKeys) -> Result<OwnerLeases> {
    let mut held = found.by_own_key(keys, owner)?;
    if found.own.is_none() {
        for (_, lease, item) in found.by_addresses(keys, owner) {
            held.add(lease, item);
        }
    }
    Ok(held)
}
