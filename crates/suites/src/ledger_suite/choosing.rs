//! Addresses that the store chooses, of ledgers whose store does.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::json;

use super::bench::{EndedCommit, LedgerBench, LedgerSubject, done, ended, expect};
use super::checks;
use crate::plain::{leases, list};
use crate::{CheckResult, Finding};
use ipam_kit::allocate::ledger::{Change, Claim, Ledger, Need, Scan, ViewQuery, unknown_ranges};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Strategy};
use ipam_kit::pool::{Pool, RangeSet};

checks!(
    an_owner_holds_what_the_store_chose,
    a_full_pool_of_the_store_changes_nothing,
    a_pool_of_the_store_can_be_searched,
);

/// The commit of a claim in the store's pool; without candidates the store chooses.
fn claim_in_store<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
    owner: &Owner,
    candidates: impl FnOnce(&RangeSet) -> Vec<IpAddr>,
) -> Result<(EndedCommit, RangeSet), Finding> {
    let name = bench.subject.store_pool(&bench.network);
    let pool = Pool::parse(&json!({"name": name}), "pool")?;
    let requests = PoolRequest::read(&[pool], Strategy::RoundRobin)?;
    let mut ledger = bench.open()?;
    let view = ledger.view(
        &ViewQuery {
            owner,
            known: &[],
            requests: &requests,
            scans: &[Scan::None],
            may_guess: false,
            need: Need::Claim,
        },
        None,
    )?;
    let request = &requests[0];
    let set = view.pools.first().and_then(|pool| pool.set.clone());
    let set = set.ok_or_else(|| unknown_ranges(request))?;
    let candidates = candidates(&set);
    let claim = Claim { request, set: set.clone(), candidates, next: Scan::None, replaces: None };
    let change = Change { claim: vec![claim], ..Change::default() };
    Ok((ended(ledger.commit(owner, view.token, &change)?)?, set))
}

fn choose<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
    owner: &Owner,
) -> Result<(EndedCommit, RangeSet), Finding> {
    claim_in_store(bench, owner, |_| Vec::new())
}

/// The lease that the store chose, after a proof that the owner holds it.
fn chosen<S: LedgerSubject>(bench: &LedgerBench<'_, S>, owner: &Owner) -> Result<Lease, Finding> {
    let (commit, set) = choose(bench, owner)?;
    let (_, claimed) = done(commit, "a claim in a pool with free addresses")?;
    let [lease] = &claimed[..] else {
        return Err(format!("one claim was made, answered is {}", leases(&claimed)).into());
    };
    let refusal = set.refusal(lease.address.addr());
    expect(refusal.is_none(), || {
        format!("{} is {}", lease.address, refusal.clone().unwrap_or_default())
    })?;
    let held = bench.held(owner)?;
    let is_held = held.len() == 1
        && held[0].address.addr() == lease.address.addr()
        && held[0].revision == lease.revision;
    expect(is_held, || {
        format!("the claim answers {}, held is {}", leases(&claimed), leases(&held))
    })?;
    Ok(lease.clone())
}

fn an_owner_holds_what_the_store_chose<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let first = chosen(bench, &bench.owner("c1", "eth0")?)?;
    let second = chosen(bench, &bench.owner("c2", "eth0")?)?;
    expect(first.address.to_string().ends_with("/28"), || format!("it is {}", first.address))?;
    expect(first.address != second.address, || format!("both owners got {}", first.address))
}

fn a_full_pool_of_the_store_changes_nothing<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let mut given = BTreeSet::new();
    for number in 0..13 {
        let owner = bench.owner(&format!("c{number}"), "eth0")?;
        given.insert(chosen(bench, &owner)?.address.addr());
    }
    expect(given.len() == 13, || format!("13 owners got {}", list(&given)))?;
    let before = bench.state()?;
    let late = bench.owner("late", "eth0")?;
    match choose(bench, &late)? {
        (EndedCommit::Full, _) => {}
        (other, _) => {
            return Err(format!("a claim in a full pool {}", other.told()).into());
        }
    }
    let after = bench.state()?;
    expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))?;
    let first = bench.owner("c0", "eth0")?;
    let change = Change { drop: bench.held(&first)?, ..Change::default() };
    done(bench.commit(&first, &change)?, "a drop")?;
    chosen(bench, &late).map(drop)
}

fn a_pool_of_the_store_can_be_searched<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let wanted = IpAddr::from([10, 1, 2, 7]);
    let owner = bench.owner("c1", "eth0")?;
    let (commit, _) = claim_in_store(bench, &owner, |_| vec![wanted])?;
    let (_, claimed) = done(commit, "a claim of a free address")?;
    let held = bench.addresses(&owner)?;
    expect(held == [wanted], || {
        format!("{wanted} was claimed, answered is {}, held {}", leases(&claimed), list(&held))
    })
}
