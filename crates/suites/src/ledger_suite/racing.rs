//! Several owners at once.

use std::sync::{Arc, Mutex};
use std::thread;

use super::bench::{EndedCommit, LedgerBench, LedgerSubject, claim, expect, lost, pool_of};
use super::checks;
use crate::plain::list;
use crate::{CheckResult, Finding};
use ipam_kit::allocate::ledger::Change;
use ipam_kit::error::Result;

checks!(
    of_owners_who_race_for_an_address_one_wins,
    a_claim_that_comes_between_wins,
    a_confirmation_that_comes_between_saves_a_lease,
    a_release_that_comes_between_is_final,
);

const A: &str = "10.1.2.7";

const NEVER_BETWEEN: &str = "\
    nothing comes between look and change; `LedgerSubject::interleave` on a ledger in `InterleavedLedger` makes \
    this check run";

fn take_any<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
    container: &str,
    addresses: &[&str],
) -> Result<EndedCommit> {
    let request = pool_of(A)?;
    let change = Change { claim: vec![claim(&request, addresses)?], ..Change::default() };
    bench.commit(&bench.owner(container, "eth0")?, &change)
}

fn of_owners_who_race_for_an_address_one_wins<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    for round in 0..4 {
        let bench = LedgerBench::new(bench.subject)?;
        let ends: Vec<Result<EndedCommit>> = thread::scope(|scope| {
            let racer = |number: usize| {
                let bench = &bench;
                scope.spawn(move || take_any(bench, &format!("c{number}"), &[A]))
            };
            let racers: Vec<_> = (0..6).map(racer).collect();
            racers.into_iter().filter_map(|racer| racer.join().ok()).collect()
        });
        expect(ends.len() == 6, || "a commit panicked".to_owned())?;
        let mut winners = 0;
        for end in ends {
            winners += usize::from(matches!(end?, EndedCommit::Done { .. }));
        }
        let state = bench.state()?;
        expect(winners == 1 && state.len() == 1, || {
            format!("round {round}: {winners} of 6 took {A}, and there is {}", list(&state))
        })?;
    }
    Ok(())
}

/// Runs `between` inside the commit of `during`.
fn with_between<S: LedgerSubject, T: Send + 'static>(
    bench: &LedgerBench<'_, S>,
    between: impl FnOnce(&LedgerBench<'_, S>) -> Result<T> + Send + 'static,
    during: impl FnOnce() -> Result<EndedCommit>,
) -> Result<(T, EndedCommit), Finding> {
    let answer = Arc::new(Mutex::new(None));
    let (subject, network, place) = (bench.subject.clone(), bench.network.clone(), answer.clone());
    let called = bench.subject.interleave(Box::new(move || {
        let done = between(&LedgerBench { subject: &subject, network });
        if let Ok(mut place) = place.lock() {
            *place = Some(done);
        }
    }));
    if !called {
        return Err(Finding::NotApplicable(NEVER_BETWEEN));
    }
    let ended = during()?;
    let between = answer.lock().ok().and_then(|mut place| place.take());
    Ok((between.ok_or("nothing came between".to_owned())??, ended))
}

fn a_claim_that_comes_between_wins<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let between = |bench: &LedgerBench<'_, S>| bench.take(&bench.owner("quick", "eth0")?, A);
    let during = || take_any(bench, "slow", &[A]);
    let (_, ended) = with_between(bench, between, during)?;
    lost(ended, "a claim of an address that was taken meanwhile")?;
    let held = bench.addresses(&bench.owner("quick", "eth0")?)?;
    expect(held.len() == 1, || format!("the one who was quicker holds {}", list(&held)))
}

fn a_confirmation_that_comes_between_saves_a_lease<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let old = vec![bench.take(&owner, A)?];
    let (its, keep) = (owner.clone(), old.clone());
    let between =
        move |bench: &LedgerBench<'_, S>| bench.commit(&its, &Change { keep, ..Change::default() });
    let during = || bench.commit(&owner, &Change { drop: old, ..Change::default() });
    let (_, ended) = with_between(bench, between, during)?;
    lost(ended, "a drop of a lease that was confirmed meanwhile")?;
    let held = bench.addresses(&owner)?;
    expect(held.len() == 1, || format!("held is {}", list(&held)))
}

fn a_release_that_comes_between_is_final<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let old = vec![bench.take(&owner, A)?];
    let (its, drop) = (owner.clone(), old.clone());
    let between = move |bench: &LedgerBench<'_, S>| {
        bench.commit(&its, &Change { drop, ..Change::default() })?;
        bench.take(&bench.owner("c2", "eth0")?, A)
    };
    let during = || bench.commit(&owner, &Change { keep: old, ..Change::default() });
    let (_, ended) = with_between(bench, between, during)?;
    lost(ended, "a keep of a lease that was released meanwhile")?;
    let held = bench.addresses(&bench.owner("c2", "eth0")?)?;
    expect(held.len() == 1, || format!("c2 took {A} meanwhile and holds {}", list(&held)))
}
