//! Subnets and addresses, with the unique indexes of the database.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::answer::{Refusal, told, uncaught};

/// A record of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: String,
    /// The id of its subnet.
    pub subnet: String,
    pub address: String,
    pub hostname: String,
    pub description: String,
    pub owner: String,
    pub note: String,
    /// The value of the custom field.
    pub key: String,
    pub is_gateway: bool,
}

/// A database as it was at one time.
#[derive(Clone, Debug)]
pub struct Snapshot(pub(super) Database);

/// What the server keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Database {
    pub(super) subnets: BTreeMap<u64, SubnetRow>,
    pub(super) addresses: BTreeMap<u64, AddressRow>,
    /// The custom field, which has a unique index with the subnet.
    pub(super) key_field: Option<String>,
    pub(super) last: u64,
}

#[derive(Clone, Debug)]
pub(super) struct SubnetRow {
    pub(super) cidr: IpNet,
    pub(super) description: String,
    pub(super) section: u64,
    /// 0 without one.
    pub(super) parent: u64,
}

#[derive(Clone, Debug)]
pub(super) struct AddressRow {
    pub(super) subnet: u64,
    pub(super) address: IpAddr,
    pub(super) is_gateway: bool,
    /// The columns that were written.
    pub(super) columns: BTreeMap<String, String>,
    pub(super) was_edited: bool,
}

/// The columns of text with their lengths, as far as they have one.
const COLUMNS: [(&str, Option<usize>); 6] = [
    ("hostname", Some(255)),
    ("description", Some(64)),
    ("owner", Some(128)),
    ("port", Some(32)),
    ("mac", Some(20)),
    ("note", None),
];

/// The length of the custom field.
const KEY: usize = 64;

impl Database {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn add_subnet(&mut self, row: SubnetRow) -> u64 {
        let id = self.next();
        self.subnets.insert(id, row);
        id
    }

    /// The columns of a request's members.
    pub(super) fn columns(
        &self,
        members: &Map<String, Value>,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let mut columns = BTreeMap::new();
        for (key, value) in members.iter().filter(|(key, _)| !["ip", "subnetId"].contains(&&***key))
        {
            let length = match COLUMNS.iter().find(|(name, _)| name == key) {
                Some((_, length)) => *length,
                None if self.key_field.as_ref() == Some(key) => Some(KEY),
                None if key == "is_gateway" => None,
                None => return told(400, format!("Invalid request key {key}")),
            };
            let text = match value {
                Value::String(text) => without_tags(text),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            if length.is_some_and(|length| text.chars().count() > length) {
                return uncaught(format!(
                    "Error: SQLSTATE[22001]: String data, right truncated: 1406 Data too long for column '{key}' at row 1"
                ));
            }
            columns.insert(key.clone(), text);
        }
        Ok(columns)
    }

    pub(super) fn find(&self, subnet: u64, address: IpAddr) -> Option<u64> {
        let mut rows = self.addresses.iter();
        rows.find(|(_, row)| row.subnet == subnet && row.address == address).map(|(id, _)| *id)
    }

    /// The lowest address of a subnet without a record.
    pub(super) fn first_free(&self, id: u64) -> Option<IpAddr> {
        let subnet = self.subnets.get(&id)?;
        if self.subnets.values().any(|other| other.parent == id) {
            return None;
        }
        let rows = self.addresses.values().filter(|row| row.subnet == id);
        let used: BTreeSet<IpAddr> = rows.map(|row| row.address).collect();
        let is_free = |address: &IpAddr| !used.contains(address);
        match subnet.cidr {
            IpNet::V4(cidr) => cidr.hosts().map(IpAddr::from).find(is_free),
            // Also the anycast address of routers.
            IpNet::V6(cidr) => {
                let first = u128::from(cidr.network());
                let last = u128::from(cidr.broadcast());
                (first..=last).map(|bits| IpAddr::V6(bits.into())).find(is_free)
            }
        }
    }

    pub(super) fn insert(
        &mut self,
        subnet: u64,
        address: IpAddr,
        columns: BTreeMap<String, String>,
    ) -> Result<u64, Refusal> {
        if self.find(subnet, address).is_some() {
            let number = match address {
                IpAddr::V4(address) => u128::from(u32::from(address)),
                IpAddr::V6(address) => address.into(),
            };
            return duplicate(&format!("{number}-{subnet}"), "sid_ip_unique");
        }
        self.check_key(subnet, None, &columns)?;
        let is_gateway = columns.get("is_gateway").is_some_and(|text| text == "1");
        let id = self.next();
        let row = AddressRow { subnet, address, is_gateway, columns, was_edited: false };
        self.addresses.insert(id, row);
        Ok(id)
    }

    pub(super) fn update(
        &mut self,
        id: u64,
        columns: BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let Some(row) = self.addresses.get(&id) else { return Ok(()) };
        self.check_key(row.subnet, Some(id), &columns)?;
        if let Some(row) = self.addresses.get_mut(&id) {
            row.columns.extend(columns);
            row.was_edited = true;
        }
        Ok(())
    }

    /// The index compares without case, and without spaces at the end.
    fn check_key(
        &self,
        subnet: u64,
        own: Option<u64>,
        columns: &BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let Some(field) = &self.key_field else { return Ok(()) };
        let folded = |text: &String| text.trim_end().to_lowercase();
        let Some(key) = columns.get(field).filter(|key| !key.is_empty()) else { return Ok(()) };
        let mut rows = self.addresses.iter().filter(|(id, row)| {
            row.subnet == subnet && Some(**id) != own && row.columns.contains_key(field)
        });
        if rows.any(|(_, row)| folded(&row.columns[field]) == folded(key)) {
            return duplicate(&format!("{subnet}-{key}"), &format!("{field}_u"));
        }
        Ok(())
    }

    /// A record as its server shows it.
    pub(super) fn address_json(&self, id: u64, row: &AddressRow) -> Value {
        let mut shown = json!({
            "id": id, "subnetId": row.subnet, "ip": row.address,
            "is_gateway": u8::from(row.is_gateway), "tag": 2, "deviceId": 0, "location": null,
            "lastSeen": null, "excludePing": 0, "PTRignore": 0, "PTR": 0,
            "firewallAddressObject": null, "customer_id": null,
            "editDate": row.was_edited.then_some("2026-11-21 09:13:29"),
        });
        let names = COLUMNS.iter().map(|(name, _)| *name).chain(self.key_field.as_deref());
        for name in names {
            // An empty text is kept as NULL.
            let text = row.columns.get(name).filter(|text| !text.is_empty());
            shown[name] = text.map(|text| &**text).into();
        }
        shown
    }

    pub(super) fn subnet_json(id: u64, row: &SubnetRow) -> Value {
        json!({
            "id": id, "subnet": row.cidr.addr(), "mask": row.cidr.prefix_len().to_string(),
            "sectionId": row.section, "description": row.description, "linked_subnet": null,
            "firewallAddressObject": null, "vrfId": 0, "masterSubnetId": row.parent,
            "allowRequests": 0, "vlanId": 0, "showName": 0, "device": 0, "permissions": [],
            "pingSubnet": 0, "discoverSubnet": 0, "resolveDNS": 0, "DNSrecursive": 0,
            "DNSrecords": 0, "nameserverId": 0, "scanAgent": 0, "customer_id": null,
            "isFolder": 0, "isFull": 0, "isPool": 0, "tag": 2, "threshold": 0, "location": [],
            "editDate": null, "lastScan": null, "lastDiscovery": null,
        })
    }
}

fn duplicate<T>(entry: &str, key: &str) -> Result<T, Refusal> {
    uncaught(format!(
        "Error: SQLSTATE[23000]: Integrity constraint violation: 1062 Duplicate entry '{entry}' for key '{key}'"
    ))
}

fn without_tags(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once('<') {
        kept += before;
        if tag.starts_with(char::is_whitespace) {
            // PHP takes this for a sign of less.
            kept.push('<');
            rest = tag;
            continue;
        }
        rest = tag.split_once('>').map_or("", |(_, after)| after);
    }
    kept + rest
}
