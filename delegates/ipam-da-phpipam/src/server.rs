//! phpIPAM as a server of records.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use ipam_kit::delegate::Deadline;
use ipam_kit::keys::Key;
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_records::server::{
    AddressRecord, Created, Deleted, ListQuery, Listed, Listing, Rewritten, ServerRules, Subnet,
};
use ipam_records::{RecordServer, container_of};
use ipam_servers::{Method, escape};
use log::warn;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answers::{AddressRow, Envelope, IdText, SubnetRow, nonsense, parse_data};
use crate::client::{AppClient, ListStep};
use crate::columns::{KeyOf, RecordColumns, record_of};
use crate::config::{KEYS, PhpIpamConfig};

/// A phpIPAM, as an App shows it.
#[derive(Debug)]
pub struct PhpIpam {
    client: AppClient,
    section: Option<String>,
    key_field: Option<String>,
    site: String,
    /// The App, with the user if one logs in.
    user: String,
    /// Whether something secret goes over http.
    unencrypted: Option<String>,
    is_of_provider: bool,
}

/// The length of a text. The mark is in a column without a limit, and the rest in one of 255.
const TEXT: usize = 1000;

/// How often an address is asked for that the server chose and could not give.
const CHOICES: u32 = 16;

/// The longest pause between two of them.
const PAUSE: Duration = Duration::from_millis(60);

impl PhpIpam {
    /// The id of the section whose subnets alone are seen.
    fn section_id(&mut self) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct SectionRow {
            id: IdText,
        }
        let Some(section) = self.section.clone() else { return Ok(None) };
        if section.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Some(section));
        }
        let envelope = self.client.read(&format!("sections/{}/", escape(&section)))?;
        if envelope.is(200) {
            let json: SectionRow = parse_data(envelope, "a section")?;
            return Ok(Some(json.id.to_text()));
        }
        match envelope.code {
            400 | 404 if !envelope.says("application") => {
                let message = format!("phpIPAM shows no section {section:?}");
                Err(Error::config("ipam.phpipam.section", message)
                    .advise("set it to the id or the name of a section that this App may read"))
            }
            _ => Err(self.client.refusal(&envelope, "a section")),
        }
    }

    /// A subnet with its gateway, which lists do not show.
    fn with_gateway(&mut self, subnet: Subnet) -> Result<Subnet> {
        let envelope = self.client.read(&format!("subnets/{}/", escape(&subnet.id)))?;
        if !envelope.is(200) {
            return Err(self.client.refusal(&envelope, "a subnet"));
        }
        let json: SubnetRow = parse_data(envelope, "a subnet")?;
        let read = json.subnet()?;
        match read.id == subnet.id {
            true => Ok(read),
            false => {
                Err(nonsense(format!("asked for the subnet {}, it shows {}", subnet.id, read.id)))
            }
        }
    }

    /// The meaning of an answer to a list that shows nothing.
    fn empty_list(&mut self, subnet: &str, envelope: &Envelope, listed: Listed) -> Result<Listed> {
        if envelope.is(404) && envelope.says("No addresses found") {
            return Ok(Listed::All);
        }
        if envelope.is(404) && envelope.says("No results") && listed == Listed::Queried {
            return Ok(listed);
        }
        if !envelope.is(404) && !envelope.is(400) {
            return Err(self.client.refusal(envelope, "a list"));
        }
        // Its words may be of another language, so another answer has to prove it.
        let path = format!("subnets/{}/", escape(subnet));
        let proof = self.client.read(&path)?;
        match (proof.is(200), envelope.is(404), proof.code) {
            (true, true, _) => Ok(listed),
            (false, _, 400 | 404) if !proof.says("application") => Ok(Listed::NoSubnet),
            _ => Err(self.client.refusal(envelope, "a list")),
        }
    }

    /// Makes a record; again if the server has chosen an address that another client was given.
    fn post(&mut self, path: &str, body: &Map<String, Value>) -> Result<Option<Envelope>> {
        let body = json!(body).to_string();
        let mut tries = 0;
        loop {
            let answer = self.client.change(Method::Post, path, body.as_bytes())?;
            let Some(envelope) = answer else { return Ok(None) };
            let has_lost = envelope.is(409) || is_duplicate(&envelope, ADDRESS_KEY);
            if !has_lost || !path.contains("first_free") {
                return Ok(Some(envelope));
            }
            tries += 1;
            if tries == CHOICES || !self.client.has_time() {
                let message = format!("phpIPAM chose {tries} addresses that others were given");
                return Err(Error::new(ErrorCode::TRY_AGAIN, message).advise(
                    "call again; if the error persists, let the App in phpIPAM lock its changes: its lock type is Disabled",
                ));
            }
            let [random, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
            thread::sleep(PAUSE * u32::from(random) / 255);
        }
    }

    /// A creation that was refused, or whose answer cannot be read.
    fn not_created(&self, subnet: &Subnet, envelope: &Envelope) -> Result<Created> {
        if envelope.is(404) && envelope.says("No free addresses") {
            return Ok(Created::Full);
        }
        if envelope.is(409) || is_duplicate(envelope, ADDRESS_KEY) {
            return Ok(Created::Taken);
        }
        if self.key_field.is_some() && is_duplicate(envelope, "") {
            return Ok(Created::Owned);
        }
        let is_elsewhere = ["nvalid subnet", "not a valid address"];
        if is_elsewhere.iter().any(|part| envelope.says(part)) {
            return Ok(Created::NoSubnet);
        }
        if envelope.is(201) || (envelope.is(500) && !envelope.says("SQLSTATE[22001]")) {
            warn!(
                "the outcome of a claim is unknown: {}",
                self.client.refusal(envelope, "a claim").in_full()
            );
            return Ok(Created::Unknown);
        }
        Err(self.client.refusal(envelope, &format!("a record in {}", subnet.cidr)))
    }
}

/// The unique index of subnet and address.
const ADDRESS_KEY: &str = "sid_ip_unique";

/// Whether a unique index refused a record.
fn is_duplicate(envelope: &Envelope, key: &str) -> bool {
    envelope.code == 500 && envelope.says("Duplicate entry") && envelope.says(key)
}

impl RecordServer for PhpIpam {
    type Config = PhpIpamConfig;

    const KEYS: &'static [Key] = KEYS;
    const FOLDER: &'static str = "phpipam";
    const NAME: &'static str = "phpIPAM";

    fn open(config: PhpIpamConfig, request: &Request) -> Result<Self> {
        let site = config.site(&request.environment)?;
        let mut servers: Vec<String> =
            site.settings.servers.iter().map(ToString::to_string).collect();
        // In another order, they are the same site.
        servers.sort_unstable();
        let plain = site.settings.servers.iter().find(|server| !server.is_secured());
        Ok(Self {
            section: site.section.clone(),
            is_of_provider: site.settings.is_of_provider,
            key_field: site.key_field.clone(),
            site: format!("{} {:?}", servers.join(" "), site.section),
            user: match &site.login {
                Some(login) => format!("{} of {}", login.user, site.app),
                None => site.app.clone(),
            },
            unencrypted: plain.map(|server| {
                let what =
                    if site.login.is_some() { "the password and the token" } else { "the token" };
                format!("{what} of ipam.phpipam go to {server} unencrypted: use https://")
            }),
            client: AppClient::new(site, request)?,
        })
    }

    fn site(&self) -> String {
        self.site.clone()
    }

    fn user(&self) -> String {
        self.user.clone()
    }

    fn rules(&self) -> ServerRules {
        ServerRules {
            creates_once: true,
            // An update of a record that is gone changes nothing.
            revives: false,
            chooses: true,
            owns_once: self.key_field.is_some(),
            // A right to change records is one for all changes.
            claims_prove_rights: true,
            longest_text: TEXT,
        }
    }

    fn adopts(&self) -> bool {
        self.is_of_provider
    }

    fn chooses_in(&self, subnet: &Subnet) -> bool {
        // Of IPv6, it gives out the anycast address of routers.
        subnet.cidr.addr().is_ipv4()
    }

    fn subnets(&mut self, wanted: &str, each: &mut dyn FnMut(Subnet)) -> Result<()> {
        let section = self.section_id()?;
        let mut found: Vec<Subnet> = Vec::new();
        let refused = self.client.list::<SubnetRow>("subnets/", &mut |step| {
            match step {
                ListStep::Begin => found.clear(),
                ListStep::Element(json) => {
                    if section.as_ref().is_none_or(|id| *id == json.section.to_text()) {
                        found.push(json.subnet()?);
                    }
                }
            }
            Ok(())
        })?;
        match refused {
            Some(envelope) if !envelope.is(404) => {
                return Err(self.client.refusal(&envelope, "the list of subnets"));
            }
            _ => {}
        }
        let is_meant = |subnet: &&Subnet| !wanted.is_empty() && subnet.is_meant_by(wanted);
        let meant: Vec<Subnet> = found.iter().filter(is_meant).cloned().collect();
        if let [one] = &meant[..] {
            let one = self.with_gateway(one.clone())?;
            found.retain(|subnet| subnet.id != one.id);
            found.push(one);
        }
        found.into_iter().for_each(each);
        Ok(())
    }

    fn list(
        &mut self,
        subnet: &str,
        query: ListQuery<'_>,
        listing: &mut dyn Listing,
    ) -> Result<Listed> {
        let (mut path, mut listed) =
            (format!("subnets/{}/addresses/", escape(subnet)), Listed::All);
        if let Some(start) = query.start {
            path += &format!("?filter_by=note&filter_match=partial&filter_value={}", escape(start));
            listed = Listed::Queried;
        }
        let refused = self.client.list::<AddressRow>(&path, &mut |step| {
            match step {
                ListStep::Begin => listing.begin(),
                ListStep::Element(json) => {
                    let of = json.subnet.to_text();
                    if of != subnet {
                        return Err(nonsense(format!("{path} shows a record of the subnet {of}")));
                    }
                    listing.take(record_of(json)?);
                }
            }
            Ok(())
        })?;
        match refused {
            None => Ok(listed),
            Some(envelope) => self.empty_list(subnet, &envelope, listed),
        }
    }

    fn read(&mut self, id: &str) -> Result<Option<AddressRecord>> {
        let path = format!("addresses/{}/", escape(id));
        let envelope = self.client.read(&path)?;
        if envelope.is(404) {
            return Ok(None);
        }
        if !envelope.is(200) {
            return Err(self.client.refusal(&envelope, "a record"));
        }
        let record = record_of(parse_data(envelope, &format!("the answer to {path}"))?)?;
        match record.id == id {
            true => Ok(Some(record)),
            false => Err(nonsense(format!("asked for the record {id}, it shows {}", record.id))),
        }
    }

    fn create(&mut self, subnet: &Subnet, address: Option<IpAddr>, text: &str) -> Result<Created> {
        let columns = RecordColumns::of(text)?;
        let of = address.map_or(KeyOf::Owner, KeyOf::Address);
        let mut members = columns.members(self.key_field.as_deref().map(|field| (field, of)));
        let path = match address {
            None => format!("addresses/first_free/{}/", escape(&subnet.id)),
            Some(address) => {
                members.insert("ip".to_owned(), json!(address));
                members.insert("subnetId".to_owned(), json!(subnet.id));
                "addresses/".to_owned()
            }
        };
        let Some(envelope) = self.post(&path, &members)? else { return Ok(Created::Unknown) };
        let address = address.or_else(|| envelope.address());
        match (envelope.is(201), envelope.id(), address) {
            (true, Some(id), Some(address)) => Ok(Created::Done(columns.record(id, address))),
            _ => self.not_created(subnet, &envelope),
        }
    }

    fn write(&mut self, record: &AddressRecord, text: &str) -> Result<Rewritten> {
        let columns = RecordColumns::of(text)?;
        // An address that is kept for a name has no owner any more.
        let key_field = self.key_field.as_deref().filter(|_| container_of(text).is_none());
        let key = key_field.map(|field| (field, KeyOf::Address(record.address)));
        let body = json!(columns.members(key)).to_string();
        let path = format!("addresses/{}/", escape(&record.id));
        let answer = self.client.change(Method::Patch, &path, body.as_bytes())?;
        let Some(envelope) = answer else { return Ok(Rewritten::Unknown) };
        if envelope.is(200) {
            return Ok(Rewritten::Done(columns.record(record.id.clone(), record.address)));
        }
        if envelope.is(404) {
            return Ok(Rewritten::Changed);
        }
        if envelope.is(500) {
            let error = self.client.refusal(&envelope, "a change");
            warn!("the outcome of a change is unknown: {}", error.in_full());
            return Ok(Rewritten::Unknown);
        }
        Err(self.client.refusal(&envelope, "a change"))
    }

    fn delete(&mut self, record: &AddressRecord) -> Result<Deleted> {
        let path = format!("addresses/{}/", escape(&record.id));
        let answer = self.client.change(Method::Delete, &path, &[])?;
        let Some(envelope) = answer else { return Ok(Deleted::Unknown) };
        if envelope.is(200) || envelope.is(404) {
            return Ok(Deleted::Done);
        }
        if envelope.is(500) {
            let error = self.client.refusal(&envelope, "a deletion");
            warn!("the outcome of a deletion is unknown: {}", error.in_full());
            return Ok(Deleted::Unknown);
        }
        Err(self.client.refusal(&envelope, "a deletion"))
    }

    fn set_deadline(&mut self, deadline: Deadline) {
        self.client.set_deadline(deadline);
    }

    /// Deletes a record that does not exist: phpIPAM looks at the right before.
    fn ready(&mut self) -> Result<()> {
        let envelope = self.client.send(Method::Delete, "addresses/0/")?;
        match envelope.is(404) {
            true => Ok(()),
            false => Err(self.client.refusal(&envelope, "a deletion")),
        }
    }

    fn findings(&mut self) -> Result<Vec<String>> {
        self.ready()?;
        Ok(self.unencrypted.iter().cloned().collect())
    }
}
