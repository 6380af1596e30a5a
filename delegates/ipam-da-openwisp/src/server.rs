//! OpenWISP as a server of records.

use std::io::Read;
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::keys::Key;
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_records::RecordServer;
use ipam_records::server::{
    AddressRecord, Created, Deleted, ListQuery, Listed, Listing, Rewritten, ServerRules, Subnet,
};
use ipam_servers::{HttpAnswer, Method, escape};
use log::warn;
use serde::Deserialize;
use serde_json::json;

use crate::answers::{AddressJson, Clock, SubnetJson, check_absent, nonsense, parse, seen_subnets};
use crate::client::{ApiClient, Ask};
use crate::config::{KEYS, OpenWispConfig, Organization};
use crate::export::each_row;
use crate::hints::ListHints;
use crate::pages::{ELEMENT, MOST, PAGE, PagesRead, read_pages, too_many};

/// An OpenWISP with openwisp-ipam.
#[derive(Debug)]
pub struct OpenWisp {
    client: ApiClient,
    organization: Organization,
    confirm: bool,
    site: String,
    /// Whether something secret goes over http.
    unencrypted: Option<String>,
    hints: ListHints,
}

/// The id of a record that does not exist.
const ABSENT: &str = "00000000-0000-4000-8000-000000000000";

/// The length of a description, in characters.
const DESCRIPTION: usize = 100;

impl OpenWisp {
    /// Reads the records of a subnet page by page.
    fn list_pages(
        &mut self,
        subnet: &str,
        whole_records: bool,
        listing: &mut dyn Listing,
    ) -> Result<Listed> {
        let list = format!("subnet/{}/ip-address/", escape(subnet));
        let Self { client, hints, .. } = self;
        let read = read_pages::<AddressJson>(client, &list, &mut |page| {
            if page.number == 1 {
                listing.begin();
                hints.remember_length(subnet, page.count, PAGE);
                if page.count > PAGE && !whole_records && hints.may_export() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            for json in page.elements {
                listing.take(json.record(Some(subnet), page.clock)?);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        match read {
            PagesRead::All => Ok(Listed::All),
            PagesRead::NoList => self.prove_absent(subnet),
            PagesRead::Left => self.export(subnet, listing),
        }
    }

    /// Reads all records of a subnet at once, without their ids.
    fn export(&mut self, subnet: &str, listing: &mut dyn Listing) -> Result<Listed> {
        let path = format!("subnet/{}/export/", escape(subnet));
        let ask = Ask { method: Method::Post, path: &path, body: &[], ok: &[200, 403, 404] };
        let outcome =
            self.client.read_with(ask, &mut |head: &HttpAnswer, body: &mut dyn Read| {
                listing.begin();
                match head.status {
                    403 => return Ok(Ok(None)),
                    404 => {
                        let mut answer = HttpAnswer::new(404, Vec::new());
                        body.take(ELEMENT as u64).read_to_end(&mut answer.body)?;
                        return Ok(check_absent(&answer, &path).map(|()| Some(Listed::NoSubnet)));
                    }
                    _ if !has_end(head) => return Ok(Ok(None)),
                    _ => {}
                }
                let mut rows = 0;
                let read = each_row(body, &mut |address, text| {
                    rows += 1;
                    if rows > MOST {
                        return Err(too_many(&path));
                    }
                    let address = address.parse().map_err(|_| {
                        nonsense(format!("{path} has a row with the address {address:?}"))
                    })?;
                    let (id, stamp, text) = (String::new(), String::new(), text.to_owned());
                    listing.take(AddressRecord { id, address, text, stamp, written: None });
                    Ok(())
                })?;
                Ok(read.map(|()| Some(Listed::All)))
            })??;
        match outcome {
            Some(Listed::NoSubnet) => self.prove_absent(subnet),
            Some(listed) => Ok(listed),
            None => {
                warn!(
                    "OpenWISP refuses an export (it needs the right to add subnets), or answers it without a length: reads page by page"
                );
                self.hints.remember_refusal();
                self.list_pages(subnet, true, listing)
            }
        }
    }

    /// Proves that a subnet does not exist. A list says the same of one of an organization that
    /// the user does not manage.
    fn prove_absent(&mut self, subnet: &str) -> Result<Listed> {
        let path = format!("subnet/{}/", escape(subnet));
        let ask = Ask { method: Method::Get, path: &path, body: &[], ok: &[200, 404] };
        let answer = self.client.read(ask)?;
        if answer.status == 404 {
            return check_absent(&answer, &path).map(|()| Listed::NoSubnet);
        }
        let message = format!("OpenWISP shows the subnet {subnet}, and not its records");
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
    }

    /// Fails if records may not be read, written or deleted. The server lets any manager make records,
    /// also without these rights. It compares a right before it looks for the record.
    fn check_right(&mut self, method: Method) -> Result<()> {
        let path = format!("ip-address/{ABSENT}/");
        let ask = Ask { method, path: &path, body: b"{}", ok: &[200, 204, 404] };
        let answer = self.client.read(ask)?;
        match answer.status {
            404 => check_absent(&answer, &path),
            status => Err(nonsense(format!("HTTP {status} for a record that is absent"))),
        }
    }

    /// Whether the user is a superuser, who alone may change what is shared. The server refuses
    /// others before it reads the body, which changes nothing.
    fn may_change(&mut self, shared: &str) -> Result<bool> {
        let path = format!("subnet/{}/", escape(shared));
        let body = br#"{"subnet":""}"#;
        let ask = Ask { method: Method::Patch, path: &path, body, ok: &[400, 403] };
        Ok(self.client.read(ask)?.status == 400)
    }

    /// A refused creation.
    fn refusal(&self, subnet: &Subnet, answer: &HttpAnswer) -> Result<Created> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct CreateRefusal {
            ip_address: Vec<String>,
            subnet: Vec<String>,
        }
        let refusal: CreateRefusal = serde_json::from_slice(&answer.body).unwrap_or_default();
        let says = |texts: &[String], part: &str| texts.iter().any(|text| text.contains(part));
        if says(&refusal.ip_address, "already used") {
            return Ok(Created::Taken);
        }
        if says(&refusal.subnet, "does not exist") || says(&refusal.ip_address, "does not belong") {
            return Ok(Created::NoSubnet);
        }
        let said = self.client.shown(&answer.body);
        let message = format!("OpenWISP refused a record in {}: {said}", subnet.cidr);
        Err(Error::new(ErrorCode::BACKEND, message)
            .advise("correct what the answer names, in OpenWISP or in the pool"))
    }
}

impl RecordServer for OpenWisp {
    type Config = OpenWispConfig;

    const KEYS: &'static [Key] = KEYS;
    const FOLDER: &'static str = "openwisp";
    const NAME: &'static str = "OpenWISP";

    fn open(config: OpenWispConfig, request: &Request) -> Result<Self> {
        let site = config.site(&request.environment)?;
        let mut servers: Vec<String> =
            site.settings.servers.iter().map(ToString::to_string).collect();
        // In another order, they are the same site.
        servers.sort_unstable();
        let plain = site.settings.servers.iter().find(|server| !server.is_secured());
        let state = request.state_dir()?;
        let hints = ListHints::read(state.root().join("openwisp").join("lists.json"));
        Ok(Self {
            organization: site.organization.clone(),
            confirm: site.confirm,
            site: format!("{} {:?}", servers.join(" "), site.organization),
            unencrypted: plain.map(|server| {
                let what =
                    if site.login.is_some() { "the password and the token" } else { "the token" };
                format!("{what} of ipam.openwisp go to {server} unencrypted: use https://")
            }),
            client: ApiClient::new(site, request)?,
            hints,
        })
    }

    fn site(&self) -> String {
        self.site.clone()
    }

    fn rules(&self) -> ServerRules {
        ServerRules {
            creates_once: !self.confirm,
            // Django inserts a record that it cannot update.
            revives: true,
            chooses: false,
            longest_text: DESCRIPTION,
        }
    }

    fn subnets(&mut self, _wanted: &str, each: &mut dyn FnMut(Subnet)) -> Result<()> {
        let mut found: Vec<SubnetJson> = Vec::new();
        read_pages::<SubnetJson>(&mut self.client, "subnet/", &mut |page| {
            if page.number == 1 {
                found.clear();
            }
            found.extend(page.elements);
            Ok(ControlFlow::Continue(()))
        })?;
        let mut seen = seen_subnets(found, &self.organization)?;
        if self.organization == Organization::Shared
            && let Some(first) = seen.first()
            && !self.may_change(&first.id)?
        {
            let refusal = "it has no organization, so only a superuser may delete its records: use the token of a \
                           superuser, or give it an organization";
            seen.iter_mut().for_each(|subnet| subnet.refusal = Some(refusal.to_owned()));
        }
        seen.into_iter().for_each(each);
        Ok(())
    }

    fn list(
        &mut self,
        subnet: &str,
        query: ListQuery<'_>,
        listing: &mut dyn Listing,
    ) -> Result<Listed> {
        if !query.whole_records && self.hints.is_long(subnet) && self.hints.may_export() {
            return self.export(subnet, listing);
        }
        self.list_pages(subnet, query.whole_records, listing)
    }

    fn read(&mut self, id: &str) -> Result<Option<AddressRecord>> {
        let path = format!("ip-address/{}/", escape(id));
        let ask = Ask { method: Method::Get, path: &path, body: &[], ok: &[200, 404] };
        let answer = self.client.read(ask)?;
        if answer.status == 404 {
            return check_absent(&answer, &path).map(|()| None);
        }
        let json: AddressJson = parse(&answer.body, &format!("the answer to {path}"))?;
        let record = json.record(None, Clock::of(&answer))?;
        if record.id != id {
            return Err(nonsense(format!("asked for the record {id}, it shows {}", record.id)));
        }
        Ok(Some(record))
    }

    fn create(&mut self, subnet: &Subnet, address: Option<IpAddr>, text: &str) -> Result<Created> {
        let Some(address) = address else { return Ok(Created::Full) };
        let path = format!("subnet/{}/ip-address/", escape(&subnet.id));
        let body = json!({"ip_address": address, "subnet": subnet.id, "description": text});
        let body = body.to_string();
        let ask =
            Ask { method: Method::Post, path: &path, body: body.as_bytes(), ok: &[201, 400, 404] };
        let Some(answer) = self.client.write(ask)? else { return Ok(Created::Unknown) };
        match answer.status {
            201 => match made(&answer, &subnet.id) {
                Ok(record) => Ok(Created::Done(record)),
                Err(error) => {
                    warn!("the outcome of a claim is unknown: {}", error.in_full());
                    Ok(Created::Unknown)
                }
            },
            404 => check_absent(&answer, &path).map(|()| Created::NoSubnet),
            _ => self.refusal(subnet, &answer),
        }
    }

    fn write(&mut self, record: &AddressRecord, text: &str) -> Result<Rewritten> {
        let path = format!("ip-address/{}/", escape(&record.id));
        let body = json!({"description": text}).to_string();
        let ask =
            Ask { method: Method::Patch, path: &path, body: body.as_bytes(), ok: &[200, 400, 404] };
        let Some(answer) = self.client.write(ask)? else { return Ok(Rewritten::Unknown) };
        match answer.status {
            404 => return check_absent(&answer, &path).map(|()| Rewritten::Changed),
            // It validates the whole record before it writes.
            400 => {
                warn!(
                    "OpenWISP keeps {} as it was: {}",
                    record.address,
                    self.client.shown(&answer.body)
                );
                return Ok(Rewritten::Refused);
            }
            _ => {}
        }
        let json = parse::<AddressJson>(&answer.body, &format!("the answer to {path}"));
        match json.and_then(|json| json.record(None, Clock::of(&answer))) {
            Ok(written) => Ok(Rewritten::Done(written)),
            Err(error) => {
                warn!("the outcome of a change is unknown: {}", error.in_full());
                Ok(Rewritten::Unknown)
            }
        }
    }

    fn delete(&mut self, record: &AddressRecord) -> Result<Deleted> {
        let path = format!("ip-address/{}/", escape(&record.id));
        let ask = Ask { method: Method::Delete, path: &path, body: &[], ok: &[204, 404] };
        let Some(answer) = self.client.write(ask)? else { return Ok(Deleted::Unknown) };
        if answer.status == 404 {
            check_absent(&answer, &path)?;
        }
        Ok(Deleted::Done)
    }

    fn ready(&mut self) -> Result<()> {
        self.check_right(Method::Delete)
    }

    fn check_rights(&mut self) -> Result<()> {
        [Method::Get, Method::Patch, Method::Delete]
            .into_iter()
            .try_for_each(|method| self.check_right(method))
    }

    fn findings(&mut self) -> Result<Vec<String>> {
        self.check_rights()?;
        Ok(self.unencrypted.iter().cloned().collect())
    }
}

/// Whether an answer says where its body ends. A CSV without that may be cut after any row.
fn has_end(head: &HttpAnswer) -> bool {
    ["content-length", "transfer-encoding"].iter().any(|name| head.header(name).is_some())
}

/// The record that an answer shows.
fn made(answer: &HttpAnswer, subnet: &str) -> Result<AddressRecord> {
    let json: AddressJson = parse(&answer.body, "the answer to a claim")?;
    json.record(Some(subnet), Clock::of(answer))
}
