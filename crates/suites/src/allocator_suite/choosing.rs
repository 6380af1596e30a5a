//! Pools that the store knows, whose addresses it chooses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::checks;
use crate::bench::{Bench, expect, expect_given};
use crate::plain::list;
use crate::pool_spec::{PoolSpec, of_store};
use crate::{CheckResult, Finding};

checks!(
    a_pool_of_the_store_is_given_out_to_the_last_address,
    an_add_again_gives_what_the_store_chose,
    a_strategy_or_an_address_leaves_the_store_no_choice,
);

const C1: &str = "c1/eth0";

fn store_pool(bench: &Bench) -> Result<PoolSpec, Finding> {
    let name = bench.subject.store_pool(&bench.network);
    name.map(of_store).ok_or(Finding::NotApplicable("its store chooses no addresses"))
}

fn a_pool_of_the_store_is_given_out_to_the_last_address(bench: &Bench) -> CheckResult {
    let pools = [store_pool(bench)?];
    let given = bench.fill(&pools[0], 20)?;
    let usable: BTreeSet<IpAddr> = (2..=14).map(|n| [10, 1, 2, n].into()).collect();
    expect(given == usable, || {
        format!("expected {}, but {} was given", list(&usable), list(&given))
    })?;
    bench.del("fill5/eth0", &pools, None)?;
    bench.add(C1, &pools)?;
    bench.refuse_add("c2/eth0", &pools, 100)
}

fn an_add_again_gives_what_the_store_chose(bench: &Bench) -> CheckResult {
    let pools = [store_pool(bench)?];
    let first = bench.add(C1, &pools)?;
    bench.add("c2/eth0", &pools)?;
    for _ in 0..3 {
        let again = bench.add(C1, &pools)?;
        expect(again.addresses == first.addresses, || {
            format!("first {}, then {}", list(&first.addresses), list(&again.addresses))
        })?;
    }
    bench.check(C1, &pools, &first)?;
    bench.del(C1, &pools, Some(&first))?;
    bench.refuse_check(C1, &pools, &first.without_leases())
}

fn a_strategy_or_an_address_leaves_the_store_no_choice(bench: &Bench) -> CheckResult {
    let pool = store_pool(bench)?;
    let requested = [pool.clone().requesting("10.1.2.9")];
    expect_given(&bench.add(C1, &requested)?, &["10.1.2.9"])?;
    bench.refuse_add("c2/eth0", &requested, 102)?;
    expect_given(&bench.add("c3/eth0", &[pool.clone().by("lowest")])?, &["10.1.2.2"])?;
    expect_given(&bench.add("c4/eth0", &[pool.by("lowest")])?, &["10.1.2.3"])
}
