//! Several calls at once, and calls that are killed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::checks;
use crate::bench::{Added, Bench, expect};
use crate::plain::list;
use crate::pool_spec::{other, single, small};
use crate::{CheckResult, Finding};

checks!(
    adds_at_once_get_addresses_of_their_own,
    adds_at_once_of_one_attachment_get_the_same,
    adds_at_once_use_up_a_pool_exactly,
    adds_and_dels_at_once_leave_nothing,
    an_add_that_was_quicker_keeps_its_address,
    a_late_del_spares_a_later_add,
    a_late_add_takes_nothing_of_others,
    a_killed_add_leaves_nothing_that_a_del_does_not_find,
);

const C1: &str = "c1/eth0";
const C2: &str = "c2/eth0";

const NEVER_BETWEEN: &str = "nothing comes between look and change here; \
    in Rust, `InProcess::interleaved` on a ledger in `InterleavedLedger` makes this check run";

/// Calls of several threads, their answers in order.
fn at_once<T: Send>(
    count: usize,
    call: impl Fn(usize) -> Result<T, Finding> + Sync,
) -> Result<Vec<T>, Finding> {
    thread::scope(|scope| {
        let start = |number| {
            let call = &call;
            scope.spawn(move || call(number))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<T, Finding>>| {
            thread.join().unwrap_or_else(|_| Err("a call panicked".to_owned().into()))
        };
        threads.into_iter().map(join).collect()
    })
}

fn adds_at_once_get_addresses_of_their_own(bench: &Bench) -> CheckResult {
    let pools = [small(), other()];
    let added = at_once(12, |number| bench.add(&format!("c{number}/eth0"), &pools))?;
    let given: BTreeSet<_> = added.iter().flat_map(|added| &added.addresses).collect();
    expect(given.len() == 24, || format!("12 ADDs of two pools got {}", list(&given)))?;
    for (number, added) in added.iter().enumerate() {
        bench.check(&format!("c{number}/eth0"), &pools, added)?;
    }
    Ok(())
}

fn adds_at_once_of_one_attachment_get_the_same(bench: &Bench) -> CheckResult {
    let added = at_once(6, |_| bench.add(C1, &[small()]))?;
    let given: BTreeSet<_> = added.iter().flat_map(|added| &added.addresses).collect();
    expect(given.len() == 1, || format!("6 ADDs of one attachment got {}", list(&given)))?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 12, || {
        format!("12 of 13 addresses are free, but {} were given", left.len())
    })
}

fn adds_at_once_use_up_a_pool_exactly(bench: &Bench) -> CheckResult {
    let ends = at_once(18, |number| bench.try_add(&format!("c{number}/eth0"), &[small()]))?;
    let given: BTreeSet<_> = ends.iter().flatten().flat_map(|added| &added.addresses).collect();
    let refused: Vec<u64> = ends.iter().filter_map(|end| Some(end.as_ref().err()?.code)).collect();
    expect(given.len() == 13 && refused.len() == 5, || {
        format!("18 ADDs on 13 addresses: given {}, errors {}", list(&given), list(&refused))
    })?;
    expect(!bench.is_delegate() || refused.iter().all(|code| *code == 100), || {
        format!("a full pool is error 100, these were {}", list(&refused))
    })
}

fn adds_and_dels_at_once_leave_nothing(bench: &Bench) -> CheckResult {
    let pools = [small(), other()];
    at_once(8, |number| {
        let who = format!("c{number}/eth0");
        for _ in 0..4 {
            let added = bench.add(&who, &pools)?;
            bench.check(&who, &pools, &added)?;
            bench.del(&who, &pools, Some(&added))?;
        }
        Ok(())
    })?;
    for pool in &pools {
        let left = bench.fill_all(pool)?;
        expect(left.len() == 13, || {
            format!("all 13 addresses are free, but {} were given", left.len())
        })?;
    }
    Ok(())
}

/// Runs `between` inside the call of `during`.
fn with_between(
    bench: &Bench,
    between: impl FnOnce(&Bench) -> Result<Option<Added>, Finding> + Send + 'static,
    during: impl FnOnce() -> CheckResult,
) -> Result<Option<Added>, Finding> {
    let answer = Arc::new(Mutex::new(None));
    let (inside, place) = (bench.clone(), answer.clone());
    let called = bench.subject.interleave(Box::new(move || {
        let done = between(&inside);
        if let Ok(mut place) = place.lock() {
            *place = Some(done);
        }
    }));
    if !called {
        return Err(Finding::NotApplicable(NEVER_BETWEEN));
    }
    during()?;
    let between = answer.lock().ok().and_then(|mut place| place.take());
    between.ok_or("nothing came between".to_owned())?
}

fn an_add_that_was_quicker_keeps_its_address(bench: &Bench) -> CheckResult {
    let slow = Arc::new(Mutex::new(None));
    let between = |bench: &Bench| bench.add(C2, &[small(), other()]).map(Some);
    let quick = with_between(bench, between, || {
        let added = bench.add(C1, &[small(), other()])?;
        *slow.lock().map_err(|error| error.to_string())? = Some(added);
        Ok(())
    })?;
    let slow = slow.lock().map_err(|error| error.to_string())?.clone();
    let both: Vec<Added> = quick.into_iter().chain(slow).collect();
    let given: BTreeSet<_> = both.iter().flat_map(|added| &added.addresses).collect();
    expect(given.len() == 4, || format!("two ADDs of two pools got {}", list(&given)))?;
    for (who, added) in [C2, C1].iter().zip(&both) {
        bench.check(who, &[small(), other()], added)?;
    }
    Ok(())
}

fn a_late_del_spares_a_later_add(bench: &Bench) -> CheckResult {
    bench.add(C1, &[single()])?;
    let between = |bench: &Bench| bench.add(C1, &[single()]).map(Some);
    let again = with_between(bench, between, || bench.del(C1, &[single()], None))?;
    let again = again.ok_or("no ADD came between".to_owned())?;
    bench.check(C1, &[single()], &again)?;
    bench.refuse_add(C2, &[single()], 100)
}

fn a_late_add_takes_nothing_of_others(bench: &Bench) -> CheckResult {
    bench.add(C1, &[single()])?;
    let between = |bench: &Bench| {
        bench.del(C1, &[single()], None)?;
        bench.add(C2, &[single()]).map(Some)
    };
    let taken = with_between(bench, between, || {
        // Whatever it answers: the address is another's.
        bench.refuse_add(C1, &[single()], 100)
    })?;
    let taken = taken.ok_or("no ADD came between".to_owned())?;
    bench.check(C2, &[single()], &taken)?;
    bench.refuse_check(C1, &[single()], &taken)
}

fn a_killed_add_leaves_nothing_that_a_del_does_not_find(bench: &Bench) -> CheckResult {
    let pools = [small(), other()];
    for number in 0..24 {
        let who = format!("c{number}/eth0");
        bench.kill_add(&who, &pools, Duration::from_micros(number * 150))?;
        if number % 3 == 0 {
            bench.add(&who, &pools)?;
        }
        bench.del(&who, &pools, None)?;
    }
    // A server may carry out the claim of a killed ADD after its DEL: the chain repeats that DEL.
    for number in 0..24 {
        bench.del(&format!("c{number}/eth0"), &pools, None)?;
    }
    for pool in &pools {
        let left = bench.fill_all(pool)?;
        expect(left.len() == 13, || {
            format!("all 13 addresses are free, but {} were given", left.len())
        })?;
    }
    Ok(())
}
