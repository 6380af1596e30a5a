//! Checks of scans and removals, as GC and operators make them.

use std::ops::ControlFlow;

use super::bench::{LedgerBench, LedgerSubject, done, expect};
use super::checks;
use crate::plain::{self, leases, list};
use crate::{CheckResult, Finding};
use ipam_kit::allocate::Reach;
use ipam_kit::allocate::ledger::{Change, Ledger};

checks!(
    a_scan_shows_all_that_is_held_and_nothing_else,
    a_scan_of_a_node_shows_its_own,
    a_scan_may_be_broken_off,
    an_entry_is_removed,
    only_the_very_entry_is_removed,
    a_removed_lease_is_free,
    a_ledger_is_ready,
);

fn a_scan_shows_all_that_is_held_and_nothing_else<S: LedgerSubject>(
    bench: &LedgerBench<'_, S>,
) -> CheckResult {
    expect(bench.entries()?.is_empty(), || "a network without leases has entries".to_owned())?;
    let start = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for (container, ifname, address) in
        [("c1", "eth0", "10.1.2.7"), ("c1", "eth1", "10.1.2.9"), ("c2", "eth0", "fd00:1::9")]
    {
        let lease = bench.take(&bench.owner(container, ifname)?, address)?;
        let entries = bench.entries()?;
        let Some(entry) = entries.get(&lease.address.addr()) else {
            return Err(format!("{address} is held, but not among {}", list(bench.state()?)).into());
        };
        let holder = entry.holder.as_ref();
        let named = holder.is_some_and(|holder| {
            holder.container == container
                && holder.ifname.as_deref().is_none_or(|told| told == ifname)
                && holder.node.as_deref().is_none_or(|node| node == "node-1")
        });
        expect(named, || {
            format!("{address} is {container}/{ifname}'s, the scan says {}", entry.held_by())
        })?;
        expect(entry.lease.revision == lease.revision, || {
            format!(
                "{address} has revision {}, the scan says {}",
                lease.revision, entry.lease.revision
            )
        })?;
        expect(entry.fault.is_none(), || {
            format!("{address}: {}", plain::fault(entry.fault.as_ref()))
        })?;
        expect(entry.since.is_none_or(|since| since > start), || {
            format!("{address} was taken just now, the scan says {}", plain::ago(entry.since))
        })?;
    }
    let entries = bench.entries()?;
    expect(entries.len() == 3, || {
        format!("three are held, the scan shows {}", list(entries.keys()))
    })?;
    let owner = bench.owner("c1", "eth0")?;
    let change = Change { drop: bench.held(&owner)?, ..Change::default() };
    done(bench.commit(&owner, &change)?, "a drop")?;
    let entries = bench.entries()?;
    expect(entries.len() == 2, || format!("two are held, the scan shows {}", list(entries.keys())))
}

fn a_scan_of_a_node_shows_its_own<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    bench.take(&bench.owner("c1", "eth0")?, "10.1.2.7")?;
    if S::Ledger::REACH == Reach::Cluster {
        bench.take(&bench.owner_on("node-2", "c2", "eth0")?, "10.1.2.9")?;
    }
    let mut shown = Vec::new();
    bench.open()?.scan(Some("node-1"), &mut |entry| {
        shown.push(entry.lease.address.addr().to_string());
        ControlFlow::Continue(())
    })?;
    expect(shown == ["10.1.2.7"], || format!("node-1 holds 10.1.2.7, shown is {}", list(&shown)))
}

fn a_scan_may_be_broken_off<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    for (container, address) in [("c1", "10.1.2.7"), ("c2", "10.1.2.9"), ("c3", "10.1.2.4")] {
        bench.take(&bench.owner(container, "eth0")?, address)?;
    }
    let mut shown = 0;
    bench.open()?.scan(None, &mut |_| {
        shown += 1;
        ControlFlow::Break(())
    })?;
    expect(shown == 1, || format!("{shown} entries are shown to one who wanted one"))
}

fn an_entry_is_removed<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    let gone = bench.take(&first, "10.1.2.7")?.address.addr();
    bench.take(&second, "10.1.2.9")?;
    let entry = bench.entries()?.remove(&gone).ok_or("no entry".to_owned())?;
    let removed = bench.open()?.remove(&[entry])?;
    expect(removed.len() == 1 && removed[0].lease.address.addr() == gone, || {
        format!("removed is {}", plain::entries(&removed))
    })?;
    let (one, other) = (bench.held(&first)?, bench.held(&second)?);
    expect(one.is_empty() && other.len() == 1, || {
        format!("c1 holds {}, c2 {}", leases(&one), leases(&other))
    })
}

fn only_the_very_entry_is_removed<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    let (first, second) = (bench.owner("c1", "eth0")?, bench.owner("c2", "eth0")?);
    let lease = bench.take(&first, "10.1.2.7")?;
    let old = bench.entries()?;
    let entries: Vec<_> = old.values().cloned().collect();
    let keep = Change { keep: vec![lease], ..Change::default() };
    let (kept, _) = done(bench.commit(&first, &keep)?, "a keep")?;
    let spared = |bench: &LedgerBench<'_, S>, what: &str| -> CheckResult {
        let before = bench.state()?;
        let removed = bench.open()?.remove(&entries)?;
        expect(removed.is_empty() && before == bench.state()?, || {
            format!("an entry was read, then {what}, and removed was {}", plain::entries(&removed))
        })
    };
    spared(bench, "its lease was written anew")?;
    done(bench.commit(&first, &Change { drop: kept, ..Change::default() })?, "a drop")?;
    spared(bench, "its lease was freed")?;
    bench.take(&second, "10.1.2.7")?;
    spared(bench, "its address went to another owner")
}

fn a_removed_lease_is_free<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    bench.take(&bench.owner("c1", "eth0")?, "10.1.2.7")?;
    let entries: Vec<_> = bench.entries()?.into_values().collect();
    bench.open()?.remove(&entries)?;
    bench.take(&bench.owner("c2", "eth0")?, "10.1.2.7")?;
    Ok(())
}

fn a_ledger_is_ready<S: LedgerSubject>(bench: &LedgerBench<'_, S>) -> CheckResult {
    bench.take(&bench.owner("c1", "eth0")?, "10.1.2.7")?;
    bench.open()?.ready().map_err(Finding::from)
}
