//! Entries of a network, for GC and people, and the faults that `lint` shows.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Entry, Fault};
use ipam_kit::{ErrorCode, Result};
use ipnet::IpNet;

use crate::ledger::{RecordLedger, Revision};
use crate::mark::{OwnerMark, PREFIX};
use crate::pools;
use crate::server::{AddressRecord, ListDetail, ListQuery, Listed, Listing, RecordServer, Subnet};

/// Receives the records of a subnet that a filter lets through.
struct Collected<F> {
    records: Vec<AddressRecord>,
    filter: F,
}

impl<F: FnMut(&AddressRecord) -> bool> Listing for Collected<F> {
    fn begin(&mut self) {
        self.records.clear();
    }

    fn take(&mut self, record: AddressRecord) {
        if (self.filter)(&record) {
            self.records.push(record);
        }
    }
}

impl<S: RecordServer> RecordLedger<S> {
    pub(crate) fn scan_subnets(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let network = self.call.network.clone();
        for subnet in self.subnets_of_network()? {
            let scope = ipam_kit::allocate::Scope {
                node: node.unwrap_or_default().to_owned(),
                network: network.clone(),
            };
            let of_node = |record: &AddressRecord| match node {
                None => true,
                Some(node) => {
                    let mark = OwnerMark::parse(&record.text).and_then(Result::ok);
                    mark.is_some_and(|mark| mark.is_of_node(node) && mark.is_of_network(&scope))
                }
            };
            let mut listing = Collected { records: Vec::new(), filter: of_node };
            let query = ListQuery { start: None, detail: ListDetail::Whole };
            if self.server.list(&subnet.id, query, &mut listing)? == Listed::NoSubnet {
                self.memory.forget_subnet(&subnet.id);
                continue;
            }
            for record in listing.records {
                let entry = self.entry_for(&record, &subnet, node);
                if each(entry).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A record as an entry of this network.
    pub(crate) fn entry(&self, record: &AddressRecord, subnet: &Subnet) -> Entry {
        self.entry_for(record, subnet, None)
    }

    fn entry_for(&self, record: &AddressRecord, subnet: &Subnet, node: Option<&str>) -> Entry {
        let node = node.or(self.call.node.as_deref());
        let address = IpNet::new(record.address, subnet.cidr.prefix_len());
        let revision = Revision::of(record, &subnet.id).to_json();
        let lease = Lease {
            gateway: subnet.gateway,
            ..Lease::bare(address.unwrap_or(IpNet::from(record.address)), revision)
        };
        let (holder, fault, sticky) = match OwnerMark::parse(&record.text) {
            None => {
                let text = format!("not of an IPAM delegate: {:?}", record.text);
                (None, Some(Fault::Unreadable(text)), None)
            }
            Some(Err(reason)) => {
                let text = format!("{reason}: {:?}", record.text);
                (None, Some(Fault::Unreadable(text)), None)
            }
            Some(Ok(mark)) => {
                let holder = mark.to_holder(self.call.network.as_str(), node);
                let fault = holder.is_none().then(|| Fault::Kept(mark.name()));
                (holder, fault, mark.sticky.as_ref().map(|sticky| format!("#{}", sticky.hash)))
            }
        };
        Entry { lease: Lease { sticky, ..lease }, holder, since: record.written, fault }
    }

    /// Faults of records, rights and settings, in words.
    pub(crate) fn find_faults(&mut self) -> Result<Vec<String>> {
        let mut found = self.server.findings()?;
        let mut pools: BTreeMap<String, usize> = BTreeMap::new();
        for request in self.call.pools.clone() {
            match pools::find(&mut self.server, &mut self.memory, &request) {
                Ok(pool) => {
                    pool.subnets.into_iter().for_each(|it| *pools.entry(it.id).or_default() += 1);
                }
                Err(error) if error.code() == ErrorCode::INVALID_CONFIG => {
                    found.push(error.in_full());
                }
                Err(error) => return Err(error),
            }
        }
        for subnet in self.subnets_of_network()? {
            // An owner has one record for each pool.
            let most = pools.get(&subnet.id).copied().unwrap_or(1);
            let mut listing = Collected { records: Vec::new(), filter: |_: &AddressRecord| true };
            let query = ListQuery { start: None, detail: ListDetail::Whole };
            self.server.list(&subnet.id, query, &mut listing)?;
            let mut addresses: BTreeMap<IpAddr, Vec<&AddressRecord>> = BTreeMap::new();
            let mut owners: BTreeMap<String, Vec<&AddressRecord>> = BTreeMap::new();
            for record in &listing.records {
                addresses.entry(record.address).or_default().push(record);
                let Some(mark) = OwnerMark::parse(&record.text) else { continue };
                match mark.map(|mark| mark.owner_key()) {
                    Ok(Some(owner)) => owners.entry(owner).or_default().push(record),
                    Ok(None) => {}
                    Err(reason) => found.push(format!(
                        "the record {} of {} begins with {PREFIX}, but {reason}: {:?}",
                        record.id, record.address, record.text
                    )),
                }
            }
            for (address, records) in addresses.iter().filter(|(_, records)| records.len() > 1) {
                let held: Vec<String> =
                    records.iter().map(|record| self.entry(record, &subnet).held_by()).collect();
                let count = records.len();
                found.push(format!("{address} has {count} records: {}", held.join("; ")));
            }
            for records in owners.values().filter(|records| records.len() > most) {
                let head = records[0].text.split(' ').next().unwrap_or_default();
                let held: Vec<String> =
                    records.iter().map(|record| record.address.to_string()).collect();
                found.push(format!(
                    "{head} has {} records in {}: {}",
                    records.len(),
                    subnet.cidr,
                    held.join(", ")
                ));
            }
        }
        Ok(found)
    }
}
