//! One view after another, with nothing committed between them.

use super::bench::{LedgerBench, LedgerSubject, claim, done, ended, expect, lost, pool_of};
use super::checks;
use crate::plain::list;
use crate::{CheckResult, Finding};
use ipam_kit::allocate::ledger::{Change, Ledger, Need, Scan, ViewQuery};
use ipam_kit::allocate::{Owner, PoolRequest};

checks!(
    a_view_after_another_is_committed_on,
    a_proof_after_a_guess_shows_what_is_held,
    a_commit_on_a_view_after_another_is_guarded,
);

const A: &str = "10.1.2.7";
const B: &str = "10.1.2.9";

fn query<'a>(
    owner: &'a Owner,
    request: &'a PoolRequest,
    scans: &'a [Scan],
    need: Need,
) -> ViewQuery<'a> {
    let requests = std::slice::from_ref(request);
    ViewQuery { owner, known: &[], requests, scans, may_guess: false, need }
}

/// A ledger that keeps the lock of the view before waits for itself here.
fn a_view_after_another_is_committed_on<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let (owner, request) = (bench.owner("c1", "eth0")?, pool_of(A)?);
    let mut ledger = bench.open()?;
    let mut view = ledger.view(&query(&owner, &request, &[Scan::None], Need::Claim), None)?;
    for look in [Scan::Full, Scan::None] {
        let scans = [look];
        view = ledger.view(&query(&owner, &request, &scans, Need::Claim), Some(view.token))?;
    }
    let change = Change { claim: vec![claim(&request, &[A])?], ..Change::default() };
    let after = ended(ledger.commit(&owner, view.token, &change)?)?;
    done(after, "a claim of a free address on the third view")?;
    // And it is over: nothing keeps others out.
    bench.take(&bench.owner("c2", "eth0")?, B)?;
    Ok(())
}

fn a_proof_after_a_guess_shows_what_is_held<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let (owner, request) = (bench.owner("c1", "eth0")?, pool_of(B)?);
    let lease = bench.take(&owner, A)?;
    let mut ledger = bench.open()?;
    let scans = [Scan::None];
    let guess = ViewQuery { may_guess: true, ..query(&owner, &request, &scans, Need::Claim) };
    let guessed = ledger.view(&guess, None)?;
    let proof = query(&owner, &request, &scans, Need::Proof);
    let proved = ledger.view(&proof, Some(guessed.token))?;
    let held = list(proved.held.iter().map(|lease| lease.address.addr()));
    expect(proved.sure && held == lease.address.addr().to_string(), || {
        format!("held is {A}, the proof after a guess shows {held}")
    })
}

fn a_commit_on_a_view_after_another_is_guarded<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    // What comes between is nothing yet: it tells whether anything can.
    if !bench.subject.interleave(Box::new(|| ())) {
        return Err(Finding::NotApplicable(
            "nothing comes between two views; `LedgerSubject::interleave` on a ledger in `InterleavedLedger` makes \
             this check run",
        ));
    }
    let (owner, request) = (bench.owner("c1", "eth0")?, pool_of(A)?);
    let (scans, mut ledger) = ([Scan::None], bench.open()?);
    let first = ledger.view(&query(&owner, &request, &scans, Need::Claim), None)?;
    bench.take(&owner, A)?;
    // It may show what the first one showed.
    let second = ledger.view(&query(&owner, &request, &scans, Need::Claim), Some(first.token))?;
    let change = Change { claim: vec![claim(&request, &[B])?], ..Change::default() };
    let after = ended(ledger.commit(&owner, second.token, &change)?)?;
    lost(after, "a claim by an owner who has taken another lease since the first view")?;
    let held = bench.addresses(&owner)?;
    expect(held.len() == 1, || format!("held is {}", list(&held)))
}
