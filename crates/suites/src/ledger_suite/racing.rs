//! Several owners at once.

use std::sync::{Arc, Mutex};
use std::thread;

use super::checks;
use super::room::{Ended, Room, Stage, claim, expect, lost, pool_of};
use crate::plain::list;
use crate::{Finding, Verdict};
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
    nothing comes between look and change; `Stage::interleave` on a ledger in `Between` makes \
    this check run";

fn take_any<S: Stage>(room: &Room<'_, S>, container: &str, addresses: &[&str]) -> Result<Ended> {
    let request = pool_of(A)?;
    let change = Change { claim: vec![claim(&request, addresses)?], ..Change::default() };
    room.commit(&room.owner(container, "eth0")?, &change)
}

fn of_owners_who_race_for_an_address_one_wins<S: Stage>(room: &Room<'_, S>) -> Verdict {
    for round in 0..4 {
        let room = Room::new(room.stage)?;
        let ends: Vec<Result<Ended>> = thread::scope(|scope| {
            let racer = |number: usize| {
                let room = &room;
                scope.spawn(move || take_any(room, &format!("c{number}"), &[A]))
            };
            let racers: Vec<_> = (0..6).map(racer).collect();
            racers.into_iter().filter_map(|racer| racer.join().ok()).collect()
        });
        expect(ends.len() == 6, || "a commit panicked".to_owned())?;
        let mut winners = 0;
        for end in ends {
            winners += usize::from(matches!(end?, Ended::Done { .. }));
        }
        let state = room.state()?;
        expect(winners == 1 && state.len() == 1, || {
            format!("round {round}: {winners} of 6 took {A}, and there is {}", list(&state))
        })?;
    }
    Ok(())
}

/// Runs `between` inside the commit of `during`.
fn with_between<S: Stage, T: Send + 'static>(
    room: &Room<'_, S>,
    between: impl FnOnce(&Room<'_, S>) -> Result<T> + Send + 'static,
    during: impl FnOnce() -> Result<Ended>,
) -> Result<(T, Ended), Finding> {
    let answer = Arc::new(Mutex::new(None));
    let (stage, network, place) = (room.stage.clone(), room.network.clone(), answer.clone());
    let called = room.stage.interleave(Box::new(move || {
        let done = between(&Room { stage: &stage, network });
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

fn a_claim_that_comes_between_wins<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let between = |room: &Room<'_, S>| room.take(&room.owner("quick", "eth0")?, A);
    let during = || take_any(room, "slow", &[A]);
    let (_, ended) = with_between(room, between, during)?;
    lost(ended, "a claim of an address that was taken meanwhile")?;
    let held = room.addresses(&room.owner("quick", "eth0")?)?;
    expect(held.len() == 1, || format!("the one who was quicker holds {}", list(&held)))
}

fn a_confirmation_that_comes_between_saves_a_lease<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let owner = room.owner("c1", "eth0")?;
    let old = vec![room.take(&owner, A)?];
    let (its, keep) = (owner.clone(), old.clone());
    let between =
        move |room: &Room<'_, S>| room.commit(&its, &Change { keep, ..Change::default() });
    let during = || room.commit(&owner, &Change { drop: old, ..Change::default() });
    let (_, ended) = with_between(room, between, during)?;
    lost(ended, "a drop of a lease that was confirmed meanwhile")?;
    let held = room.addresses(&owner)?;
    expect(held.len() == 1, || format!("held is {}", list(&held)))
}

fn a_release_that_comes_between_is_final<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let owner = room.owner("c1", "eth0")?;
    let old = vec![room.take(&owner, A)?];
    let (its, drop) = (owner.clone(), old.clone());
    let between = move |room: &Room<'_, S>| {
        room.commit(&its, &Change { drop, ..Change::default() })?;
        room.take(&room.owner("c2", "eth0")?, A)
    };
    let during = || room.commit(&owner, &Change { keep: old, ..Change::default() });
    let (_, ended) = with_between(room, between, during)?;
    lost(ended, "a keep of a lease that was released meanwhile")?;
    let held = room.addresses(&room.owner("c2", "eth0")?)?;
    expect(held.len() == 1, || format!("c2 took {A} meanwhile and holds {}", list(&held)))
}
