//! Additions to the transaction of a claim for a replaced plugin.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use ipam_kit::allocate::ledger::Claim;

use super::plugin_keys::PluginKeys;
use super::plugin_lock::LockTicket;
use crate::commit_txn::{GuardedCandidate, TxnAdditions};
use crate::view_token::CompatWrites;

/// The plugin's keys as the view showed them, and our ticket in its lock.
#[derive(Debug)]
pub(super) struct PluginAdditions<'a> {
    pub(super) keys: &'a PluginKeys,
    pub(super) compat_writes: &'a CompatWrites,
    pub(super) ticket: Option<&'a LockTicket>,
}

impl TxnAdditions for PluginAdditions<'_> {
    fn guards(&self) -> Vec<Compare> {
        self.keys.lock().guards(self.ticket)
    }

    fn reads(&self) -> Vec<TxnOp> {
        self.keys.lock().read(self.ticket)
    }

    /// Guards the candidates by the cursor of a plugin that overwrites, which takes the address after
    /// it without a look. A candidate is claimed only while the cursor is where the view saw it, or
    /// on the candidate before it, which another process has just taken.
    fn candidates(&self, claim: &Claim<'_>) -> Vec<GuardedCandidate> {
        let Some(key) = self.cursor_of(claim) else { return GuardedCandidate::unguarded(claim) };
        let mut candidates = Vec::new();
        for candidate in &claim.candidates {
            let guard = Some(self.cursor_unmoved(&key, claim.request.index));
            candidates.push(GuardedCandidate { guard, candidate: *candidate });
        }
        for pair in claim.candidates.windows(2) {
            let at_previous = Compare::value(key.as_str(), CompareOp::Equal, pair[0].to_string());
            candidates.push(GuardedCandidate { guard: Some(at_previous), candidate: pair[1] });
        }
        candidates
    }

    fn reads_when_taken(&self, claim: &Claim<'_>) -> Vec<TxnOp> {
        self.cursor_of(claim).map(|key| TxnOp::get(key, None)).into_iter().collect()
    }

    /// Ranges and cursors, where the plugin looks for them.
    fn writes(&self, claims: &[Claim<'_>], chosen: &[IpAddr]) -> Vec<TxnOp> {
        let mut ops = Vec::new();
        let ranges = self.keys.ranges().filter(|_| !chosen.is_empty());
        if let (Some(key), Some(text)) = (ranges, &self.compat_writes.ranges) {
            let same = Compare::value(key, CompareOp::Equal, text.as_str());
            let put = TxnOp::put(key, text.as_str(), None);
            ops.push(TxnOp::txn(Txn::new().when([same]).or_else([put])));
        }
        let claims = claims.iter().zip(chosen);
        let last: BTreeMap<u32, (&Claim<'_>, IpAddr)> =
            claims.map(|(claim, address)| (claim.request.index, (claim, *address))).collect();
        for (index, (claim, address)) in last {
            if !self.keys.overwrites || self.keys.continues_cursor(claim, self.compat_writes) {
                ops.push(TxnOp::put(self.keys.cursor(index), address.to_string(), None));
            }
        }
        ops
    }
}

impl PluginAdditions<'_> {
    /// Returns the cursor that a claim goes on from.
    fn cursor_of(&self, claim: &Claim<'_>) -> Option<String> {
        let continues_cursor = self.keys.continues_cursor(claim, self.compat_writes);
        continues_cursor.then(|| self.keys.cursor(claim.request.index))
    }

    /// Returns the guard that a cursor is where it was seen.
    fn cursor_unmoved(&self, key: &str, index: u32) -> Compare {
        match self.compat_writes.cursors.get(&index) {
            None => Compare::create_revision(key, CompareOp::Equal, 0),
            Some(seen) => Compare::value(key, CompareOp::Equal, seen.clone()),
        }
    }
}
