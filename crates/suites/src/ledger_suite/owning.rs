//! Whose a lease is.

use super::checks;
use super::room::{Room, Stage, claim, done, expect, lost, pool_of};
use crate::plain::{self, leases, list};
use crate::{Finding, Verdict};
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

fn an_unknown_owner_holds_nothing<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let nothing = |room: &Room<'_, S>| -> Verdict {
        let held = room.held(&room.owner("c9", "eth0")?)?;
        expect(held.is_empty(), || format!("held is {}", leases(&held)))
    };
    nothing(room)?;
    room.take(&room.owner("c1", "eth0")?, A)?;
    nothing(room)?;
    // There is nothing to drop, and that is no error.
    done(room.commit(&room.owner("c9", "eth0")?, &Change::default())?, "an empty change")?;
    Ok(())
}

fn apart<S: Stage>(room: &Room<'_, S>, one: &Owner, other: &Owner) -> Verdict {
    let lease = room.take(one, A)?;
    let held = room.held(other)?;
    expect(held.is_empty(), || format!("{one} took {A}, and {other} holds {}", leases(&held)))?;
    room.take(other, B)?;
    let change = Change { drop: vec![lease], ..Change::default() };
    done(room.commit(one, &change)?, "a drop")?;
    let held: Vec<String> = room.addresses(other)?.iter().map(ToString::to_string).collect();
    expect(held == [B], || format!("{one} dropped {A}, and {other} holds {}", list(&held)))
}

fn the_interface_is_of_the_owner<S: Stage>(room: &Room<'_, S>) -> Verdict {
    apart(room, &room.owner("c1", "eth0")?, &room.owner("c1", "eth1")?)
}

fn the_container_is_of_the_owner<S: Stage>(room: &Room<'_, S>) -> Verdict {
    apart(room, &room.owner("c1", "eth0")?, &room.owner("c10", "eth0")?)
}

fn the_network_is_of_the_owner<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let other = Room::new(room.stage)?;
    room.take(&room.owner("c1", "eth0")?, A)?;
    let held = other.held(&other.owner("c1", "eth0")?)?;
    expect(held.is_empty(), || format!("on another network it holds {}", leases(&held)))?;
    other.take(&other.owner("c2", "eth0")?, A)?;
    Ok(())
}

fn the_node_is_of_the_owner<S: Stage>(room: &Room<'_, S>) -> Verdict {
    if S::Ledger::REACH == Reach::Node {
        return Err(Finding::NotApplicable(
            "the store serves one node; a ledger whose `REACH` is `Cluster` makes this check run",
        ));
    }
    apart(room, &room.owner("c1", "eth0")?, &room.owner_on("node-2", "c1", "eth0")?)
}

fn an_owner_may_come_back<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let owner = room.owner("c1", "eth0")?;
    let mut revisions = Vec::new();
    for _ in 0..3 {
        let lease = room.take(&owner, A)?;
        expect(!revisions.contains(&lease.revision), || {
            format!("a new lease has the revision {} of an old one", lease.revision)
        })?;
        revisions.push(lease.revision.clone());
        let change = Change { drop: vec![lease], ..Change::default() };
        done(room.commit(&owner, &change)?, "a drop")?;
        let held = room.held(&owner)?;
        expect(held.is_empty(), || format!("after a drop held is {}", leases(&held)))?;
    }
    Ok(())
}

fn what_is_held_and_what_is_not_is_proved_at_once<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let owner = room.owner("c1", "eth0")?;
    let proved = |expected: &[&str]| -> Verdict {
        for need in [Need::Proof, Need::Claim] {
            let query = ViewQuery {
                owner: &owner,
                known: &[],
                requests: &[],
                scans: &[],
                may_guess: false,
                need,
            };
            let view = room.open()?.view(&query, None)?;
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
    let lease = room.take(&owner, A)?;
    proved(&[A])?;
    let change = Change { drop: vec![lease], ..Change::default() };
    done(room.commit(&owner, &change)?, "a drop")?;
    proved(&[])
}

fn a_drop_frees_nothing_of_others<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let lease = room.take(&room.owner("c1", "eth0")?, A)?;
    let before = room.state()?;
    let change = Change { drop: vec![lease], ..Change::default() };
    lost(room.commit(&room.owner("c2", "eth0")?, &change)?, "a drop of another owner's lease")?;
    let after = room.state()?;
    expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))
}

fn a_hint_is_no_truth<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let known = [room.take(&room.owner("c1", "eth0")?, A)?];
    let owner = room.owner("c2", "eth0")?;
    let query = ViewQuery {
        owner: &owner,
        known: &known,
        requests: &[],
        scans: &[],
        may_guess: false,
        need: Need::Proof,
    };
    let held = room.open()?.view(&query, None)?.held;
    expect(held.is_empty(), || format!("{A} is c1's, but c2 holds {}", leases(&held)))
}

fn a_takeover_replaces_the_very_entry<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let (first, second) = (room.owner("c1", "eth0")?, room.owner("c2", "eth0")?);
    let lease = room.take(&first, A)?;
    let request = pool_of(A)?;
    let mut claim = claim(&request, &[A])?;
    claim.replaces = room.entries()?.remove(&lease.address.addr());
    let change = Change { claim: vec![claim], ..Change::default() };
    done(room.commit(&second, &change)?, "a takeover")?;
    let (old, new) = (room.held(&first)?, room.held(&second)?);
    expect(old.is_empty() && new.len() == 1, || {
        format!("c1 holds {}, c2 {}", leases(&old), leases(&new))
    })
}

fn a_stale_takeover_is_lost<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let (first, second) = (room.owner("c1", "eth0")?, room.owner("c2", "eth0")?);
    let lease = room.take(&first, A)?;
    let request = pool_of(A)?;
    let mut claim = claim(&request, &[A])?;
    claim.replaces = room.entries()?.remove(&lease.address.addr());
    let keep = Change { keep: vec![lease], ..Change::default() };
    done(room.commit(&first, &keep)?, "a keep")?;
    let before = room.state()?;
    let change = Change { claim: vec![claim], ..Change::default() };
    lost(room.commit(&second, &change)?, "a takeover of an entry that was written anew")?;
    let after = room.state()?;
    expect(before == after, || format!("before: {}; after: {}", list(&before), list(&after)))
}
