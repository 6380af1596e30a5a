//! Addresses that rest after their release, of allocators that know when they were freed.

use super::checks;
use crate::bench::{Bench, expect, expect_given};
use crate::plain::list;
use crate::pool_spec::small;
use crate::{CheckResult, Finding};

checks!(
    a_freed_address_rests_until_nothing_else_is_free,
    a_requested_address_does_not_rest,
    without_a_cooldown_no_address_rests,
    an_address_has_rested_after_its_time,
);

const C1: &str = "c1/eth0";
const C2: &str = "c2/eth0";

fn a_freed_address_rests_until_nothing_else_is_free(bench: &Bench) -> CheckResult {
    for strategy in ["lowest", "round-robin", "random"] {
        let bench = bench.elsewhere().with_cooldown("1h");
        let pools = [small().by(strategy)];
        let (first, second) = (bench.add(C1, &pools)?, bench.add(C2, &pools)?);
        bench.del(C2, &pools, Some(&second))?;
        bench.del(C1, &pools, None)?;
        let mut given = Vec::new();
        for number in 0..13 {
            given.extend(bench.add(&format!("fill{number}/eth0"), &pools)?.addresses);
        }
        let expected = [second.addresses, first.addresses].concat();
        expect(given.ends_with(&expected), || {
            format!("{strategy}: {} were freed, but {} given", list(&expected), list(&given))
        })?;
    }
    Ok(())
}

fn a_requested_address_does_not_rest(bench: &Bench) -> CheckResult {
    let bench = bench.with_cooldown("1h");
    bench.add(C1, &[small().by("lowest")])?;
    bench.del(C1, &[small()], None)?;
    let asked = [small().requesting("10.1.2.2")];
    expect_given(&bench.add(C2, &asked)?, &["10.1.2.2"])?;
    expect_given(&bench.add(C2, &asked)?, &["10.1.2.2"])
}

fn without_a_cooldown_no_address_rests(bench: &Bench) -> CheckResult {
    give_again(bench, |_| Ok(()))?;
    give_again(&bench.elsewhere().with_cooldown("0s"), |_| Ok(()))
}

fn an_address_has_rested_after_its_time(bench: &Bench) -> CheckResult {
    give_again(&bench.with_cooldown("30m"), Bench::age)
}

/// The lowest address is given, freed and given again.
fn give_again(bench: &Bench, meanwhile: fn(&Bench) -> CheckResult) -> Result<(), Finding> {
    let pools = [small().by("lowest")];
    bench.add(C1, &pools)?;
    bench.del(C1, &pools, None)?;
    meanwhile(bench)?;
    expect_given(&bench.add(C2, &pools)?, &["10.1.2.2"])
}
