//! The answers of the server, read.

use std::net::IpAddr;

use ipam_kit::{Error, ErrorCode, Result};
use ipam_records::server::Subnet;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An answer. Its code counts, not the status of HTTP: a change that waited too long for a lock has
/// the status 200.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) code: u16,
    pub(crate) success: bool,
    #[serde(default)]
    message: Option<Value>,
    #[serde(default)]
    id: Option<IdText>,
    #[serde(default)]
    pub(crate) data: Option<Value>,
}

/// A text, or a number: phpIPAM shows ids as both.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub(crate) enum IdText {
    Text(String),
    Number(u64),
}

/// A record as JSON has it.
#[derive(Debug, Deserialize)]
pub(crate) struct AddressRow {
    pub(crate) id: IdText,
    #[serde(rename = "subnetId")]
    pub(crate) subnet: IdText,
    #[serde(default)]
    ip: Option<String>,
    #[serde(default)]
    ip_addr: Option<String>,
    #[serde(default)]
    pub(crate) hostname: Option<String>,
    #[serde(default)]
    pub(crate) description: Option<String>,
    #[serde(default)]
    pub(crate) owner: Option<String>,
    #[serde(default)]
    pub(crate) note: Option<String>,
    #[serde(default)]
    pub(crate) mac: Option<IdText>,
    #[serde(default)]
    pub(crate) port: Option<IdText>,
    #[serde(default, rename = "editDate")]
    pub(crate) edited: Option<String>,
}

/// A subnet as JSON has it.
#[derive(Debug, Deserialize)]
pub(crate) struct SubnetRow {
    id: IdText,
    subnet: String,
    mask: IdText,
    #[serde(rename = "sectionId")]
    pub(crate) section: IdText,
    #[serde(default)]
    description: Option<String>,
    #[serde(default, rename = "masterSubnetId")]
    parent: Option<IdText>,
    #[serde(default)]
    gateway: Option<GatewayRow>,
}

#[derive(Debug, Deserialize)]
struct GatewayRow {
    #[serde(default)]
    ip_addr: Option<String>,
    #[serde(default)]
    ip: Option<String>,
}

impl Envelope {
    /// Reads a body; `None` for one that is not phpIPAM's.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// Whether it has this code, and says the same of its success.
    pub(crate) fn is(&self, code: u16) -> bool {
        self.code == code && self.success == (200..300).contains(&code)
    }

    pub(crate) fn message(&self) -> String {
        match &self.message {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    pub(crate) fn says(&self, part: &str) -> bool {
        self.message().contains(part)
    }

    /// The id of what was made.
    pub(crate) fn id(&self) -> Option<String> {
        self.id.as_ref().map(IdText::to_text).filter(|id| is_id(id))
    }

    /// The address that was chosen.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.data.as_ref()?.as_str()?.parse().ok()
    }
}

impl IdText {
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

impl AddressRow {
    /// The id and the address.
    ///
    /// # Errors
    /// Code 103: they cannot be read.
    pub(crate) fn place(&self) -> Result<(String, IpAddr)> {
        let id = self.id.to_text();
        let texts = [&self.ip, &self.ip_addr];
        let address = texts.into_iter().flatten().find_map(|text| text.parse().ok());
        match address.filter(|_| is_id(&id)) {
            Some(address) => Ok((id, address)),
            None => Err(nonsense(format!("the record {id:?} has the address {texts:?}"))),
        }
    }
}

impl SubnetRow {
    /// The subnet, with its gateway if the answer has one.
    ///
    /// # Errors
    /// Code 103: it has no CIDR.
    pub(crate) fn subnet(&self) -> Result<Subnet> {
        let (id, cidr) = (self.id.to_text(), format!("{}/{}", self.subnet, self.mask.to_text()));
        let Some(cidr) = cidr.parse::<IpNet>().ok().filter(|_| is_id(&id)) else {
            return Err(nonsense(format!("the subnet {id:?} has the CIDR {cidr:?}")));
        };
        let gateway = self.gateway.as_ref().and_then(|gateway| {
            let texts = [&gateway.ip_addr, &gateway.ip];
            texts.into_iter().flatten().find_map(|text| text.parse::<IpAddr>().ok())
        });
        Ok(Subnet {
            id,
            name: self.description.clone().unwrap_or_default(),
            cidr: cidr.trunc(),
            gateway: gateway.filter(|gateway| cidr.contains(gateway)),
            parent: self.parent.as_ref().map(IdText::to_text).filter(|parent| parent != "0"),
            refusal: None,
        })
    }
}

/// Whether a text is an id of phpIPAM: a number above 0.
fn is_id(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|id| id > 0)
}

/// Reads the body of an answer.
///
/// # Errors
/// Code 103: it is not such JSON.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| nonsense(format!("cannot parse {what}")).caused_by(error.to_string()))
}

/// Reads the data of an answer.
///
/// # Errors
/// As of [`parse`].
pub(crate) fn parse_data<T: DeserializeOwned>(envelope: Envelope, what: &str) -> Result<T> {
    serde_json::from_value(envelope.data.unwrap_or_default())
        .map_err(|error| nonsense(format!("cannot parse {what}")).caused_by(error.to_string()))
}

/// The error of an answer that is not phpIPAM's.
pub(crate) fn nonsense(what: String) -> Error {
    Error::new(ErrorCode::BACKEND, format!("phpIPAM: {what}")).advise(
        "check ipam.phpipam.url: expected the URL of a phpIPAM 1.5 or later, below which api/ is",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_code_of_an_envelope_counts_and_its_success() {
        for (envelope, code, is_it) in [
            (json!({"code": 201, "success": true}), 201, true),
            (json!({"code": 201, "success": false}), 201, false),
            (json!({"code": 500, "success": false, "message": "Cannot obtain lock"}), 500, true),
            (json!({"code": 500, "success": false}), 200, false),
        ] {
            let read = Envelope::parse(envelope.to_string().as_bytes()).unwrap();
            assert_eq!(read.is(code), is_it, "{envelope}");
        }
        for body in ["", "<h1>", "{}", "7", r#"{"code":"200"}"#, r#"{"detail":"Not found."}"#] {
            assert!(Envelope::parse(body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn ids_are_numbers_or_texts() {
        for (id, text) in [(json!(7), Some("7")), (json!("7"), Some("7")), (json!("x"), None)] {
            let envelope = json!({"code": 201, "success": true, "id": id}).to_string();
            assert_eq!(Envelope::parse(envelope.as_bytes()).unwrap().id().as_deref(), text);
            let row = json!({"id": id, "subnetId": id, "ip": "10.0.0.2", "note": null});
            let row: AddressRow = serde_json::from_value(row).unwrap();
            assert_eq!(row.place().ok().map(|(id, _)| id).as_deref(), text);
        }
    }

    #[test]
    fn a_subnet_has_a_gateway_of_its_own_and_no_parent_0() {
        let subnet = |gateway: Value, parent: Value| {
            let json = json!({"id": "3", "subnet": "10.0.0.0", "mask": "24", "sectionId": 1,
                "description": null, "masterSubnetId": parent, "gateway": gateway});
            serde_json::from_value::<SubnetRow>(json).unwrap().subnet().unwrap()
        };
        let one = subnet(json!({"id": 9, "ip_addr": "10.0.0.1"}), json!("0"));
        assert_eq!((one.gateway, one.parent), (Some([10, 0, 0, 1].into()), None));
        let other = subnet(json!({"ip_addr": "10.1.0.1"}), json!(2));
        assert_eq!((other.gateway, other.parent.as_deref()), (None, Some("2")));
    }
}
