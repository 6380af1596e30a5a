//! Parses the server's answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipam_kit::{Error, ErrorCode, Result};
use ipam_records::server::{AddressRecord, Subnet};
use ipam_servers::{HttpAnswer, parse_http_date, parse_timestamp};
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Organization;
use crate::pages::Identified;

/// The part of a page beside its elements.
#[derive(Debug, Deserialize)]
pub(crate) struct PageEnd {
    pub(crate) count: usize,
    pub(crate) next: Option<String>,
    /// Empty, because the elements were read before.
    #[serde(rename = "results")]
    _results: Vec<Value>,
}

/// A record in JSON.
#[derive(Debug, Deserialize)]
pub(crate) struct AddressJson {
    id: String,
    modified: String,
    ip_address: String,
    description: Option<String>,
    subnet: String,
}

/// A subnet in JSON.
#[derive(Debug, Deserialize)]
pub(crate) struct SubnetJson {
    id: String,
    name: String,
    subnet: String,
    description: Option<String>,
    organization: Option<String>,
    master_subnet: Option<String>,
}

impl Identified for AddressJson {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for SubnetJson {
    fn id(&self) -> &str {
        &self.id
    }
}

/// How far the clock of the server is behind this machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    here: SystemTime,
    there: SystemTime,
}

/// The header `Date` has whole seconds, so smaller differences do not count.
const SAME: Duration = Duration::from_secs(2);

impl Clock {
    /// The clocks when an answer came.
    pub(crate) fn of(head: &HttpAnswer) -> Self {
        Self::at(SystemTime::now(), head.header("date").and_then(parse_http_date))
    }

    fn at(here: SystemTime, there: Option<SystemTime>) -> Self {
        let there = there.unwrap_or(here);
        let difference = here.duration_since(there).unwrap_or_else(|ahead| ahead.duration());
        Self { here, there: if difference <= SAME { here } else { there } }
    }

    /// A time of the server by this machine's clock.
    fn to_here(self, time: SystemTime) -> Option<SystemTime> {
        match self.there.duration_since(time) {
            Ok(age) => self.here.checked_sub(age),
            Err(ahead) => self.here.checked_add(ahead.duration()),
        }
    }
}

impl AddressJson {
    /// The record.
    ///
    /// # Errors
    /// Code 103: it belongs to another subnet than this one; its address is malformed.
    pub(crate) fn record(self, subnet: Option<&str>, clock: Clock) -> Result<AddressRecord> {
        if subnet.is_some_and(|subnet| subnet != self.subnet) {
            return Err(nonsense(format!("the record {} belongs to another subnet", self.id)));
        }
        let address = self.ip_address.parse().map_err(|_| {
            nonsense(format!("the record {} has the address {:?}", self.id, self.ip_address))
        })?;
        let written = parse_timestamp(&self.modified).and_then(|time| clock.to_here(time));
        Ok(AddressRecord {
            id: self.id,
            address,
            text: self.description.unwrap_or_default(),
            stamp: self.modified,
            written,
        })
    }
}

/// The gateway in the description of a subnet of this CIDR, such as `{"gw": "10.0.0.1"}`.
///
/// # Errors
/// The reason: the description names a gateway in another form.
fn gateway(description: &str, cidr: IpNet) -> Result<Option<IpAddr>, String> {
    #[derive(Deserialize)]
    struct GatewayJson {
        gw: IpAddr,
    }
    if !description.contains("\"gw\"") {
        return Ok(None);
    }
    let gateway = serde_json::from_str(description).ok().map(|GatewayJson { gw }| gw);
    match gateway.filter(|gateway| gateway.is_ipv4() == cidr.addr().is_ipv4()) {
        Some(gateway) => Ok(Some(gateway)),
        None => Err(format!(
            "the gateway in its description cannot be read: {description:?}: write it in OpenWISP as in \
             {{\"gw\": \"10.0.0.1\"}}, or remove it"
        )),
    }
}

impl SubnetJson {
    /// The subnet; `None` if it belongs to another organization than the configured one.
    fn subnet(self, organization: &Organization) -> Result<Option<Subnet>> {
        let is_seen = match (organization, &self.organization) {
            (Organization::Any, _) | (Organization::Shared, None) => true,
            (Organization::Id(id), Some(of)) => id == of,
            (Organization::Shared, Some(_)) | (Organization::Id(_), None) => false,
        };
        if !is_seen {
            return Ok(None);
        }
        let cidr: IpNet = self.subnet.parse().map_err(|_| {
            nonsense(format!("the subnet {} has the CIDR {:?}", self.id, self.subnet))
        })?;
        let gateway = gateway(self.description.as_deref().unwrap_or_default(), cidr);
        let is_shared = self.organization.is_none() && *organization == Organization::Any;
        let shared = is_shared.then(|| {
            "it has no organization, so only a superuser may delete its records: give it an organization, or, \
             for a superuser, set ipam.openwisp.organization to shared"
                .to_owned()
        });
        let refusal = shared.or_else(|| gateway.clone().err());
        Ok(Some(Subnet {
            id: self.id,
            name: self.name,
            cidr: cidr.trunc(),
            gateway: gateway.unwrap_or_default(),
            parent: self.master_subnet,
            refusal,
        }))
    }
}

/// The subnets of the configured organization.
///
/// # Errors
/// Code 103: the CIDR of a subnet is malformed.
pub(crate) fn seen_subnets(
    all: Vec<SubnetJson>,
    organization: &Organization,
) -> Result<Vec<Subnet>> {
    let child = |json: &SubnetJson| Some((json.master_subnet.clone()?, json.subnet.clone()));
    let children: BTreeMap<String, String> = all.iter().filter_map(child).collect();
    let mut seen = Vec::new();
    for json in all {
        let Some(mut subnet) = json.subnet(organization)? else { continue };
        // The child may belong to another organization.
        if let Some(child) = children.get(&subnet.id) {
            subnet.refusal =
                Some(format!("it contains the subnet {child}: name one without others inside"));
        }
        seen.push(subnet);
    }
    Ok(seen)
}

/// Reads the body of an answer.
///
/// # Errors
/// Code 103: it is not such JSON.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| nonsense(format!("cannot parse {what}")).caused_by(error.to_string()))
}

/// Whether the body of a 404 is OpenWISP's words for an object that does not exist. A proxy before it
/// may answer 404 too, which proves nothing.
///
/// # Errors
/// Code 103: the body has other words.
pub(crate) fn check_absent(body: &[u8], path: &str) -> Result<()> {
    check_detail(body, path, is_absence)
}

/// [`check_absent`] for a page of a list after the first: the list may have become shorter.
///
/// # Errors
/// As of [`check_absent`].
pub(crate) fn check_no_page(body: &[u8], path: &str) -> Result<()> {
    check_detail(body, path, |detail| is_absence(detail) || detail == "Invalid page.")
}

fn is_absence(detail: &str) -> bool {
    let model = || detail.strip_prefix("No ")?.strip_suffix(" matches the given query.");
    detail == "Not found."
        || model().is_some_and(|model| {
            !model.is_empty() && model.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
}

fn check_detail(body: &[u8], path: &str, proves: fn(&str) -> bool) -> Result<()> {
    #[derive(Deserialize)]
    struct Detail {
        detail: String,
    }
    match serde_json::from_slice::<Detail>(body) {
        Ok(Detail { detail }) if proves(&detail) => Ok(()),
        _ => Err(nonsense(format!("cannot tell whether {path} exists: the 404 lacks OpenWISP's words")).advise(
            "check the proxies before OpenWISP; if it answers in another language, set its LANGUAGE_CODE to en",
        )),
    }
}

/// The error of an answer that OpenWISP does not give.
pub(crate) fn nonsense(what: String) -> Error {
    Error::new(ErrorCode::BACKEND, format!("OpenWISP: {what}")).advise(
        "check ipam.openwisp.url: expected the root URL of an OpenWISP with openwisp-ipam 1.x",
    )
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn an_age_is_the_same_by_both_clocks() {
        for (here, there, written, expected) in [
            (1000, Some(1000), 900, 900),
            (1000, Some(998), 900, 900),
            (1000, Some(400), 300, 900),
            (1000, Some(4000), 3900, 900),
            (1000, Some(4000), 4001, 1001),
            (1000, None, 900, 900),
        ] {
            let clock = Clock::at(at(here), there.map(at));
            assert_eq!(clock.to_here(at(written)), Some(at(expected)));
        }
    }

    fn subnet(members: Value, organization: &Organization) -> Option<Subnet> {
        let mut json = json!({
            "id": "s", "name": "blue", "subnet": "10.0.0.0/24", "description": "",
            "organization": "o", "master_subnet": null,
        });
        json.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        serde_json::from_value::<SubnetJson>(json).unwrap().subnet(organization).unwrap()
    }

    #[test]
    fn a_subnet_has_the_gateway_of_its_description() {
        for (description, gateway) in [
            (json!(r#"{"gw": "10.0.0.254"}"#), Some("10.0.0.254")),
            (json!(r#"{"gw": "10.0.0.254", "vlan": 7}"#), Some("10.0.0.254")),
            (json!("the blue one, by gw 2"), None),
            (json!(null), None),
        ] {
            let subnet = subnet(json!({"description": description}), &Organization::Any).unwrap();
            assert_eq!(subnet.gateway.map(|it| it.to_string()).as_deref(), gateway);
            assert_eq!(subnet.refusal, None);
        }
    }

    #[test]
    fn a_subnet_with_a_malformed_gateway_is_refused() {
        for description in [
            r#"{"gw": "fd00::1"}"#,
            r#"{"gw": "10.0.0"}"#,
            r#"{"gw": 10.0.0.1}"#,
            r#"{"gw": null}"#,
            r#"gateway: {"gw": "10.0.0.1"}"#,
        ] {
            let subnet = subnet(json!({"description": description}), &Organization::Any).unwrap();
            let refusal = subnet.refusal.unwrap_or_default();
            assert!(refusal.contains(&format!("{description:?}")), "{description}: {refusal}");
            assert_eq!(subnet.gateway, None);
        }
    }

    #[test]
    fn a_shared_subnet_is_refused_unless_it_is_asked_for() {
        let id = Organization::Id("o".to_owned());
        assert!(subnet(json!({}), &id).unwrap().refusal.is_none());
        assert!(subnet(json!({"organization": "p"}), &id).is_none());
        let shared = json!({"organization": null});
        assert!(subnet(shared.clone(), &id).is_none());
        assert!(subnet(shared.clone(), &Organization::Any).unwrap().refusal.is_some());
        assert!(subnet(shared, &Organization::Shared).unwrap().refusal.is_none());
        assert!(subnet(json!({}), &Organization::Shared).is_none());
    }

    #[test]
    fn a_subnet_with_a_child_of_another_organization_is_refused() {
        let json = |id: &str, organization: &str, parent: Option<&str>| {
            serde_json::from_value(json!({
                "id": id, "name": id, "subnet": "10.0.0.0/24", "description": "",
                "organization": organization, "master_subnet": parent,
            }))
            .unwrap()
        };
        let all = vec![json("s", "o", None), json("t", "p", Some("s")), json("u", "o", None)];
        let seen = seen_subnets(all, &Organization::Id("o".to_owned())).unwrap();
        let refused: Vec<_> = seen.iter().map(|it| (&*it.id, it.refusal.is_some())).collect();
        assert_eq!(refused, [("s", true), ("u", false)]);
    }

    #[test]
    fn a_404_proves_absence_by_the_words_of_openwisp_alone() {
        let absent = ["Not found.", "No IpAddress matches the given query."];
        let others = ["", "Page not found.", "No route", "No  matches the given query.", "404"];
        let body = |detail: &str| json!({"detail": detail}).to_string().into_bytes();
        for detail in absent {
            assert!(check_absent(&body(detail), "p").is_ok(), "{detail}");
            assert!(check_no_page(&body(detail), "p").is_ok(), "{detail}");
        }
        assert!(check_no_page(&body("Invalid page."), "p").is_ok());
        assert!(check_absent(&body("Invalid page."), "p").is_err());
        let bodies = ["", "<html>", "{}", r#"{"detail":1}"#].map(|it| it.as_bytes().to_vec());
        for body in others.map(body).into_iter().chain(bodies) {
            let error = check_absent(&body, "p").unwrap_err();
            assert_eq!(error.code().number(), 103);
            assert!(check_no_page(&body, "p").is_err());
        }
    }
}
