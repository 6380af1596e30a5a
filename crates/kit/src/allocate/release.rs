//! Releases over any ledger: retry, and proof that nothing is left.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ledger::{Change, Commit, Ledger, Need, View, ViewQuery};
use super::ledger_allocator::{LedgerAllocator, ROUNDS, contended};
use super::unknown_commits::UnknownCommits;
use super::{Lease, Owner, PartialRelease};
use crate::error::{Error, ErrorCode, Result};

impl<L: Ledger> LedgerAllocator<L> {
    /// DEL: releases all leases of the owner and returns them.
    ///
    /// `known` are hints from the attachment record: a stale hint must not release the lease of
    /// another owner, and a missing one must not leave a lease behind.
    pub(super) fn release_all(&mut self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>> {
        let may_guess = !known.is_empty();
        let mut is_guess = may_guess;
        let mut first_shown = None;
        self.release_where(owner, known, may_guess, |held| {
            if std::mem::take(&mut is_guess) {
                return held.to_vec();
            }
            // Leases that are taken or confirmed after the first view belong to a later ADD.
            let first_shown = first_shown.get_or_insert_with(|| held.to_vec());
            let is_later = held.iter().any(|lease| is_of_later_add(lease, first_shown));
            if is_later { Vec::new() } else { held.to_vec() }
        })
    }

    /// Releases some leases of the owner and leaves the others unchanged: the undo of an ADD, or
    /// the leases of a stale record, while the owner may have taken more since.
    pub(super) fn release_part(
        &mut self,
        owner: &Owner,
        part: &PartialRelease,
    ) -> Result<Vec<Lease>> {
        self.release_where(owner, &[], false, |held| {
            held.iter().filter(|lease| part.covers(lease)).cloned().collect()
        })
    }

    /// CHECK: the owner's leases.
    pub(super) fn held(&mut self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>> {
        Ok(self.proof(owner, known, None)?.held)
    }

    /// Releases the leases that `choose` picks among those that are held; done when it picks none.
    fn release_where(
        &mut self,
        owner: &Owner,
        known: &[Lease],
        may_guess: bool,
        choose: impl FnMut(&[Lease]) -> Vec<Lease>,
    ) -> Result<Vec<Lease>> {
        let mut unknown = UnknownCommits::default();
        let released = self.release_with_retries(owner, known, may_guess, choose, &mut unknown);
        released.map_err(|error| unknown.explain(error))
    }

    fn release_with_retries(
        &mut self,
        owner: &Owner,
        known: &[Lease],
        may_guess: bool,
        mut choose: impl FnMut(&[Lease]) -> Vec<Lease>,
        unknown: &mut UnknownCommits,
    ) -> Result<Vec<Lease>> {
        let mut view = match may_guess {
            true => self.guess(owner, known)?,
            false => self.proof(owner, known, None)?,
        };
        for _ in 0..ROUNDS {
            let drop = choose(&view.held);
            if drop.is_empty() {
                return if view.sure { Ok(drop) } else { Err(not_sure(owner)) };
            }
            let chosen = revisions(&drop);
            let rest = view.held.into_iter().filter(|lease| !chosen.contains(&revision(lease)));
            let change = Change { leave: rest.collect(), drop, ..Change::default() };
            let next = match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { .. } => return Ok(change.drop),
                Commit::Lost { view, .. } => view.filter(|view| view.sure),
                Commit::Outdated | Commit::Full { .. } => None,
                Commit::Unknown => {
                    unknown.add(&change)?;
                    None
                }
            };
            view = match next {
                Some(next) => next,
                None => self.proof(owner, known, None)?,
            };
            self.check_deadline()?;
        }
        Err(contended(owner))
    }

    /// The owner's leases, perhaps guessed: the guarded commit that follows fails on a wrong guess.
    fn guess(&mut self, owner: &Owner, known: &[Lease]) -> Result<View<L::Token>> {
        let view = self.ledger.view(&release_query(owner, known, true), None)?;
        if view.sure || shows_all(&view.held, known) {
            return Ok(view);
        }
        self.proof(owner, known, Some(view.token))
    }

    /// The owner's leases: proved to be all, or at least all that the record knows.
    fn proof(
        &mut self,
        owner: &Owner,
        known: &[Lease],
        earlier: Option<L::Token>,
    ) -> Result<View<L::Token>> {
        let view = self.ledger.view(&release_query(owner, known, false), earlier)?;
        if view.sure || shows_all(&view.held, known) { Ok(view) } else { Err(not_sure(owner)) }
    }
}

fn release_query<'a>(owner: &'a Owner, known: &'a [Lease], may_guess: bool) -> ViewQuery<'a> {
    ViewQuery { owner, known, requests: &[], scans: &[], may_guess, need: Need::Proof }
}

/// Whether a view shows all that the record knows of, and the record knows of anything.
fn shows_all(held: &[Lease], known: &[Lease]) -> bool {
    let shown: BTreeSet<IpAddr> = held.iter().map(|lease| lease.address.addr()).collect();
    !known.is_empty() && known.iter().all(|lease| shown.contains(&lease.address.addr()))
}

fn not_sure(owner: &Owner) -> Error {
    let message = format!("the store did not confirm which addresses {owner} holds");
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise("check the store and its servers, then call again")
}

/// The very leases that are held.
fn revisions(held: &[Lease]) -> BTreeSet<(IpAddr, String)> {
    held.iter().map(revision).collect()
}

fn revision(lease: &Lease) -> (IpAddr, String) {
    (lease.address.addr(), lease.revision.to_string())
}

/// Whether an ADD has taken or confirmed a lease since these were shown. Others may have edited what
/// the store keeps of it: the revision changes then, and the time of the confirmation does not, or
/// it is gone.
fn is_of_later_add(lease: &Lease, shown: &[Lease]) -> bool {
    let Some(shown) = shown.iter().find(|it| it.address.addr() == lease.address.addr()) else {
        return true;
    };
    match (shown.confirmed, lease.confirmed) {
        (Some(_), None) => false,
        (None, None) => shown.revision != lease.revision,
        (before, after) => before != after,
    }
}
