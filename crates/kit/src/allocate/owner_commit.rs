//! A commit of an owner that has an index: its guard, its parts, and the withdrawal of its claims.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::ledger::{Change, Commit};
use super::owner_index::{IndexedLease, LeaseRevision, OwnerIndex, now};
use super::removal::may_be_held;
use super::{Lease, Owner};
use crate::error::{Error, Result};

/// The guard of a commit: the owner's state at the view.
#[derive(Clone, Debug, Default)]
pub struct OwnerGuard {
    /// The revision of the owner's key; `None` if the key was missing.
    pub revision: Option<i64>,
    /// The index at that revision; `None` if only the revision is remembered.
    pub owner_index: Option<OwnerIndex>,
}

impl OwnerGuard {
    /// The guard of an owner whose key does not exist.
    pub fn without_key(owner: &Owner) -> Self {
        Self { revision: None, owner_index: Some(OwnerIndex::written(owner, 0, Vec::new())) }
    }

    /// Adds what the owner proves to hold, where it is known what else it does.
    pub fn add(&mut self, item: IndexedLease) {
        if let Some(owner_index) = &mut self.owner_index {
            owner_index.leases.push(item);
        }
    }

    /// Whether a change says of everything that the owner held, and of nothing else, what becomes
    /// of it.
    pub fn is_all_of(&self, change: &Change<'_>) -> bool {
        let said = [&change.keep, &change.leave, &change.drop];
        let said: BTreeSet<IpAddr> =
            said.into_iter().flatten().map(|lease| lease.address.addr()).collect();
        match (&self.owner_index, self.revision) {
            (Some(owner_index), _) => {
                let held = owner_index.leases.iter().map(|item| item.address.addr());
                held.collect::<BTreeSet<_>>() == said
            }
            (None, None) => said.is_empty(),
            // The caller knows how many leases have the revision.
            (None, Some(_)) => true,
        }
    }

    /// The owner's index after a change, with the address of each claim.
    pub fn next(&self, owner: &Owner, change: &Change<'_>, chosen: &[IpAddr]) -> OwnerIndex {
        let mut items: Vec<IndexedLease> =
            change.keep.iter().map(|lease| self.item(lease)).collect();
        for lease in &change.leave {
            let since = LeaseRevision::read(&lease.revision);
            items.push(IndexedLease { since, ..self.item(lease) });
        }
        for (claim, address) in change.claim.iter().zip(chosen) {
            items.push(IndexedLease::of(&claim.lease(*address, Value::Null), now()));
        }
        let before = self.owner_index.as_ref().map_or(0, |seen| seen.generation);
        // The generation in the store may be any number.
        OwnerIndex::written(owner, before.wrapping_add(1), items)
    }

    /// A lease that stays, with the time at which it was taken first.
    fn item(&self, lease: &Lease) -> IndexedLease {
        let mut items = self.owner_index.iter().flat_map(|seen| &seen.leases);
        let before = items.find(|item| item.address.addr() == lease.address.addr());
        IndexedLease::of(lease, before.map_or_else(now, |item| item.taken))
    }
}

/// Makes a change: in one commit or, if the owner only releases and that more than `most` leases,
/// in several. `without_key` is the token after the first of them, which deletes the owner's key.
///
/// # Errors
/// As `commit`. The parts before are done.
pub fn commit_in_parts<T>(
    change: &Change<'_>,
    most: usize,
    mut token: T,
    without_key: impl Fn(T) -> T,
    mut commit: impl FnMut(&T, &Change<'_>) -> Result<Commit<T>>,
) -> Result<Commit<T>> {
    let Change { keep, claim, leave, drop } = change;
    let only_drops = keep.is_empty() && claim.is_empty() && leave.is_empty();
    let is_empty = keep.is_empty() && claim.is_empty() && drop.is_empty();
    if !(is_empty || only_drops && drop.len() > most) {
        return commit(&token, change);
    }
    for part in drop.chunks(most) {
        let part = Change { drop: part.to_vec(), ..Change::default() };
        match commit(&token, &part)? {
            Commit::Done { .. } => token = without_key(token),
            Commit::Unknown => return Ok(Commit::Unknown),
            // The view of a part is not that of the whole change.
            Commit::Lost { .. } | Commit::Full { .. } | Commit::Outdated => {
                return Ok(Commit::Outdated);
            }
        }
    }
    Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() })
}

/// A commit that was done at a revision, with the address of each claim.
pub fn done<T>(change: &Change<'_>, chosen: &[IpAddr], revision: i64) -> Commit<T> {
    let (kept, claimed) = written(change, chosen, revision);
    Commit::Done { kept, claimed }
}

/// The change after [`done`] that drops the claims and leaves the rest: the commit was made in a
/// store that is not the known one.
pub fn withdrawal(change: &Change<'_>, chosen: &[IpAddr], revision: i64) -> Change<'static> {
    let (kept, drop) = written(change, chosen, revision);
    let leave = kept.into_iter().chain(change.leave.iter().cloned()).collect();
    Change { drop, leave, ..Change::default() }
}

/// The error of a call after a withdrawal: `error` is the reason, and `confirmed` says whether the
/// store confirmed it. Without that, the error names the addresses.
pub fn withdrawn(error: Error, change: &Change<'_>, confirmed: Result<bool>) -> Error {
    let failed = match confirmed {
        Ok(true) => return error,
        Ok(false) => None,
        Err(failed) => Some(failed),
    };
    let unreleased = may_be_held(change.drop.iter().map(|lease| lease.address.addr()));
    error.and(failed.into_iter().chain([unreleased]))
}

/// The leases that stayed and those that were claimed by a change.
fn written(change: &Change<'_>, chosen: &[IpAddr], revision: i64) -> (Vec<Lease>, Vec<Lease>) {
    let together = change.keep.len() + chosen.len();
    let leases = if change.leave.is_empty() { together } else { 0 };
    let revision = LeaseRevision { revision, leases }.to_json();
    let kept =
        change.keep.iter().map(|lease| Lease { revision: revision.clone(), ..lease.clone() });
    let claimed = change.claim.iter().zip(chosen);
    let claimed = claimed.map(|(claim, address)| claim.lease(*address, revision.clone()));
    (kept.collect(), claimed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    fn drops(addresses: &[&str]) -> Change<'static> {
        let lease = |address: &&str| Lease::bare(address.parse().unwrap(), Value::Null);
        Change { drop: addresses.iter().map(lease).collect(), ..Change::default() }
    }

    #[test]
    fn a_change_with_more_drops_than_fit_is_made_in_parts() {
        let change = drops(&["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"]);
        let commit = |most: usize, answers: &[Commit<bool>]| {
            let mut parts = Vec::new();
            let mut answers = answers.iter().cloned();
            let outcome = commit_in_parts(
                &change,
                most,
                false,
                |_| true,
                |token, part| {
                    parts.push((*token, part.drop.len()));
                    Ok(answers.next().unwrap())
                },
            );
            (parts, outcome.unwrap())
        };
        let done = Commit::Done { kept: Vec::new(), claimed: Vec::new() };
        let lost = Commit::Lost { taken: Vec::new(), view: None };
        let (parts, outcome) = commit(2, &[done.clone(), done.clone()]);
        assert_eq!(parts, [(false, 2), (true, 1)]);
        assert!(matches!(outcome, Commit::Done { .. }));
        let (parts, outcome) = commit(2, &[done, lost.clone()]);
        assert_eq!(parts.len(), 2);
        assert!(matches!(outcome, Commit::Outdated));
        let (parts, outcome) = commit(2, &[Commit::Unknown]);
        assert!(parts.len() == 1 && matches!(outcome, Commit::Unknown));
        let (parts, outcome) = commit(3, &[lost]);
        assert!(parts == [(false, 3)] && matches!(outcome, Commit::Lost { .. }));
    }

    #[test]
    fn an_unconfirmed_withdrawal_names_the_addresses_that_may_be_held() {
        let change = drops(&["10.0.0.7/24"]);
        let restored = || Error::new(ErrorCode::TRY_AGAIN, "restored");
        assert_eq!(withdrawn(restored(), &change, Ok(true)).to_string(), "restored");
        let failed = Error::new(ErrorCode::BACKEND, "permission denied");
        for (confirmed, text) in [
            (Ok(false), "restored; outcome unknown"),
            (Err(failed), "restored; permission denied; outcome unknown"),
        ] {
            let error = withdrawn(restored(), &change, confirmed);
            assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
            assert!(error.to_string().starts_with(text), "{error}");
            assert!(error.to_string().contains("may still be held: 10.0.0.7"), "{error}");
        }
    }
}
