//! What a replaced plugin makes us add to the transaction of a claim.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use ipam_kit::allocate::ledger::Claim;

use super::lock::Turn;
use super::old_keys::OldKeys;
use crate::claim::{Additions, Way};
use crate::token::Along;

/// The plugin's keys as the view showed them, and our turn in its lock.
#[derive(Debug)]
pub(super) struct WithPlugin<'a> {
    pub(super) keys: &'a OldKeys,
    pub(super) along: &'a Along,
    pub(super) turn: Option<&'a Turn>,
}

impl Additions for WithPlugin<'_> {
    fn guards(&self) -> Vec<Compare> {
        self.keys.lock().guards(self.turn)
    }

    fn reads(&self) -> Vec<TxnOp> {
        self.keys.lock().read(self.turn)
    }

    /// Beside a plugin that takes what comes next unseen, a candidate is given only while the
    /// cursor stands where the candidates begin, or on the one before it, which somebody has just
    /// taken.
    fn ways(&self, claim: &Claim<'_>) -> Vec<Way> {
        let Some(key) = self.cursor_of(claim) else { return Way::plain(claim) };
        let seen = || self.at_cursor(&key, claim.request.index);
        let at =
            |before: &IpAddr| Compare::value(key.as_str(), CompareOp::Equal, before.to_string());
        let first = claim.candidates.iter().map(|c| Way { guard: Some(seen()), candidate: *c });
        let pairs = claim.candidates.windows(2);
        let after = pairs.map(|pair| Way { guard: Some(at(&pair[0])), candidate: pair[1] });
        first.chain(after).collect()
    }

    fn reads_after(&self, claim: &Claim<'_>) -> Vec<TxnOp> {
        self.cursor_of(claim).map(|key| TxnOp::get(key, None)).into_iter().collect()
    }

    /// What the plugin is to find.
    fn writes(&self, claims: &[Claim<'_>], chosen: &[IpAddr]) -> Vec<TxnOp> {
        let mut ops = Vec::new();
        let ranges = self.keys.ranges().filter(|_| !chosen.is_empty());
        if let (Some(key), Some(text)) = (ranges, &self.along.ranges) {
            let same = Compare::value(key, CompareOp::Equal, text.as_str());
            let put = TxnOp::put(key, text.as_str(), None);
            ops.push(TxnOp::txn(Txn::new().when([same]).or_else([put])));
        }
        let claims = claims.iter().zip(chosen);
        let last: BTreeMap<u32, (&Claim<'_>, IpAddr)> =
            claims.map(|(claim, address)| (claim.request.index, (claim, *address))).collect();
        for (index, (claim, address)) in last {
            if !self.keys.overwrites || self.keys.goes_on(claim, self.along) {
                ops.push(TxnOp::put(self.keys.cursor(index), address.to_string(), None));
            }
        }
        ops
    }
}

impl WithPlugin<'_> {
    /// The cursor that a claim goes on from.
    fn cursor_of(&self, claim: &Claim<'_>) -> Option<String> {
        let goes_on = self.keys.goes_on(claim, self.along);
        goes_on.then(|| self.keys.cursor(claim.request.index))
    }

    /// That a cursor is where it was seen.
    fn at_cursor(&self, key: &str, index: u32) -> Compare {
        match self.along.cursors.get(&index) {
            None => Compare::create_revision(key, CompareOp::Equal, 0),
            Some(seen) => Compare::value(key, CompareOp::Equal, seen.clone()),
        }
    }
}
