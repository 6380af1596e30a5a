//! One commit after the other.

use super::bench::{EndedCommit, LedgerBench, LedgerSubject, claim, done, expect, lost, pool_of};
use super::checks;
use crate::plain::{self, leases, list, optional};
use crate::{CheckResult, Finding};
use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Change, Ledger, Need, Scan, Used, ViewQuery};

checks!(
    a_claim_is_held_by_its_owner,
    candidates_are_tried_in_order,
    a_lost_claim_changes_nothing,
    the_holder_of_a_single_candidate_is_named,
    a_claim_of_two_addresses_is_all_or_nothing,
    the_owner_holds_what_was_kept_and_claimed_and_no_more,
    a_change_that_leaves_out_a_lease_is_lost,
    a_kept_lease_gets_a_new_revision,
    a_stale_keep_is_lost,
    a_stale_drop_is_lost,
    a_freed_lease_cannot_be_kept,
    both_families_are_taken_in_one_step,
    a_guess_is_guarded,
    a_look_shows_what_is_taken,
    the_cursor_follows_what_is_given,
);

const A: &str = "10.1.2.7";
const B: &str = "10.1.2.9";
const C: &str = "10.1.3.4";

fn a_claim_is_held_by_its_owner<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let lease = bench.take(&owner, A)?;
    expect(lease.address.to_string() == "10.1.2.7/24", || format!("it is {}", lease.address))?;
    let gateway = lease.gateway.map(|gateway| gateway.to_string());
    expect(gateway.as_deref() == Some("10.1.2.1"), || {
        format!("its gateway is {}", optional(gateway.as_ref()))
    })?;
    let held = bench.held(&owner)?;
    expect(held.len() == 1 && held[0].address.addr() == lease.address.addr(), || {
        format!("{A} was claimed, held is {}", leases(&held))
    })?;
    expect(held[0].revision == lease.revision, || {
        format!("the claim said revision {}, the view {}", lease.revision, held[0].revision)
    })
}

fn candidates_are_tried_in_order<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    let request = pool_of(A)?;
    let change = Change { claim: vec![claim(&request, &[B, A])?], ..Change::default() };
    let (_, claimed) = done(bench.commit(&first, &change)?, "a claim of free addresses")?;
    expect(claimed.len() == 1 && claimed[0].address.addr().to_string() == B, || {
        format!("of {B} and {A}, both free, it took {}", leases(&claimed))
    })?;
    match bench.commit(&second, &change)? {
        EndedCommit::Done { claimed, .. } => {
            expect(claimed.len() == 1 && claimed[0].address.addr().to_string() == A, || {
                format!("{B} was taken and {A} free, it took {}", leases(&claimed))
            })
        }
        // A store may try only the first.
        EndedCommit::Lost(_) | EndedCommit::Full => {
            let held = bench.held(&second)?;
            expect(held.is_empty(), || format!("it was lost, but holds {}", leases(&held)))
        }
    }
}

fn a_lost_claim_changes_nothing<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    bench.take(&first, A)?;
    let (keep, drop) = two_leases(bench, "c2")?;
    let before = bench.state()?;
    let request = pool_of(A)?;
    let change = Change {
        keep: vec![keep],
        drop: vec![drop],
        claim: vec![claim(&request, &[A])?],
        ..Change::default()
    };
    lost(bench.commit(&second, &change)?, "a claim of a taken address")?;
    let after = bench.state()?;
    expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))
}

/// Two leases of a container's eth0: 10.1.3.4 and fd00:1::9.
fn two_leases<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
    container: &str,
) -> Result<(Lease, Lease), Finding> {
    let (v4, v6) = (pool_of(C)?, pool_of("fd00:1::9")?);
    let claims = vec![claim(&v4, &[C])?, claim(&v6, &["fd00:1::9"])?];
    let change = Change { claim: claims, ..Change::default() };
    let owner = bench.owner(container, "eth0")?;
    let (_, mut claimed) = done(bench.commit(&owner, &change)?, "a claim of two free addresses")?;
    match (claimed.pop(), claimed.pop()) {
        (Some(second), Some(first)) if claimed.is_empty() => Ok((first, second)),
        _ => Err("two claims were done, but not with two leases".to_owned().into()),
    }
}

fn the_holder_of_a_single_candidate_is_named<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    bench.take(&bench.owner("c1", "eth3")?, A)?;
    let request = pool_of(A)?;
    let change = Change { claim: vec![claim(&request, &[A])?], ..Change::default() };
    let taken = lost(bench.commit(&bench.owner("c2", "eth0")?, &change)?, "a taken address")?;
    let holder = taken.first().and_then(|taken| taken.holder.as_ref()?.holder.clone());
    let named = holder.as_ref().is_some_and(|h| {
        h.container == "c1" && h.ifname.as_deref().is_none_or(|ifname| ifname == "eth3")
    });
    expect(named && taken[0].claim == 0 && taken[0].address.to_string() == A, || {
        format!("c1/eth3 holds {A}, told is {}", plain::taken(&taken))
    })
}

fn a_claim_of_two_addresses_is_all_or_nothing<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    bench.take(&bench.owner("c1", "eth0")?, C)?;
    let before = bench.state()?;
    let (free, taken) = (pool_of(A)?, pool_of(C)?);
    let second = bench.owner("c2", "eth0")?;
    for claims in [[(&free, A), (&taken, C)], [(&taken, C), (&free, A)]] {
        let claims = claims.map(|(request, address)| claim(request, &[address]));
        let claims = claims.into_iter().collect::<Result<_, _>>()?;
        let change = Change { claim: claims, ..Change::default() };
        lost(bench.commit(&second, &change)?, "a claim of a free and a taken address")?;
        let (held, after) = (bench.held(&second)?, bench.state()?);
        expect(held.is_empty() && before == after, || format!("there is {}", list(&after)))?;
    }
    Ok(())
}

fn the_owner_holds_what_was_kept_and_claimed_and_no_more<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let (keep, drop) = two_leases(bench, "c1")?;
    let dropped = drop.address.addr();
    let request = pool_of(A)?;
    let change = Change {
        keep: vec![keep],
        drop: vec![drop],
        claim: vec![claim(&request, &[A])?],
        ..Change::default()
    };
    let (kept, claimed) = done(bench.commit(&owner, &change)?, "keep, drop and claim in one")?;
    expect(kept.len() == 1 && claimed.len() == 1, || {
        format!("kept are {}, claimed {}", leases(&kept), leases(&claimed))
    })?;
    let held: Vec<String> = bench.addresses(&owner)?.iter().map(ToString::to_string).collect();
    expect(held == [A, C], || format!("{C} was kept and {A} claimed, held is {}", list(&held)))?;
    let entries = bench.entries()?;
    expect(!entries.contains_key(&dropped), || format!("{dropped} was dropped, but is there"))?;
    let change = Change { drop: bench.held(&owner)?, ..Change::default() };
    done(bench.commit(&owner, &change)?, "a drop of all that is held")?;
    let left = bench.state()?;
    expect(left.is_empty(), || format!("all was dropped, left is {}", list(&left)))
}

fn a_change_that_leaves_out_a_lease_is_lost<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let (one, other) = two_leases(bench, "c1")?;
    for change in [
        Change { keep: vec![one.clone()], ..Change::default() },
        Change { drop: vec![other], ..Change::default() },
        Change::default(),
    ] {
        let before = bench.state()?;
        lost(bench.commit(&owner, &change)?, "a change that does not name all that is held")?;
        let after = bench.state()?;
        expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))?;
    }
    Ok(())
}

fn a_kept_lease_gets_a_new_revision<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    let mut seen = vec![bench.take(&owner, A)?.revision];
    for _ in 0..5 {
        let change = Change { keep: bench.held(&owner)?, ..Change::default() };
        let (kept, _) = done(bench.commit(&owner, &change)?, "a keep")?;
        let held = bench.held(&owner)?;
        expect(kept.len() == 1 && held.len() == 1 && kept[0].revision == held[0].revision, || {
            format!("the keep said {}, held is {}", leases(&kept), leases(&held))
        })?;
        expect(!seen.contains(&kept[0].revision), || {
            format!("revision {} again after {}", kept[0].revision, list(&seen))
        })?;
        seen.push(kept[0].revision.clone());
    }
    Ok(())
}

/// A lease as it was, and as it is after it was written anew.
fn restamped<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> Result<(Lease, Lease), Finding> {
    let owner = bench.owner("c1", "eth0")?;
    let old = bench.take(&owner, A)?;
    let change = Change { keep: vec![old.clone()], ..Change::default() };
    let (kept, _) = done(bench.commit(&owner, &change)?, "a keep")?;
    Ok((old, kept.into_iter().next().ok_or("a keep answers no lease".to_owned())?))
}

fn a_stale_keep_is_lost<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (old, _) = restamped(bench)?;
    let before = bench.state()?;
    let change = Change { keep: vec![old], ..Change::default() };
    lost(bench.commit(&bench.owner("c1", "eth0")?, &change)?, "a keep with a stale revision")?;
    expect(before == bench.state()?, || "something has changed".to_owned())
}

fn a_stale_drop_is_lost<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (old, new) = restamped(bench)?;
    let owner = bench.owner("c1", "eth0")?;
    let before = bench.state()?;
    let change = Change { drop: vec![old], ..Change::default() };
    lost(bench.commit(&owner, &change)?, "a drop with a stale revision")?;
    expect(before == bench.state()?, || "something has changed".to_owned())?;
    let change = Change { drop: vec![new], ..Change::default() };
    done(bench.commit(&owner, &change)?, "a drop with the revision that a keep told")?;
    Ok(())
}

fn a_freed_lease_cannot_be_kept<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    let old = bench.take(&first, A)?;
    let drop = Change { drop: vec![old.clone()], ..Change::default() };
    done(bench.commit(&first, &drop)?, "a drop")?;
    let keep = Change { keep: vec![old], ..Change::default() };
    lost(bench.commit(&first, &keep)?, "a keep of a lease that was freed")?;
    bench.take(&second, A)?;
    let before = bench.state()?;
    lost(bench.commit(&first, &keep)?, "a keep of a lease that is another owner's now")?;
    expect(before == bench.state()?, || "something has changed".to_owned())
}

fn both_families_are_taken_in_one_step<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    let (v4, v6) = two_leases(bench, "c1")?;
    expect(v4.address.to_string() == "10.1.3.4/24", || v4.address.to_string())?;
    expect(v6.address.to_string() == "fd00:1::9/64", || v6.address.to_string())?;
    let held = bench.addresses(&bench.owner("c1", "eth0")?)?;
    expect(held == [v4.address.addr(), v6.address.addr()], || format!("held is {}", list(&held)))
}

fn a_guess_is_guarded<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let owner = bench.owner("c1", "eth0")?;
    bench.take(&owner, A)?;
    let request = pool_of(B)?;
    let mut ledger = bench.open()?;
    let query = ViewQuery {
        owner: &owner,
        known: &[],
        requests: std::slice::from_ref(&request),
        scans: &[Scan::None],
        may_guess: true,
        need: Need::Claim,
    };
    let view = ledger.view(&query, None)?;
    if !view.held.is_empty() {
        return Ok(());
    }
    let change = Change { claim: vec![claim(&request, &[B])?], ..Change::default() };
    let ended = super::bench::ended(ledger.commit(&owner, view.token, &change)?)?;
    lost(ended, "a claim on the wrong guess that nothing is held")?;
    let held = bench.addresses(&owner)?;
    expect(held.len() == 1, || format!("held is {}", list(&held)))
}

fn a_look_shows_what_is_taken<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let taken = bench.take(&bench.owner("c1", "eth0")?, A)?.address.addr();
    let free: std::net::IpAddr = std::net::Ipv4Addr::new(10, 1, 2, 9).into();
    let request = pool_of(A)?;
    let change = Change { claim: vec![claim(&request, &[A])?], ..Change::default() };
    for look in [Scan::None, Scan::Range(taken, free), Scan::Full] {
        let mut ledger = bench.open()?;
        let view = bench.view(&mut ledger, &bench.owner("c2", "eth0")?, &change, look)?;
        expect(view.pools.len() == 1, || format!("{} pools are shown", view.pools.len()))?;
        if let Some(hint) = &view.pools[0].hint {
            expect(!hint.free.contains(&taken), || {
                format!("{taken} is taken, told as free is {}", list(&hint.free))
            })?;
        }
        let told = match &view.pools[0].used {
            Used::Unknown => match look {
                Scan::None => continue,
                _ if view.pools[0].is_known() => continue,
                _ => {
                    return Err(format!(
                        "asked to look at {}, it shows nothing",
                        plain::look(look)
                    )
                    .into());
                }
            },
            Used::Windows(windows, told) => {
                let shows =
                    |address| windows.iter().any(|(from, to)| *from <= address && address <= *to);
                if !(shows(taken) && shows(free)) && look != Scan::None {
                    let (look, shown) = (plain::look(look), plain::windows(windows));
                    return Err(format!("asked for {look}, it shows {shown}").into());
                }
                if !shows(taken) {
                    continue;
                }
                told
            }
            Used::All(told) => told,
        };
        expect(told.contains(&taken) && !told.contains(&free), || {
            format!("{taken} is taken and {free} free, told as taken is {}", list(told))
        })?;
    }
    Ok(())
}

fn the_cursor_follows_what_is_given<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let request = pool_of(A)?;
    for (container, address) in [("c1", A), ("c2", B), ("c3", "10.1.2.3")] {
        let lease = bench.take(&bench.owner(container, "eth0")?, address)?;
        let change = Change { claim: vec![claim(&request, &[A])?], ..Change::default() };
        let view =
            bench.view(&mut bench.open()?, &bench.owner("c9", "eth0")?, &change, Scan::None)?;
        let cursor = view.pools.first().and_then(|pool| pool.cursor);
        // A store whose leases are chosen otherwise needs none.
        expect(cursor.is_none_or(|cursor| cursor == lease.address.addr()), || {
            format!("{address} was given last, the cursor is {}", optional(cursor))
        })?;
    }
    Ok(())
}
