//! OpenWISP as a server of records.

use std::io::Read;
use std::net::IpAddr;

use ipam_kit::delegate::Deadline;
use ipam_kit::keys::Key;
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_records::RecordServer;
use ipam_records::server::{
    AddressRecord, Created, Deleted, ListDetail, ListQuery, Listed, Listing, Rewritten,
    ServerRules, Subnet,
};
use ipam_servers::{HttpAnswer, Method, Secrets, escape};
use log::warn;
use serde::Deserialize;
use serde_json::json;

use crate::answers::{AddressJson, Clock, SubnetJson, check_absent, nonsense, parse, seen_subnets};
use crate::client::{ApiClient, Ask, RAISE_RATE};
use crate::config::{KEYS, OpenWispConfig, Organization};
use crate::export::each_row;
use crate::hints::AnswerHints;
use crate::pages::{MOST, Rounds, SUBNETS, read_pages, read_refusal, too_many};

/// An OpenWISP with openwisp-ipam.
#[derive(Debug)]
pub struct OpenWisp {
    client: ApiClient,
    organization: Organization,
    confirm: bool,
    site: String,
    /// The warning that something secret goes over http.
    unencrypted: Option<String>,
    hints: AnswerHints,
    is_of_provider: bool,
}

/// The rights that every call needs, by a request that each allows, with their names.
const RIGHTS: [(Method, &str); 3] =
    [(Method::Get, "view"), (Method::Patch, "change"), (Method::Delete, "delete")];

/// The id of a record that does not exist.
const ABSENT: &str = "00000000-0000-4000-8000-000000000000";

/// The length of a description, in characters.
const DESCRIPTION: usize = 100;

impl OpenWisp {
    /// Reads the records of a subnet page by page.
    fn list_pages(
        &mut self,
        subnet: &str,
        rounds: Rounds,
        listing: &mut dyn Listing,
    ) -> Result<Listed> {
        let list = format!("subnet/{}/ip-address/", escape(subnet));
        let exists = read_pages::<AddressJson>(&mut self.client, &list, rounds, &mut |page| {
            if page.number == 1 {
                listing.begin();
            }
            for json in page.elements {
                listing.take(json.record(Some(subnet), page.clock)?);
            }
            Ok(())
        })?;
        if exists { Ok(Listed::All) } else { self.prove_absent(subnet) }
    }

    /// Reads all records of a subnet in one request, without their ids.
    fn export(&mut self, subnet: &str, listing: &mut dyn Listing) -> Result<Listed> {
        let path = format!("subnet/{}/export/", escape(subnet));
        let ask = Ask { method: Method::Post, path: &path, body: &[], ok: &[200, 403, 404] };
        let outcome =
            self.client.read_with(ask, &mut |head: &HttpAnswer, body: &mut dyn Read| {
                listing.begin();
                match head.status {
                    403 => return Ok(Ok(None)),
                    404 => {
                        let absent = check_absent(&read_refusal(body)?, &path);
                        return Ok(absent.map(|()| Some(Listed::NoSubnet)));
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
            })?;
        match outcome {
            Some(Listed::NoSubnet) => self.prove_absent(subnet),
            Some(listed) => Ok(listed),
            None => {
                warn!(
                    "reads page by page: OpenWISP refuses an export, which needs the right to add subnets, or its answer may be incomplete"
                );
                self.hints.remember_refusal();
                self.list_pages(subnet, Rounds::UntilSame, listing)
            }
        }
    }

    /// Proves that a subnet does not exist. For a subnet of an organization that the user does not
    /// manage, the list of records is missing too.
    fn prove_absent(&mut self, subnet: &str) -> Result<Listed> {
        let path = format!("subnet/{}/", escape(subnet));
        let ask = Ask { method: Method::Get, path: &path, body: &[], ok: &[200, 404] };
        self.client.read(ask, |answer| match answer.status {
            404 => check_absent(&answer.body, &path).map(|()| Listed::NoSubnet),
            _ => {
                let message = format!(
                    "OpenWISP has the subnet {subnet}, but hides its records from the user"
                );
                Err(Error::new(ErrorCode::TRY_AGAIN, message)
                    .advise("make this user a manager of the subnet's organization, or call again"))
            }
        })
    }

    /// Fails if the user may not read, change or delete records. The server lets any manager make
    /// records, also without these rights. It checks a right before it looks for the record.
    fn check_right(&mut self, method: Method) -> Result<()> {
        let path = format!("ip-address/{ABSENT}/");
        let ask = Ask { method, path: &path, body: b"{}", ok: &[200, 204, 404] };
        self.client.read(ask, |answer| match answer.status {
            404 => check_absent(&answer.body, &path),
            status => Err(nonsense(format!("HTTP {status} for a record that does not exist"))),
        })
    }

    /// Whether the user is a superuser, who alone may change what is shared. The server refuses
    /// others before it reads the body, which changes nothing.
    fn may_change(&mut self, shared: &str) -> Result<bool> {
        let path = format!("subnet/{}/", escape(shared));
        let body = br#"{"subnet":""}"#;
        let ask = Ask { method: Method::Patch, path: &path, body, ok: &[400, 403] };
        self.client.read(ask, |answer| Ok(answer.status == 400))
    }
}

impl Drop for OpenWisp {
    fn drop(&mut self) {
        if self.client.is_limited() {
            self.hints.remember_limit();
        }
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
        let hints = state.root().join("openwisp").join("answers.json");
        let (organization, confirm) = (site.organization.clone(), site.confirm);
        let is_of_provider = site.settings.is_of_provider;
        let unencrypted = plain.map(|server| {
            let what = match site.login {
                Some(_) => "the password and the token",
                None => "the token",
            };
            format!(
                "{server} is asked without encryption, and gets {what} of ipam.openwisp: use https://"
            )
        });
        let client = ApiClient::new(site, request)?;
        Ok(Self {
            site: format!("{} {organization:?}", servers.join(" ")),
            hints: AnswerHints::read(hints, client.user()),
            organization,
            confirm,
            unencrypted,
            client,
            is_of_provider,
        })
    }

    fn set_deadline(&mut self, deadline: Deadline) {
        self.client.set_deadline(deadline);
    }

    fn site(&self) -> String {
        self.site.clone()
    }

    fn user(&self) -> String {
        self.client.user().to_owned()
    }

    fn rules(&self) -> ServerRules {
        ServerRules {
            creates_once: !self.confirm,
            // Django inserts a record that it cannot update.
            revives: true,
            chooses: false,
            owns_once: false,
            claims_prove_rights: false,
            longest_text: DESCRIPTION,
        }
    }

    fn adopts(&self) -> bool {
        self.is_of_provider
    }

    fn subnets(&mut self, _wanted: &str, each: &mut dyn FnMut(Subnet)) -> Result<()> {
        let mut found: Vec<SubnetJson> = Vec::new();
        let rounds = Rounds::UntilSame;
        read_pages::<SubnetJson>(&mut self.client, SUBNETS, rounds, &mut |page| {
            if page.number == 1 {
                found.clear();
            }
            found.extend(page.elements);
            Ok(())
        })?;
        let seen = seen_subnets(found, &self.organization);
        let mut seen = seen.map_err(|error| self.client.redacted(error))?;
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
        match query.detail {
            ListDetail::Texts if self.hints.may_export() => self.export(subnet, listing),
            ListDetail::Texts | ListDetail::Whole => {
                self.list_pages(subnet, Rounds::UntilSame, listing)
            }
            ListDetail::Shown => self.list_pages(subnet, Rounds::One, listing),
        }
    }

    fn read(&mut self, id: &str) -> Result<Option<AddressRecord>> {
        let path = format!("ip-address/{}/", escape(id));
        let ask = Ask { method: Method::Get, path: &path, body: &[], ok: &[200, 404] };
        self.client.read(ask, |answer| {
            if answer.status == 404 {
                return check_absent(&answer.body, &path).map(|()| None);
            }
            let record = shown_record(answer, None, &path)?;
            match record.id == id {
                true => Ok(Some(record)),
                false => Err(nonsense(format!("the answer to {path} is the record {}", record.id))),
            }
        })
    }

    fn create(&mut self, subnet: &Subnet, address: Option<IpAddr>, text: &str) -> Result<Created> {
        let Some(address) = address else { return Ok(Created::Full) };
        let path = format!("subnet/{}/ip-address/", escape(&subnet.id));
        let body = json!({"ip_address": address, "subnet": subnet.id, "description": text});
        let body = body.to_string();
        let ask =
            Ask { method: Method::Post, path: &path, body: body.as_bytes(), ok: &[201, 400, 404] };
        let created = self.client.write(ask, |answer, secrets| match answer.status {
            201 => shown_record(answer, Some(&subnet.id), &path).map(Created::Done),
            404 => check_absent(&answer.body, &path).map(|()| Created::NoSubnet),
            _ => refusal(subnet, &answer.body, secrets),
        })?;
        Ok(created.unwrap_or(Created::Unknown))
    }

    fn write(&mut self, record: &AddressRecord, text: &str) -> Result<Rewritten> {
        let path = format!("ip-address/{}/", escape(&record.id));
        let body = json!({"description": text}).to_string();
        let ask =
            Ask { method: Method::Patch, path: &path, body: body.as_bytes(), ok: &[200, 400, 404] };
        let rewritten = self.client.write(ask, |answer, secrets| match answer.status {
            404 => check_absent(&answer.body, &path).map(|()| Rewritten::Changed),
            // It validates the whole record before it writes.
            400 => {
                let said = secrets.shown(&answer.body);
                warn!("OpenWISP keeps {} as it was: {said}", record.address);
                Ok(Rewritten::Refused)
            }
            _ => shown_record(answer, None, &path).map(Rewritten::Done),
        })?;
        Ok(rewritten.unwrap_or(Rewritten::Unknown))
    }

    fn delete(&mut self, record: &AddressRecord) -> Result<Deleted> {
        let path = format!("ip-address/{}/", escape(&record.id));
        let ask = Ask { method: Method::Delete, path: &path, body: &[], ok: &[204, 404] };
        let deleted = self.client.write(ask, |answer, _| match answer.status {
            404 => check_absent(&answer.body, &path).map(|()| Deleted::Done),
            _ => Ok(Deleted::Done),
        })?;
        Ok(deleted.unwrap_or(Deleted::Unknown))
    }

    fn ready(&mut self) -> Result<()> {
        self.check_right(Method::Delete)
    }

    fn check_rights(&mut self) -> Result<()> {
        RIGHTS.into_iter().try_for_each(|(method, _)| self.check_right(method))
    }

    fn findings(&mut self) -> Result<Vec<String>> {
        let mut found: Vec<String> = self.unencrypted.iter().cloned().collect();
        if let Some(age) = self.hints.limited() {
            found.push(format!(
                "OpenWISP refused requests of this user as too many (HTTP 429), {} minutes ago: {RAISE_RATE}",
                age.as_secs() / 60
            ));
        }
        for (method, right) in RIGHTS {
            match self.check_right(method) {
                Ok(()) => {}
                Err(error) if error.code() == ErrorCode::BACKEND => found.push(format!(
                    "this user may lack the right to {right} IP addresses: {}",
                    error.in_full()
                )),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Whether an answer says where its body ends. A CSV without that may be cut after any row.
fn has_end(head: &HttpAnswer) -> bool {
    ["content-length", "transfer-encoding"].iter().any(|name| head.header(name).is_some())
}

/// The record that an answer shows.
fn shown_record(answer: &HttpAnswer, subnet: Option<&str>, path: &str) -> Result<AddressRecord> {
    let json: AddressJson = parse(&answer.body, &format!("the answer to {path}"))?;
    json.record(subnet, Clock::of(answer))
}

/// The meaning of a refused creation.
fn refusal(subnet: &Subnet, body: &[u8], secrets: &Secrets) -> Result<Created> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CreateRefusal {
        ip_address: Vec<String>,
        subnet: Vec<String>,
    }
    let refusal: CreateRefusal = serde_json::from_slice(body).unwrap_or_default();
    let says = |texts: &[String], part: &str| texts.iter().any(|text| text.contains(part));
    if says(&refusal.ip_address, "already used") {
        return Ok(Created::Taken);
    }
    if says(&refusal.subnet, "does not exist") || says(&refusal.ip_address, "does not belong") {
        return Ok(Created::NoSubnet);
    }
    let message = format!("OpenWISP refused a record in {}: {}", subnet.cidr, secrets.shown(body));
    Err(Error::new(ErrorCode::BACKEND, message)
        .advise("correct what the answer names, in OpenWISP or in the pool"))
}
