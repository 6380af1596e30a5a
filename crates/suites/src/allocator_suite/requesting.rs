//! ADDs that ask for an address.

use serde_json::json;

use super::checks;
use crate::CheckResult;
use crate::bench::{Bench, expect, expect_given};
use crate::pool_spec::{other, small, with_ranges};

checks!(
    a_requested_address_is_given,
    a_requested_address_that_is_taken_is_refused,
    a_refused_request_leaves_nothing,
    a_requested_address_outside_is_refused,
    a_request_again_gives_it_again,
    another_requested_address_replaces_the_first,
);

const C1: &str = "c1/eth0";
const C2: &str = "c2/eth0";

fn a_requested_address_is_given(bench: &Bench) -> CheckResult {
    expect_given(&bench.add(C1, &[small().requesting("10.1.2.9")])?, &["10.1.2.9"])?;
    bench.add(C2, &[small().requesting("10.1.2.14")])?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 11, || {
        format!("11 of 13 addresses are free, but {} were given", left.len())
    })
}

fn a_requested_address_that_is_taken_is_refused(bench: &Bench) -> CheckResult {
    let held = bench.add(C1, &[small().requesting("10.1.2.9")])?;
    bench.refuse_add(C2, &[small().requesting("10.1.2.9")], 102)?;
    bench.check(C1, &[small()], &held)?;
    bench.del(C2, &[small()], None)?;
    bench.check(C1, &[small()], &held)?;
    bench.refuse_add(C2, &[small().requesting("10.1.2.9")], 102)
}

fn a_refused_request_leaves_nothing(bench: &Bench) -> CheckResult {
    bench.add(C1, &[other().requesting("10.1.3.9")])?;
    bench.refuse_add(C2, &[small(), other().requesting("10.1.3.9")], 102)?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 13, || format!("all 13 addresses are free, but {} were given", left.len()))
}

fn a_requested_address_outside_is_refused(bench: &Bench) -> CheckResult {
    let pool = json!([{"subnet": "10.1.2.0/28", "rangeStart": "10.1.2.4", "rangeEnd": "10.1.2.9", "gateway": "10.1.2.5"}]);
    for address in ["10.1.2.1", "10.1.2.10", "10.1.2.5", "10.9.9.9", "fd00::1"] {
        bench.refuse_add(C1, &[with_ranges(pool.clone()).requesting(address)], 101)?;
    }
    let left = bench.fill(&with_ranges(pool), 20)?;
    expect(left.len() == 5, || format!("all 5 addresses are free, but {} were given", left.len()))
}

fn a_request_again_gives_it_again(bench: &Bench) -> CheckResult {
    for pools in [[small().requesting("10.1.2.9")], [small()], [small().requesting("10.1.2.9")]] {
        expect_given(&bench.add(C1, &pools)?, &["10.1.2.9"])?;
    }
    Ok(())
}

fn another_requested_address_replaces_the_first(bench: &Bench) -> CheckResult {
    bench.add(C1, &[small().requesting("10.1.2.9")])?;
    let pools = [small().requesting("10.1.2.10")];
    expect_given(&bench.add(C1, &pools)?, &["10.1.2.10"])?;
    expect_given(&bench.add(C2, &[small().requesting("10.1.2.9")])?, &["10.1.2.9"])?;
    // A request that is refused takes nothing from who made it.
    bench.refuse_add(C1, &[small().requesting("10.1.2.9")], 102)?;
    expect_given(&bench.add(C1, &[small()])?, &["10.1.2.10"])
}
