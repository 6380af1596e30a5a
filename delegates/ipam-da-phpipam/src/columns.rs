//! The columns of a record, and its text: the owner's mark is in `note`, what people look for in
//! `hostname`, and the time of the latest write in `owner`. phpIPAM has no time of its own before the
//! first change of a record.

use std::net::IpAddr;
use std::time::SystemTime;

use ipam_kit::{Error, ErrorCode, Result};
use ipam_records::server::AddressRecord;
use ipam_records::{container_of, is_marked};
use ipam_servers::{parse_timestamp, timestamp};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};

use crate::answers::AddressRow;

/// The beginning of `owner`; a time follows.
const WRITER: &str = "ipam-delegated ";

/// Words for people beside an address.
const DESCRIPTION: &str = "of a container, until ipam-da-phpipam releases it";

/// The length of `hostname`, in characters.
const HOSTNAME: usize = 255;

/// The columns of a record with a text, written at this time.
pub(crate) struct RecordColumns {
    text: String,
    note: String,
    hostname: String,
    owner: String,
    written: Option<SystemTime>,
}

impl RecordColumns {
    /// # Errors
    /// Code 4: the mark has what phpIPAM takes for a tag of HTML.
    pub(crate) fn of(text: &str) -> Result<Self> {
        let (note, tail) = text.split_once(' ').unwrap_or((text, ""));
        if note.contains('<') {
            return Err(Error::new(
                ErrorCode::INVALID_ENVIRONMENT,
                "CNI_IFNAME: phpIPAM removes what looks like a tag of HTML",
            )
            .advise("use a name of an interface without <"));
        }
        let hostname = match tail {
            "" => container_of(note).unwrap_or_default(),
            tail => tail.to_owned(),
        };
        let owner = format!("{WRITER}{}", timestamp(SystemTime::now()));
        Ok(Self {
            text: text.to_owned(),
            note: note.to_owned(),
            hostname: kept_by_database(&hostname),
            written: parse_timestamp(&owner[WRITER.len()..]),
            owner,
        })
    }

    /// The members of a request, with a key in a custom field.
    pub(crate) fn members(&self, key: Option<(&str, KeyOf)>) -> Map<String, Value> {
        let mut members = Map::new();
        for (column, text) in [
            ("note", &*self.note),
            ("hostname", &self.hostname),
            ("owner", &self.owner),
            ("description", DESCRIPTION),
        ] {
            members.insert(column.to_owned(), text.into());
        }
        if let Some((field, of)) = key {
            members.insert(field.to_owned(), of.value(&self.note).into());
        }
        members
    }

    /// The record that has these columns.
    pub(crate) fn record(self, id: String, address: IpAddr) -> AddressRecord {
        AddressRecord { id, address, text: self.text, stamp: self.owner, written: self.written }
    }
}

/// The record in a row.
///
/// # Errors
/// Code 103: id or address cannot be read.
pub(crate) fn record_of(row: AddressRow) -> Result<AddressRecord> {
    let (id, address) = row.place()?;
    let AddressRow { hostname, description, owner, note, mac, port, edited, .. } = row;
    let [mac, port] = [mac, port].map(|text| text.map(|text| text.to_text()));
    let [hostname, description, owner, note, mac, port] =
        [hostname, description, owner, note, mac, port].map(Option::unwrap_or_default);
    if !is_marked(&note) {
        let text: Vec<&str> = [&*hostname, &*description, &*note, &*owner, &*mac, &*port]
            .into_iter()
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .collect();
        let text = text.join("; ");
        // A host of this name is not a mark.
        let text = if is_marked(&text) { format!("host {text}") } else { text };
        let stamp = edited.unwrap_or_default();
        return Ok(AddressRecord { id, address, text, stamp, written: None });
    }
    let container = container_of(&note).map(|container| kept_by_database(&container));
    let has_tail = !hostname.is_empty() && Some(&hostname) != container.as_ref();
    let text = if has_tail { format!("{note} {hostname}") } else { note };
    let written = owner.strip_prefix(WRITER).and_then(parse_timestamp);
    let stamp = if written.is_some() { owner } else { edited.unwrap_or(owner) };
    Ok(AddressRecord { id, address, text, stamp, written })
}

/// The subject of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyOf {
    /// The owner: it cannot have another record whose address the server chose.
    Owner,
    /// The address, too: the owner can have a record of another one.
    Address(IpAddr),
}

impl KeyOf {
    /// A hash, whose case does not matter: the index ignores case.
    fn value(self, note: &str) -> String {
        let text = match self {
            Self::Owner => note.to_owned(),
            Self::Address(address) => format!("{note} {address}"),
        };
        let hash = digest(&SHA256, text.as_bytes());
        hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A text that the database keeps as it is, and phpIPAM's pages, too.
fn kept_by_database(text: &str) -> String {
    let is_kept = |c: char| !c.is_control() && c < '\u{10000}' && !"<>".contains(c);
    text.chars().map(|c| if is_kept(c) { c } else { '_' }).take(HOSTNAME).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The record as a server shows it that has got these members.
    fn shown(members: &Map<String, Value>) -> AddressRecord {
        let mut row = json!({"id": 7, "subnetId": "3", "ip": "10.0.0.2", "editDate": null});
        row.as_object_mut().unwrap().extend(members.clone());
        record_of(serde_json::from_value(row).unwrap()).unwrap()
    }

    #[test]
    fn a_text_and_its_stamp_are_read_back() {
        for (text, hostname) in [
            ("ipd:n/lan/c1/eth0 default/web-0", "default/web-0"),
            ("ipd:n/lan/c1/eth0", "c1"),
            ("ipd:n/lan@aGFzaA+1// web", "web"),
            ("ipd:n/lan@aGFzaA+1//", ""),
        ] {
            let columns = RecordColumns::of(text).unwrap();
            let members = columns.members(Some(("cni_key", KeyOf::Owner)));
            assert_eq!(members["hostname"], hostname);
            assert_eq!(members["cni_key"].as_str().map(str::len), Some(32));
            let record = shown(&members);
            assert_eq!(record, columns.record("7".into(), [10, 0, 0, 2].into()));
            assert_eq!(record.text, text);
            assert!(record.written.is_some_and(|it| it <= SystemTime::now()));
        }
    }

    #[test]
    fn each_write_has_a_stamp_of_its_own() {
        let stamp = || shown(&RecordColumns::of("ipd:n/lan/c1/eth0").unwrap().members(None)).stamp;
        let first = stamp();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert_ne!(stamp(), first);
    }

    #[test]
    fn a_key_depends_on_the_owner_and_for_a_certain_address_on_that() {
        let key = |text: &str, of: KeyOf| {
            RecordColumns::of(text).unwrap().members(Some(("k", of)))["k"].clone()
        };
        let one = key("ipd:n/lan/c1/eth0 default/web-0", KeyOf::Owner);
        assert_eq!(one, key("ipd:n/lan/c1/eth0", KeyOf::Owner));
        assert_ne!(one, key("ipd:n/lan/C1/eth0", KeyOf::Owner));
        let [first, second] = [2, 3].map(|n| KeyOf::Address([10, 0, 0, n].into()));
        assert_ne!(key("ipd:n/lan/c1/eth0", first), one);
        assert_ne!(key("ipd:n/lan/c1/eth0", first), key("ipd:n/lan/c1/eth0", second));
    }

    #[test]
    fn a_record_of_others_is_described_and_has_no_mark() {
        let members = |hostname: &str, note: &str| {
            let members = json!({"hostname": hostname, "description": "rack 7", "note": note});
            members.as_object().unwrap().clone()
        };
        assert_eq!(shown(&members("printer", "")).text, "printer; rack 7");
        // A name and nothing else would be a record of whereabouts' fork.
        for (column, value) in
            [("owner", json!("alice")), ("mac", json!("a:b")), ("port", json!(7))]
        {
            let record = json!({"hostname": "shop/web-0", column: value});
            assert!(
                shown(record.as_object().unwrap()).text.starts_with("shop/web-0; "),
                "{column}"
            );
        }
        let fake = shown(&members("ipd:n/lan/c1/eth0", ""));
        assert!(!is_marked(&fake.text), "{}", fake.text);
        assert_eq!((fake.written, &*fake.stamp), (None, ""));
    }

    #[test]
    fn a_tag_of_html_is_refused_in_a_mark_and_replaced_in_a_name() {
        assert_eq!(RecordColumns::of("ipd:n/lan/c1/<b>").err().unwrap().code().number(), 4);
        let members = RecordColumns::of("ipd:n/lan/c1/eth0 a/<b>").unwrap().members(None);
        assert_eq!(members["hostname"], "a/_b_");
    }
}
