use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
pub(crate) use ipam_kit::allocate::owner_index::{
    IndexedLease, LeaseRevision, OwnerIndex, OwnerState, now, time, to_text,
};
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

/// Reads the answer about an owner's key.
///
/// # Errors
/// The value is invalid: nothing may be written over it.
pub(crate) fn parse_holding(found: &KeyValue) -> Result<OwnerState> {
    let owner_index = serde_json::from_slice(found.value()).map_err(|error| {
        let key = String::from_utf8_lossy(found.key());
        Error::new(ErrorCode::BACKEND, format!("invalid value of the key {key}"))
            .caused_by(error)
            .advise(format!(
                "look at it (etcdctl get '{key}'), and delete the key if no other program needs it"
            ))
    })?;
    Ok(OwnerState { revision: found.mod_revision(), owner_index })
}

/// Returns the entry of an address whose value has at most the holder, or the reason why it has
/// none.
pub(crate) fn bare_entry(address: IpAddr, found: &KeyValue, holder: Result<Holder, &str>) -> Entry {
    let key = String::from_utf8_lossy(found.key());
    let unreadable =
        |why: &&str| Fault::Unreadable(format!("invalid value of the key {key}: {why}"));
    let revision = LeaseRevision { revision: found.mod_revision(), leases: 0 };
    Entry {
        lease: Lease::bare(IpNet::from(address), revision.to_json()),
        fault: holder.as_ref().err().map(unreadable),
        holder: holder.ok(),
        since: None,
    }
}

/// Returns the revision that a lease was seen at; for a foreign lease, one that no key has.
pub(crate) fn revision_of(lease: &Lease) -> i64 {
    LeaseRevision::read(&lease.revision).map_or(-1, |revision| revision.revision)
}
