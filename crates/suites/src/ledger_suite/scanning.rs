//! What GC and operators do.

use std::ops::ControlFlow;

use super::checks;
use super::room::{Room, Stage, done, expect};
use crate::plain::{self, leases, list};
use crate::{Finding, Verdict};
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

fn a_scan_shows_all_that_is_held_and_nothing_else<S: Stage>(room: &Room<'_, S>) -> Verdict {
    expect(room.entries()?.is_empty(), || "a network without leases has entries".to_owned())?;
    let start = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for (container, ifname, address) in
        [("c1", "eth0", "10.1.2.7"), ("c1", "eth1", "10.1.2.9"), ("c2", "eth0", "fd00:1::9")]
    {
        let lease = room.take(&room.owner(container, ifname)?, address)?;
        let entries = room.entries()?;
        let Some(entry) = entries.get(&lease.address.addr()) else {
            return Err(format!("{address} is held, but not among {}", list(room.state()?)).into());
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
    let entries = room.entries()?;
    expect(entries.len() == 3, || {
        format!("three are held, the scan shows {}", list(entries.keys()))
    })?;
    let owner = room.owner("c1", "eth0")?;
    let change = Change { drop: room.held(&owner)?, ..Change::default() };
    done(room.commit(&owner, &change)?, "a drop")?;
    let entries = room.entries()?;
    expect(entries.len() == 2, || format!("two are held, the scan shows {}", list(entries.keys())))
}

fn a_scan_of_a_node_shows_its_own<S: Stage>(room: &Room<'_, S>) -> Verdict {
    room.take(&room.owner("c1", "eth0")?, "10.1.2.7")?;
    if S::Ledger::REACH == Reach::Cluster {
        room.take(&room.owner_on("node-2", "c2", "eth0")?, "10.1.2.9")?;
    }
    let mut shown = Vec::new();
    room.open()?.scan(Some("node-1"), &mut |entry| {
        shown.push(entry.lease.address.addr().to_string());
        ControlFlow::Continue(())
    })?;
    expect(shown == ["10.1.2.7"], || format!("node-1 holds 10.1.2.7, shown is {}", list(&shown)))
}

fn a_scan_may_be_broken_off<S: Stage>(room: &Room<'_, S>) -> Verdict {
    for (container, address) in [("c1", "10.1.2.7"), ("c2", "10.1.2.9"), ("c3", "10.1.2.4")] {
        room.take(&room.owner(container, "eth0")?, address)?;
    }
    let mut shown = 0;
    room.open()?.scan(None, &mut |_| {
        shown += 1;
        ControlFlow::Break(())
    })?;
    expect(shown == 1, || format!("{shown} entries are shown to one who wanted one"))
}

fn an_entry_is_removed<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let (first, second) = (room.owner("c1", "eth0")?, room.owner("c2", "eth0")?);
    let gone = room.take(&first, "10.1.2.7")?.address.addr();
    room.take(&second, "10.1.2.9")?;
    let entry = room.entries()?.remove(&gone).ok_or("no entry".to_owned())?;
    let removed = room.open()?.remove(&[entry])?;
    expect(removed.len() == 1 && removed[0].lease.address.addr() == gone, || {
        format!("removed is {}", plain::entries(&removed))
    })?;
    let (one, other) = (room.held(&first)?, room.held(&second)?);
    expect(one.is_empty() && other.len() == 1, || {
        format!("c1 holds {}, c2 {}", leases(&one), leases(&other))
    })
}

fn only_the_very_entry_is_removed<S: Stage>(room: &Room<'_, S>) -> Verdict {
    let (first, second) = (room.owner("c1", "eth0")?, room.owner("c2", "eth0")?);
    let lease = room.take(&first, "10.1.2.7")?;
    let old = room.entries()?;
    let entries: Vec<_> = old.values().cloned().collect();
    let keep = Change { keep: vec![lease], ..Change::default() };
    let (kept, _) = done(room.commit(&first, &keep)?, "a keep")?;
    let spared = |room: &Room<'_, S>, what: &str| -> Verdict {
        let before = room.state()?;
        let removed = room.open()?.remove(&entries)?;
        expect(removed.is_empty() && before == room.state()?, || {
            format!("an entry was read, then {what}, and removed was {}", plain::entries(&removed))
        })
    };
    spared(room, "its lease was written anew")?;
    done(room.commit(&first, &Change { drop: kept, ..Change::default() })?, "a drop")?;
    spared(room, "its lease was freed")?;
    room.take(&second, "10.1.2.7")?;
    spared(room, "its address went to another owner")
}

fn a_removed_lease_is_free<S: Stage>(room: &Room<'_, S>) -> Verdict {
    room.take(&room.owner("c1", "eth0")?, "10.1.2.7")?;
    let entries: Vec<_> = room.entries()?.into_values().collect();
    room.open()?.remove(&entries)?;
    room.take(&room.owner("c2", "eth0")?, "10.1.2.7")?;
    Ok(())
}

fn a_ledger_is_ready<S: Stage>(room: &Room<'_, S>) -> Verdict {
    room.take(&room.owner("c1", "eth0")?, "10.1.2.7")?;
    room.open()?.ready().map_err(Finding::from)
}
