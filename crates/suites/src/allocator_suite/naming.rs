//! Addresses that stay with a sticky name, of allocators that keep them.

use super::checks;
use crate::bench::{Bench, expect, expect_given};
use crate::plain::list;
use crate::pool_spec::{other_single, single, small};
use crate::{CheckResult, Finding};

checks!(
    an_address_stays_with_its_name_for_its_time,
    a_name_without_a_time_frees_its_address,
    a_name_has_one_owner,
    a_late_del_of_an_earlier_owner_frees_no_name,
    an_address_whose_time_is_over_is_given_when_it_is_needed,
    a_refused_add_leaves_a_name_as_it_was,
    gc_ends_the_hold_of_a_name,
);

const C1: &str = "c1/eth0";
const C2: &str = "c2/eth0";
const C3: &str = "c3/eth0";

fn an_address_stays_with_its_name_for_its_time(bench: &Bench) -> CheckResult {
    let named = [small().named("web", "1h")];
    let first = bench.add(C1, &named)?;
    bench.del(C1, &named, Some(&first))?;
    let others = bench.fill(&small(), 20)?;
    expect(others.len() == 12, || {
        format!("12 addresses are free, but {} were given", others.len())
    })?;
    let again = bench.on_node("node-2").add(C2, &named)?;
    expect(again.addresses == first.addresses, || {
        format!("{} became {}", list(&first.addresses), list(&again.addresses))
    })
}

fn a_name_without_a_time_frees_its_address(bench: &Bench) -> CheckResult {
    let named = [single().named("web", "0s")];
    bench.add(C1, &named)?;
    bench.refuse_add(C2, &[single()], 100)?;
    bench.del(C1, &named, None)?;
    expect_given(&bench.add(C2, &[single()])?, &["10.1.2.7"])
}

fn a_name_has_one_owner(bench: &Bench) -> CheckResult {
    let named = [small().named("web", "1h")];
    let first = bench.add(C1, &named)?;
    let elsewhere = bench.on_node("node-2");
    elsewhere.refuse_add(C2, &named, 11)?;
    elsewhere.del(C2, &named, None)?;
    bench.check(C1, &named, &first)?;
    let again = bench.add(C1, &named)?;
    expect(again.addresses == first.addresses, || "the owner's next ADD gives another".to_owned())?;
    let other = elsewhere.add(C3, &[small().named("db", "1h")])?;
    expect(other.addresses != first.addresses, || "two names have one address".to_owned())?;
    bench.del(C1, &named, None)?;
    let next = elsewhere.add(C2, &named)?;
    expect(next.addresses == first.addresses, || "the next owner is given another".to_owned())
}

fn a_late_del_of_an_earlier_owner_frees_no_name(bench: &Bench) -> CheckResult {
    for keep in ["1h", "0s"] {
        let named = [single().named("web", keep)];
        let first = bench.add(C1, &named)?;
        bench.del(C1, &named, Some(&first))?;
        let second = bench.add(C2, &named)?;
        bench.del(C1, &named, Some(&first))?;
        bench.del(C1, &named, None)?;
        bench.check(C2, &named, &second)?;
        bench.refuse_add(C3, &named, 11)?;
        bench.del(C2, &named, None)?;
    }
    Ok(())
}

fn an_address_whose_time_is_over_is_given_when_it_is_needed(bench: &Bench) -> CheckResult {
    let named = [single().named("web", "30m")];
    bench.add(C1, &named)?;
    bench.del(C1, &named, None)?;
    bench.refuse_add(C2, &[single()], 100)?;
    bench.age()?;
    bench.add(C2, &[single()])?;
    bench.refuse_add(C1, &named, 100)
}

fn a_refused_add_leaves_a_name_as_it_was(bench: &Bench) -> CheckResult {
    bench.add(C3, &[other_single()])?;
    let (new, kept) = (small().named("new", "1h"), small().named("web", "1h"));
    bench.refuse_add(C1, &[new, other_single()], 100)?;
    let first = bench.add(C1, std::slice::from_ref(&kept))?;
    bench.del(C1, std::slice::from_ref(&kept), None)?;
    bench.refuse_add(C2, &[kept.clone(), other_single()], 100)?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 12, || format!("12 addresses are free, but {} were given", left.len()))?;
    let again = bench.add(C2, &[kept])?;
    expect(again.addresses == first.addresses, || "the name has another address".to_owned())
}

fn gc_ends_the_hold_of_a_name(bench: &Bench) -> CheckResult {
    let named = [single().named("web", "1h")];
    let first = bench.add(C1, &named)?;
    bench.age()?;
    bench.gc(&[single()], &[C1])?;
    bench.check(C1, &named, &first.without_leases())?;
    bench.gc(&[single()], &[])?;
    bench.refuse_check(C1, &named, &first.without_leases())?;
    bench.refuse_add(C3, &[single()], 100)?;
    let again =
        bench.add(C2, &named).map_err(|_| Finding::from("the name is still held".to_owned()))?;
    expect_given(&again, &["10.1.2.7"])
}
