//! Records of an older program, whose text is the name of a pod and nothing else. They have no owner:
//! an ADD of the pod makes one anew, and a DEL deletes those that a runtime knows for the container.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use ipam_kit::allocate::{Owner, PoolRequest};
use ipam_kit::cni::IfName;
use ipam_kit::host::{CachedResult, ResultCache};
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::ledger::RecordLedger;
use crate::mark::{NotedOwner, is_marked};
use crate::node_records::addresses_at_other_sites;
use crate::owner_file::OwnerFile;
use crate::pools::{self, SubnetPool};
use crate::server::{AddressRecord, RecordServer};
use crate::sight::SubnetSight;

/// Where runtimes and Multus keep the results of ADDs.
const RESULTS: [&str; 2] = [ResultCache::DEFAULT, "/var/lib/cni/multus/results"];

impl<S: RecordServer> RecordLedger<S> {
    /// The name by which an older program finds the record of a request: the sticky name, else the
    /// pod's.
    pub(crate) fn old_name<'a>(&'a self, request: &'a PoolRequest) -> Option<&'a str> {
        let name = request.sticky.as_ref().map_or(&*self.call.pod, |sticky| &*sticky.name);
        (self.call.adopts && !name.is_empty()).then_some(name)
    }

    /// The address that an older program gave the pod of a request, unless the owner has a record.
    ///
    /// # Errors
    /// Code 11: the record has a name that several pods may have at once, so one of them may run. Code
    /// 5: a cached result cannot be read.
    pub(crate) fn adopted_address(
        &self,
        owner: &Owner,
        request: &PoolRequest,
        pool: &SubnetPool,
        sights: &[&mut SubnetSight],
    ) -> Result<Option<IpAddr>> {
        let Some(name) = self.old_name(request) else { return Ok(None) };
        if sights.iter().any(|sight| !sight.own.is_empty()) {
            return Ok(None);
        }
        let records = sights.iter().flat_map(|sight| &sight.unowned);
        let named = records.filter(|it| it.text == name && pool.set.refusal(it.address).is_none());
        let mut adoptable = None;
        for record in named {
            if adoptable.is_none() && !is_of_other_interface(owner, record)? {
                adoptable = Some(record);
            }
        }
        let Some(record) = adoptable else { return Ok(None) };
        if name == self.call.pod || request.may_take_over() {
            warn!("takes over {} of {name}, which an older program recorded", record.address);
            return Ok(Some(record.address));
        }
        let message = format!(
            "a record without an owner has the sticky name {name:?} and {}: a pod of this name may run",
            record.address
        );
        let path = format!("{}.sticky", request.path);
        Err(Error::new(ErrorCode::TRY_AGAIN, message).at(path).advise(format!(
            "wait for the end of that pod; if it has ended, delete its record in {}, or set \
             ipam.takeover to true",
            S::NAME
        )))
    }

    /// Deletes a record of an older program; false if a person has changed it meanwhile.
    pub(crate) fn delete_unowned(
        &mut self,
        owner: &Owner,
        turn: &mut OwnerFile,
        subnet: &str,
        record: &AddressRecord,
    ) -> Result<bool> {
        let Some(read) = self.server.read(&record.id)? else { return Ok(true) };
        if (read.address, &read.text) != (record.address, &record.text) {
            return Ok(false);
        }
        // A person may have removed the owner's mark.
        if turn.note().is_some_and(|note| note.records.iter().any(|it| it.id == record.id)) {
            self.delete_own(owner, turn, subnet, &read)?;
            return Ok(true);
        }
        self.delete_others(&read)
    }

    /// Fails if the owner has records at another site: the record of an attachment names the file of a
    /// provider, and the file may name another server than at the ADD.
    ///
    /// # Errors
    /// Code 11: it has. Code 5: a note cannot be read.
    pub(crate) fn check_other_sites(&self, owner: &Owner) -> Result<()> {
        let noted = NotedOwner::of(owner);
        let addresses = addresses_at_other_sites(&self.call.owners, &noted)?;
        if addresses.is_empty() {
            return Ok(());
        }
        let addresses = Error::listed(addresses.iter().map(ToString::to_string), ", ");
        let message = format!(
            "{owner} has {addresses} at another server by this node's notes, and no record in this {}",
            S::NAME
        );
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise(
            "let the file of the provider name that server until its containers have ended; if it is \
             permanently lost, or the same server under another name, run ipam-delegated forget for the \
             container",
        ))
    }

    /// Deletes the records of an older program at the watched addresses of sights: a runtime's results
    /// say that the container has them. Subnets of two tenants may have one address: those of the
    /// call's pools count, and an address with two records keeps them.
    pub(crate) fn release_unowned(
        &mut self,
        owner: &Owner,
        turn: &mut OwnerFile,
        sights: &[SubnetSight],
    ) -> Result<()> {
        let mut of_pools = BTreeSet::new();
        for request in self.call.pools.clone() {
            match pools::find_subnets(&mut self.server, &mut self.memory, &request) {
                Ok(found) => of_pools.extend(found.into_iter().map(|subnet| subnet.id)),
                Err(error) if error.code() == ErrorCode::INVALID_CONFIG => {}
                Err(error) => return Err(error),
            }
        }
        let mut found: BTreeMap<IpAddr, Vec<(&str, &AddressRecord)>> = BTreeMap::new();
        for sight in sights {
            let id = &sight.subnet.id;
            if of_pools.is_empty() || of_pools.contains(id) {
                for record in sight.watched.values().filter(|it| self.is_old_name(&it.text)) {
                    let records = found.entry(record.address).or_default();
                    // A sight shows one of the records of an address.
                    let count = sight.count(record.address);
                    records.extend(std::iter::repeat_n((&**id, record), count));
                }
            }
        }
        for (address, records) in found {
            match records[..] {
                [(subnet, record)] => drop(self.delete_unowned(owner, turn, subnet, record)?),
                _ => warn!(
                    "keeps the {} records of {address}: which one {owner} has is unknown",
                    records.len()
                ),
            }
        }
        Ok(())
    }

    /// Whether an older program may have written this text for the pod of the call: its name, or one of
    /// an annotation, without a namespace.
    fn is_old_name(&self, text: &str) -> bool {
        let is_of_pod = self.call.pod.is_empty() || text == self.call.pod || !text.contains('/');
        is_of_pod && is_name(text)
    }
}

/// The addresses that an older program gave a container, by the results that runtimes keep. Addresses
/// after the first of a result are not the server's.
///
/// # Errors
/// A result cannot be read.
pub(crate) fn cached_addresses(owner: &Owner) -> Result<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    for folder in RESULTS {
        let cache = ResultCache::new(folder);
        let cached = cache.of(&owner.scope.network, &owner.container, &owner.ifname)?;
        addresses.extend(cached.and_then(|cached| cached.addresses.first().copied()));
    }
    Ok(addresses)
}

/// Whether another interface of the owner's container has the address of a record by the cached
/// results of runtimes: a pod has the same text in each of its records.
///
/// # Errors
/// Code 5: a result cannot be read.
pub(crate) fn is_of_other_interface(owner: &Owner, record: &AddressRecord) -> Result<bool> {
    let other = other_interface(&RESULTS, owner, record.address)?;
    if let Some(ifname) = &other {
        let AddressRecord { address, text, .. } = record;
        warn!("leaves {address} of {text}, which an older program recorded: {ifname} has it");
    }
    Ok(other.is_some())
}

/// The network of a result may be that of a plugin which calls this one's network.
fn other_interface(
    folders: &[impl AsRef<Path>],
    owner: &Owner,
    address: IpAddr,
) -> Result<Option<IfName>> {
    for folder in folders {
        let cached = ResultCache::new(folder.as_ref()).of_container(&owner.container)?;
        let is_other =
            |it: &CachedResult| it.ifname != owner.ifname && it.addresses.contains(&address);
        if let Some(other) = cached.into_iter().find(is_other) {
            return Ok(Some(other.ifname));
        }
    }
    Ok(None)
}

/// Whether a text is a name and nothing else, as an older program writes it.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !is_marked(text) && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ipam_kit::allocate::Scope;
    use ipam_kit::cni::{ContainerId, NetworkName};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_of_another_interface_is_not_the_owners() {
        let folder = tempfile::tempdir().unwrap();
        let cache = |container: &str, ifname: &str, address: &str| {
            let result = json!({"cniVersion": "1.0.0", "ips": [{"address": address}]});
            let cached = json!({
                "kind": "cniCacheV1", "containerId": container, "ifName": ifname,
                "networkName": "lan", "result": result,
            });
            let name = format!("lan-{container}-{ifname}");
            fs::write(folder.path().join(name), cached.to_string()).unwrap();
        };
        cache("c1", "net1", "10.0.0.4/24");
        cache("c1", "net2", "10.0.0.5/24");
        cache("c2", "net1", "10.0.0.6/24");
        let network = NetworkName::parse("lan").unwrap();
        let owner = Owner {
            scope: Scope { node: "n1".to_owned(), network },
            container: ContainerId::parse("c1").unwrap(),
            ifname: IfName::parse("net2").unwrap(),
        };
        let missing = folder.path().join("missing");
        let folders = [missing.as_path(), folder.path()];
        for (last, other) in [(4, Some("net1")), (5, None), (6, None), (7, None)] {
            let found = other_interface(&folders, &owner, [10, 0, 0, last].into()).unwrap();
            assert_eq!(found.as_ref().map(IfName::as_str), other, "{last}");
        }
    }
}
