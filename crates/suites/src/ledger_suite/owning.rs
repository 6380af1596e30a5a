//! Checks of the owner of a lease.

use super::bench::{LedgerBench, LedgerSubject, claim, done, expect, lost, pool_of};
use super::checks;
use crate::plain::{self, leases, list};
use crate::{CheckResult, Finding};
use ipam_kit::allocate::ledger::{Change, Ledger, Need, ViewQuery};
use ipam_kit::allocate::{Owner, Reach};

checks!(
    an_unknown_owner_holds_nothing,
    the_interface_is_of_the_owner,
    the_container_is_of_the_owner,
    the_network_is_of_the_owner,
    the_node_is_of_the_owner,
    an_owner_may_come_back,
    what_is_held_and_what_is_not_is_proved_at_once,
    a_drop_frees_nothing_of_others,
    a_hint_is_no_truth,
    a_takeover_replaces_the_very_entry,
    a_stale_takeover_is_lost,
);

const A: &str = "10.1.2.7";
const B: &str = "10.1.2.9";

fn an_unknown_owner_holds_nothing<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let nothing = |bench: &LedgerBench<'_, S>| -> CheckResult {
        let held = bench.held(&bench.owner("c9", "eth0")?)?;
        expect(held.is_empty(), || format!("held is {}", leases(&held)))
    };
    nothing(bench)?;
    bench.take(&bench.owner("c1", "eth0")?, A)?;
    nothing(bench)?;
    // There is nothing to drop, and that is no error.
    done(bench.commit(&bench.owner("c9", "eth0")?, &Change::default())?, "an empty change")?;
    Ok(())
}

fn apart<S: LedgerSubject>(bench: &LedgerBench<'_, S>, one: &Owner, other: &Owner) -> CheckResult {
    let lease = bench.take(one, A)?;
    let held = bench.held(other)?;
    expect(held.is_empty(), || format!("{one} took {A}, and {other} holds {}", leases(&held)))?;
    bench.take(other, B)?;
    let change = Change { drop: vec![lease], ..Change::default() };
    done(bench.commit(one, &change)?, "a drop")?;
    let held: Vec<String> = bench.addresses(other)?.iter().map(ToString::to_string).collect();
    expect(held == [B], || format!("{one} dropped {A}, and {other} holds {}", list(&held)))
}

fn the_interface_is_of_the_owner<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    apart(bench, &bench.owner("c1", "eth0")?, &bench.owner("c1", "eth1")?)
}

fn the_container_is_of_the_owner<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    apart(bench, &bench.owner("c1", "eth0")?, &bench.owner("c10", "eth0")?)
}

fn the_network_is_of_the_owner<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let other = LedgerBench::new(bench.subject)?;
    bench.take(&bench.owner("c1", "eth0")?, A)?;
    let held = other.held(&other.owner("c1", "eth0")?)?;
    expect(held.is_empty(), || format!("on another network it holds {}", leases(&held)))?;
    other.take(&other.owner("c2", "eth0")?, A)?;
    Ok(())
}

fn the_node_is_of_the_owner<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    if S::Ledger::REACH == Reach::Node {
        return Err(Finding::NotApplicable(
            "the store serves one node; a ledger whose `REACH` is `Cluster` makes this check run",
        ));
    }
    apart(bench, &bench.owner("c1", "eth0")?, &bench.owner_on("node-2", "c1", "eth0")?)
}

fn an_owner_may_come_back<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let mut revisions = Vec::new();
    for _ in 0..3 {
        let lease = bench.take(&owner, A)?;
        expect(!revisions.contains(&lease.revision), || {
            format!("a new lease has the revision {} of an old one", lease.revision)
        })?;
        revisions.push(lease.revision.clone());
        let change = Change { drop: vec![lease], ..Change::default() };
        done(bench.commit(&owner, &change)?, "a drop")?;
        let held = bench.held(&owner)?;
        expect(held.is_empty(), || format!("after a drop held is {}", leases(&held)))?;
    }
    Ok(())
}

fn what_is_held_and_what_is_not_is_proved_at_once<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let proved = |expected: &[&str]| -> CheckResult {
        for need in [Need::Proof, Need::Claim] {
            let query = ViewQuery {
                owner: &owner,
                known: &[],
                requests: &[],
                scans: &[],
                may_guess: false,
                need,
            };
            let view = bench.open()?.view(&query, None)?;
            expect(view.sure || need == Need::Claim, || {
                "asked for a proof, it is not sure".into()
            })?;
            let held = view.held.iter().map(|lease| lease.address.addr().to_string());
            let held: Vec<String> = held.collect();
            expect(held == expected || !view.sure, || {
                let (need, told, held) = (plain::need(need), list(&held), list(expected));
                format!("asked for {need}, it is sure of {told}, and held is {held}")
            })?;
        }
        Ok(())
    };
    proved(&[])?;
    let lease = bench.take(&owner, A)?;
    proved(&[A])?;
    let change = Change { drop: vec![lease], ..Change::default() };
    done(bench.commit(&owner, &change)?, "a drop")?;
    proved(&[])
}

fn a_drop_frees_nothing_of_others<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let lease = bench.take(&bench.owner("c1", "eth0")?, A)?;
    let before = bench.state()?;
    let change = Change { drop: vec![lease], ..Change::default() };
    lost(bench.commit(&bench.owner("c2", "eth0")?, &change)?, "a drop of another owner's lease")?;
    let after = bench.state()?;
    expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))
}

fn a_hint_is_no_truth<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let known = [bench.take(&bench.owner("c1", "eth0")?, A)?];
    let owner = bench.owner("c2", "eth0")?;
    let query = ViewQuery {
        owner: &owner,
        known: &known,
        requests: &[],
        scans: &[],
        may_guess: false,
        need: Need::Proof,
    };
    let held = bench.open()?.view(&query, None)?.held;
    expect(held.is_empty(), || format!("{A} is c1's, but c2 holds {}", leases(&held)))
}

fn a_takeover_replaces_the_very_entry<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    let lease = bench.take(&first, A)?;
    let request = pool_of(A)?;
    let mut claim = claim(&request, &[A])?;
    claim.replaces = bench.entries()?.remove(&lease.address.addr());
    let change = Change { claim: vec![claim], ..Change::default() };
    done(bench.commit(&second, &change)?, "a takeover")?;
    let (old, new) = (bench.held(&first)?, bench.held(&second)?);
    expect(old.is_empty() && new.len() == 1, || {
        format!("c1 holds {}, c2 {}", leases(&old), leases(&new))
    })
}

fn a_stale_takeover_is_lost<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    let lease = bench.take(&first, A)?;
    let request = pool_of(A)?;
    let mut claim = claim(&request, &[A])?;
    claim.replaces = bench.entries()?.remove(&lease.address.addr());
    let keep = Change { keep: vec![lease], ..Change::default() };
    done(bench.commit(&first, &keep)?, "a keep")?;
    let before = bench.state()?;
    let change = Change { claim: vec![claim], ..Change::default() };
    lost(bench.commit(&second, &change)?, "a takeover of an entry that was written anew")?;
    let after = bench.state()?;
    expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))
}
