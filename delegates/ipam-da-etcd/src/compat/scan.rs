//! Every lease of a network, with what this node remembers itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Entry, Holder};
use log::warn;

use super::CompatLedger;
use crate::entries::{entries_of_node, entry_of_key, read_holdings};
use crate::etcd_ledger::EntryVisitor;
use crate::page::{READS, found_by_key};
use crate::session::EtcdSession;
use crate::values::{LeaseRevision, OwnerState};

/// Shows every entry of the network; only those of `node` where one is named.
pub(super) fn scan(
    ledger: &mut CompatLedger,
    node: Option<&str>,
    each: EntryVisitor<'_>,
) -> Result<()> {
    let Some(node) = node else { return scan_all(ledger, each) };
    let prefix = ledger.session.keys.of_node(node);
    let holdings = indexed(ledger, &prefix)?;
    let network = ledger.session.keys.network().as_str();
    // A visitor that ends early has seen what it needs.
    if entries_of_node(&holdings, node, network).try_for_each(&mut *each).is_break() {
        return Ok(());
    }
    // The files are of a time when the store took no such keys, or of now.
    let listed = holdings.iter().flat_map(OwnerState::leases);
    scan_hint_files(ledger, node, &listed.map(|lease| lease.address.addr()).collect(), each)
}

fn scan_all(ledger: &mut CompatLedger, each: EntryVisitor<'_>) -> Result<()> {
    // A bare container id is all that the plugin's keys tell.
    let prefix = ledger.session.keys.owners().to_owned();
    let owners = indexed(ledger, &prefix)?;
    let mut listed: BTreeMap<(IpAddr, i64), (Entry, bool)> = BTreeMap::new();
    for holding in &owners {
        let here = holding.owner_index.network == ledger.session.keys.network().as_str();
        for entry in holding.entries() {
            let Some(seen) = LeaseRevision::read(&entry.lease.revision) else { continue };
            listed.insert((entry.lease.address.addr(), seen.revision), (entry, here));
        }
    }
    ledger.session.each_below(ledger.session.keys.leases().to_owned(), &mut |keys, found| {
        let address = keys.address(found.key());
        match address.and_then(|address| listed.remove(&(address, found.mod_revision()))) {
            Some((entry, true)) => each(entry),
            Some((_, false)) => ControlFlow::Continue(()),
            None => entry_of_key(keys, found).map_or(ControlFlow::Continue(()), &mut *each),
        }
    })
}

/// Reads the leases of owners whose keys have this prefix: none, if the store denies us such keys.
fn indexed(ledger: &mut CompatLedger, prefix: &str) -> Result<Vec<OwnerState>> {
    ledger.retry_without_index(|CompatLedger { session, .. }| {
        if session.indexed {
            return read_holdings(session, prefix.to_owned());
        }
        // One that lets us read nothing at all has not refused us these keys alone.
        let (answer, _) = session.read_latest_claim()?;
        session.check_answer(&answer)?;
        Ok(Vec::new())
    })
}

/// Shows the leases that this node remembers and the index lacks, if the store still names the
/// container.
fn scan_hint_files(
    ledger: &mut CompatLedger,
    node: &str,
    listed: &BTreeSet<IpAddr>,
    each: EntryVisitor<'_>,
) -> Result<()> {
    let files = ledger.hints.all(ledger.session.keys.network())?;
    let mut times: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for address in files.iter().flat_map(|file| &file.addresses) {
        *times.entry(*address).or_default() += 1;
    }
    // Of two files with one address, one is out of date, and either may be.
    times.retain(|address, times| *times == 1 && !listed.contains(address));
    let found = read_leases(&mut ledger.session, &times.into_keys().collect::<Vec<_>>())?;
    for file in files {
        for address in &file.addresses {
            let Some(found) = found.get(address) else { continue };
            let mut entry = ledger.session.keys.key_format().entry(*address, found);
            entry.since = file.confirmed;
            let holder = entry.holder.take().filter(|its| its.container == file.container);
            let Some(Holder { container, .. }) = holder else { continue };
            entry.holder = Some(Holder {
                node: Some(node.to_owned()),
                container,
                ifname: Some(file.ifname.clone()),
                ..Holder::default()
            });
            if each(entry).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Warns of a plugin that takes addresses which others hold, as long as it is at work, and of the
/// addresses that it has taken from containers of this node, by the runtime's cache of results.
pub(super) fn warn_of_overwriting(ledger: &mut CompatLedger) {
    if let Err(error) = look_for_overwriting(ledger) {
        warn!("cannot look for addresses that host-etcd has given twice: {error}");
    }
}

fn look_for_overwriting(ledger: &mut CompatLedger) -> Result<()> {
    let lock = ledger.keys.lock();
    let answer = ledger.session.read(&Txn::new().and_then([lock.read_all()]))?;
    if found_by_key(&answer.response).values().any(|found| lock.is_of_plugin(found)) {
        warn!(
            "host-etcd still runs on this store and gives addresses that are in use: replace it on every node"
        );
    }
    let given = ledger.hints.given(ledger.session.keys.network());
    let addresses: Vec<IpAddr> = given.iter().map(|(address, _)| *address).collect();
    let found = read_leases(&mut ledger.session, &addresses)?;
    for (address, container) in given {
        let Some(found) = found.get(&address) else { continue };
        let holder = ledger.session.keys.key_format().entry(address, found).holder;
        if let Some(other) = holder.filter(|holder| holder.container != container) {
            warn!(
                "host-etcd gave {address} of {container} to {} as well: re-create {container}",
                other.container.escape_debug()
            );
        }
    }
    Ok(())
}

/// Returns the keys of these addresses, as far as they are there.
fn read_leases(
    session: &mut EtcdSession,
    addresses: &[IpAddr],
) -> Result<BTreeMap<IpAddr, KeyValue>> {
    let mut all = BTreeMap::new();
    for batch in addresses.chunks(READS) {
        let reads = batch.iter().map(|address| TxnOp::get(session.keys.lease(*address), None));
        let answer = session.read(&Txn::new().and_then(reads.collect::<Vec<_>>()))?;
        let found = found_by_key(&answer.response).into_values();
        all.extend(found.filter_map(|found| Some((session.keys.address(found.key())?, found))));
    }
    Ok(all)
}
