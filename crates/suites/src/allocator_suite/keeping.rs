//! GC and STATUS.

use serde_json::json;

use super::checks;
use crate::bench::{Bench, attachments, expect};
use crate::plain::list;
use crate::pool_spec::{other_single, single, small};
use crate::{CheckResult, Finding};
use ipam_kit::allocate::Reach;

checks!(
    gc_keeps_what_either_list_names,
    gc_without_a_list_is_error_7_and_releases_nothing,
    gc_releases_what_no_list_names,
    gc_tells_interfaces_apart,
    gc_spares_what_is_young,
    gc_spares_other_networks,
    gc_spares_other_nodes,
    status_of_a_working_store_succeeds,
    status_of_a_full_pool_fails_when_asked_to,
);

const C1: &str = "c1/eth0";
const C2: &str = "c2/eth0";
const C3: &str = "c3/eth0";

fn gc_keeps_what_either_list_names(bench: &Bench) -> CheckResult {
    let (first, second) = (bench.add(C1, &[small()])?, bench.add(C2, &[small()])?);
    let third = bench.add(C3, &[small()])?;
    bench.age()?;
    let lists = json!({
        "cni.dev/valid-attachments": attachments(&[C1]),
        "cni.dev/attachments": attachments(&[C2]),
    });
    bench.try_gc(&[small()], lists)?.map_err(|r| format!("GC fails: {}", r.message))?;
    bench.check(C1, &[small()], &first.without_leases())?;
    bench.check(C2, &[small()], &second.without_leases())?;
    bench.refuse_check(C3, &[small()], &third.without_leases())
}

fn gc_without_a_list_is_error_7_and_releases_nothing(bench: &Bench) -> CheckResult {
    let added = bench.add(C1, &[small()])?;
    bench.age()?;
    match bench.try_gc(&[small()], json!({}))? {
        Ok(()) => return Err("GC without a list succeeds".to_owned().into()),
        Err(refusal) => expect(!bench.is_delegate() || refusal.code == 7, || {
            format!("the error is {}, not 7: {}", refusal.code, refusal.message)
        })?,
    }
    bench.check(C1, &[small()], &added.without_leases())
}

fn gc_releases_what_no_list_names(bench: &Bench) -> CheckResult {
    bench.add(C1, &[single()])?;
    bench.age()?;
    bench.gc(&[single()], &[])?;
    bench.add(C2, &[single()])?;
    Ok(())
}

fn gc_tells_interfaces_apart(bench: &Bench) -> CheckResult {
    let first = bench.add(C1, &[small()])?;
    let second = bench.add("c1/eth1", &[small()])?;
    bench.age()?;
    bench.gc(&[small()], &["c1/eth1"])?;
    bench.check("c1/eth1", &[small()], &second.without_leases())?;
    bench.refuse_check(C1, &[small()], &first.without_leases())
}

fn gc_spares_what_is_young(bench: &Bench) -> CheckResult {
    let old = bench.add(C1, &[small()])?;
    bench.age()?;
    let young = bench.add(C2, &[small()])?;
    bench.gc(&[small()], &[])?;
    bench.check(C2, &[small()], &young)?;
    bench.refuse_check(C1, &[small()], &old.without_leases())
}

fn gc_spares_other_networks(bench: &Bench) -> CheckResult {
    let elsewhere = bench.elsewhere();
    let (here, there) = (bench.add(C1, &[small()])?, elsewhere.add(C1, &[small()])?);
    bench.age()?;
    bench.gc(&[small()], &[])?;
    elsewhere.check(C1, &[small()], &there.without_leases())?;
    bench.refuse_check(C1, &[small()], &here.without_leases())
}

fn gc_spares_other_nodes(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    if bench.subject.reach() == Reach::Node {
        return Err(Finding::NotApplicable(
            "this check is for a store of several nodes: in Rust `Reach::Cluster`, else --cluster",
        ));
    }
    let elsewhere = bench.on_node("node-2");
    let (here, there) = (bench.add(C1, &[small()])?, elsewhere.add(C1, &[small()])?);
    expect(here.addresses != there.addresses, || {
        format!("two nodes are given {}", list(&here.addresses))
    })?;
    bench.age()?;
    bench.gc(&[small()], &[])?;
    elsewhere.check(C1, &[small()], &there.without_leases())?;
    bench.refuse_check(C1, &[small()], &here.without_leases())
}

fn status_of_a_working_store_succeeds(bench: &Bench) -> CheckResult {
    bench.add(C1, &[single()])?;
    let status = bench.try_status(&[single()], json!({}))?;
    status.map_err(|r| format!("STATUS fails: {} {}", r.code, r.message).into())
}

fn status_of_a_full_pool_fails_when_asked_to(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let asked = json!({"statusExhaustion": true});
    let fails = || -> Result<bool, Finding> {
        Ok(bench.try_status(&[small(), other_single()], asked.clone())?.is_err())
    };
    expect(!fails()?, || "STATUS fails with free addresses".to_owned())?;
    bench.add(C1, &[other_single()])?;
    expect(fails()?, || "STATUS succeeds with a full pool, though asked".to_owned())
}
