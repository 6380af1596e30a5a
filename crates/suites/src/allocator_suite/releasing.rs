//! Checks of DEL and CHECK.

use super::checks;
use crate::CheckResult;
use crate::bench::{Bench, expect, expect_given, network};
use crate::plain::list;
use crate::pool_spec::{ipv6, other, single, small};
use ipam_kit::cni::{Environment, Verb};

checks!(
    a_del_releases,
    dels_may_repeat,
    a_del_of_an_unknown_attachment_succeeds,
    a_del_needs_no_namespace_no_arguments_no_result,
    a_del_releases_its_interface_only,
    a_del_releases_its_container_only,
    a_stale_hint_frees_nothing_of_others,
    a_missing_hint_leaves_nothing_behind,
    a_hint_of_some_leases_leaves_nothing_behind,
    a_check_passes_after_an_add,
    a_check_fails_after_a_del,
    a_check_fails_for_an_address_not_held,
    a_check_fails_for_an_address_not_in_the_result,
    a_check_passes_over_addresses_of_others,
);

const C1: &str = "c1/eth0";
const C2: &str = "c2/eth0";

fn a_del_releases(bench: &Bench) -> CheckResult {
    let pools = [single(), ipv6()];
    let added = bench.add(C1, &pools)?;
    bench.refuse_add(C2, &[single()], 100)?;
    bench.del(C1, &pools, Some(&added))?;
    expect_given(&bench.add(C2, &[single()])?, &["10.1.2.7"])
}

fn dels_may_repeat(bench: &Bench) -> CheckResult {
    let added = bench.add(C1, &[small()])?;
    for known in [Some(&added), Some(&added), None, None] {
        bench.del(C1, &[small()], known)?;
    }
    Ok(())
}

fn a_del_of_an_unknown_attachment_succeeds(bench: &Bench) -> CheckResult {
    bench.del("nobody/eth0", &[small()], None)?;
    let added = bench.add(C1, &[small()])?;
    bench.del("nobody/eth0", &[small()], None)?;
    bench.check(C1, &[small()], &added)
}

fn a_del_needs_no_namespace_no_arguments_no_result(bench: &Bench) -> CheckResult {
    bench.add(C1, &[single()])?;
    let (_, mut config) = bench.call(Verb::Del, C1, &[single()], None)?;
    config.remove("prevResult");
    let environment = Environment::new([
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ]);
    bench.nothing("DEL", C1, environment, config)?;
    expect_given(&bench.add(C2, &[single()])?, &["10.1.2.7"])
}

fn a_del_releases_its_interface_only(bench: &Bench) -> CheckResult {
    let first = bench.add(C1, &[small()])?;
    let second = bench.add("c1/eth1", &[small()])?;
    expect(first.addresses != second.addresses, || {
        format!("both interfaces get {}", list(&first.addresses))
    })?;
    bench.del("c1/eth1", &[small()], Some(&second))?;
    bench.check(C1, &[small()], &first)?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 12, || {
        format!("12 of 13 addresses are free, but {} were given", left.len())
    })
}

fn a_del_releases_its_container_only(bench: &Bench) -> CheckResult {
    let first = bench.add(C1, &[small()])?;
    for other in ["c10/eth0", "c/eth0", "C1/eth0"] {
        let added = bench.add(other, &[small()])?;
        bench.del(other, &[small()], Some(&added))?;
        bench.check(C1, &[small()], &first)?;
    }
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 12, || {
        format!("12 of 13 addresses are free, but {} were given", left.len())
    })
}

fn a_stale_hint_frees_nothing_of_others(bench: &Bench) -> CheckResult {
    let stale = bench.add(C1, &[single()])?;
    bench.del(C1, &[single()], None)?;
    let taken = bench.add(C2, &[single()])?;
    bench.del(C1, &[single()], Some(&stale))?;
    bench.check(C2, &[single()], &taken)?;
    bench.refuse_add("c3/eth0", &[single()], 100)
}

fn a_missing_hint_leaves_nothing_behind(bench: &Bench) -> CheckResult {
    let first = bench.add(C1, &[small()])?;
    let both = bench.add(C1, &[small(), other()])?;
    // A record that was lost half: only the first lease is known.
    let known = both.with_ips(&first.result.ips).with_leases(first.answer.leases);
    bench.del(C1, &[small(), other()], Some(&known))?;
    for pool in [small(), other()] {
        let left = bench.fill_all(&pool)?;
        expect(left.len() == 13, || {
            format!("all 13 addresses are free, but {} were given", left.len())
        })?;
    }
    Ok(())
}

fn a_hint_of_some_leases_leaves_nothing_behind(bench: &Bench) -> CheckResult {
    let pools = [small(), other()];
    let added = bench.add(C1, &pools)?;
    let leases = added.answer.leases.as_ref().map(|leases| leases.iter().take(1).cloned());
    let known = added.with_ips(&added.result.ips[..1]).with_leases(leases.map(Iterator::collect));
    bench.del(C1, &pools, Some(&known))?;
    for pool in pools {
        let left = bench.fill_all(&pool)?;
        expect(left.len() == 13, || {
            format!("all 13 addresses are free, but {} were given", left.len())
        })?;
    }
    Ok(())
}

fn a_check_passes_after_an_add(bench: &Bench) -> CheckResult {
    let pools = [small(), ipv6()];
    let added = bench.add(C1, &pools)?;
    bench.check(C1, &pools, &added)?;
    bench.check(C1, &pools, &added.without_leases())?;
    bench.add("c2/eth0", &pools)?;
    bench.check(C1, &pools, &added)
}

fn a_check_fails_after_a_del(bench: &Bench) -> CheckResult {
    let added = bench.add(C1, &[small()])?;
    bench.refuse_check(C2, &[small()], &added)?;
    bench.del(C1, &[small()], None)?;
    bench.refuse_check(C1, &[small()], &added)?;
    bench.refuse_check(C1, &[small()], &added.without_leases())
}

fn a_check_fails_for_an_address_not_held(bench: &Bench) -> CheckResult {
    let added = bench.add(C1, &[small()])?.without_leases();
    let mut ip = added.result.ips[0].clone();
    ip.address = network("10.1.2.13/28")?;
    bench.refuse_check(C1, &[small()], &added.with_ips(&[ip]))
}

fn a_check_fails_for_an_address_not_in_the_result(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let added = bench.add(C1, &[small(), ipv6()])?;
    bench.refuse_check(C1, &[small(), ipv6()], &added.with_ips(&added.result.ips[..1]))
}

fn a_check_passes_over_addresses_of_others(bench: &Bench) -> CheckResult {
    let added = bench.add(C1, &[small()])?;
    let mut foreign = added.result.ips[0].clone();
    foreign.address = network("192.0.2.9/24")?;
    let added = added.with_ips(&[foreign, added.result.ips[0].clone()]);
    bench.check(C1, &[small()], &added)?;
    bench.check(C1, &[small()], &added.without_leases())
}
