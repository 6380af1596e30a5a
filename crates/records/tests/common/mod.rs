//! A server of records in memory, of several kinds.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part")]

pub mod node;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use ipam_kit::cni::address;
use ipam_kit::delegate::Deadline;
use ipam_kit::keys::Key;
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_records::RecordServer;
use ipam_records::server::{
    AddressRecord, Created, Deleted, ListDetail, ListQuery, Listed, Listing, Rewritten,
    ServerRules, Subnet,
};
use ipnet::IpNet;
use serde::Deserialize;

/// The kind of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    /// It refuses a second record of an address, also of one that is made at the same time.
    pub is_atomic: bool,
    /// It says that it does, whether or not.
    pub says_atomic: bool,
    /// A write that is under way while its record is deleted makes it again.
    pub revives: bool,
    /// It chooses addresses.
    pub chooses: bool,
    /// It chooses one address of a subnet for a text.
    pub owns_once: bool,
    /// Its lists have ids only where they are needed.
    pub omits_ids: bool,
    /// Records of an older program count.
    pub adopts: bool,
}

/// What becomes of the answer to the next request that makes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The record is not made.
    Never,
    /// It is made at once.
    Done,
    /// It is made after the next list.
    Late,
}

/// What becomes of the next request that writes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// No answer comes, and the record is as it was.
    Unknown,
    /// Another client writes the record first, and the condition fails.
    Changed,
    /// The server refuses it.
    Refused,
}

/// A call of the test, with the address that is being claimed.
pub type Between = Box<dyn FnOnce(IpAddr) + Send>;

#[derive(Default)]
pub struct State {
    /// By subnet.
    pub records: BTreeMap<String, Vec<AddressRecord>>,
    next: u64,
    pub requests: Vec<String>,
    pub lost: VecDeque<Lost>,
    pub unwritten: VecDeque<Unwritten>,
    /// How many of the next deletions find that another client has written the record.
    pub edited: u32,
    /// The last octets of addresses that a related subnet has.
    pub related: BTreeSet<u8>,
    /// The subnets that were deleted.
    pub gone: BTreeSet<String>,
    late: Vec<(String, IpAddr, String)>,
    /// Called before the next record is made, after its server has looked.
    pub between: VecDeque<Between>,
    /// Called before the next record is written, after its server has read it.
    pub between_write: VecDeque<Between>,
    /// The texts that the server takes for those of records whose texts a person has edited.
    pub keys: BTreeSet<String>,
    /// How many lists the server answers, until it refuses them as too many.
    pub lists_left: Option<u32>,
    /// Called after the next list.
    pub after_list: VecDeque<Between>,
    /// Called after the next record was read.
    pub after_read: VecDeque<Between>,
    /// Called before the next record is deleted. A panic is a kill of the call.
    pub between_delete: VecDeque<Between>,
}

#[derive(Clone, Default)]
pub struct Store {
    pub kind: Kind,
    state: Arc<Mutex<State>>,
}

static STORES: LazyLock<Mutex<HashMap<String, Store>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    pub fn new(name: &str, kind: Kind) -> Self {
        let store = Self { kind, ..Self::default() };
        lock(&STORES).insert(name.to_owned(), store.clone());
        store
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn age(&self, by: Duration) {
        for record in self.state().records.values_mut().flatten() {
            record.written = record.written.map(|written| written - by);
        }
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }
}

impl State {
    fn insert(&mut self, subnet: &str, address: IpAddr, text: &str) -> AddressRecord {
        self.next += 1;
        let record = AddressRecord {
            id: format!("r{}", self.next),
            address,
            text: text.to_owned(),
            stamp: format!("s{}", self.next),
            written: Some(SystemTime::now()),
        };
        self.records.entry(subnet.to_owned()).or_default().push(record.clone());
        record
    }

    /// A request that is carried out after its client has gone.
    pub fn late(&mut self, subnet: &str, address: IpAddr, text: &str) {
        self.insert(subnet, address, text);
    }

    /// Deletes a record, also after its client has gone.
    pub fn delete(&mut self, id: &str) {
        for records in self.records.values_mut() {
            records.retain(|other| other.id != id);
        }
    }

    /// Writes the text of a record, if it exists, after its client has gone.
    pub fn write_late(&mut self, id: &str, text: &str) {
        if let Some(found) = self.find(id) {
            found.text = text.to_owned();
            found.stamp += "-late";
        }
    }

    /// Makes a record again that was deleted.
    pub fn revive(&mut self, record: AddressRecord) {
        let has_address = |subnet: &str| {
            let cidr = subnet.split('|').nth(1).and_then(|cidr| cidr.parse::<IpNet>().ok());
            cidr.is_some_and(|cidr| cidr.contains(&record.address))
        };
        let mut here = self.records.iter_mut().filter(|(subnet, _)| has_address(subnet));
        here.next().unwrap().1.push(record);
    }

    fn has(&self, subnet: &str, address: IpAddr) -> bool {
        self.records.get(subnet).into_iter().flatten().any(|record| record.address == address)
    }

    fn is_related(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(it) if self.related.contains(&it.octets()[3]))
    }

    fn find(&mut self, id: &str) -> Option<&mut AddressRecord> {
        self.records.values_mut().flatten().find(|record| record.id == id)
    }
}

#[derive(Debug, Deserialize)]
pub struct FakeConfig {
    fake: String,
    /// A name of the server in the configuration.
    #[serde(default)]
    alias: String,
    /// The user that logs in.
    #[serde(default)]
    user: String,
}

/// Each network has subnets of its own: any CIDR, and one with the network's name.
pub struct Fake {
    store: Store,
    network: String,
    config: FakeConfig,
    deadline: Deadline,
}

impl Fake {
    fn subnet(&self, cidr: &str, name: &str) -> Option<Subnet> {
        let cidr: IpNet = cidr.parse().ok()?;
        let id = format!("{}|{cidr}|{name}", self.network);
        let gateway = address::next(cidr.network()).filter(|_| !name.is_empty());
        Some(Subnet { id, name: name.to_owned(), cidr, gateway, parent: None, refusal: None })
    }

    fn log(&self, request: impl Into<String>) {
        self.store.state().requests.push(request.into());
    }
}

impl RecordServer for Fake {
    type Config = FakeConfig;

    const KEYS: &'static [Key] = &[Key::Value("fake"), Key::Value("alias"), Key::Value("user")];
    const FOLDER: &'static str = "fake";
    const NAME: &'static str = "Fake";

    fn open(config: FakeConfig, request: &Request) -> Result<Self> {
        let store = lock(&STORES).get(&config.fake).cloned().expect("a store of this name");
        let network = request.network.name().to_string();
        Ok(Self { store, network, config, deadline: request.deadline })
    }

    fn site(&self) -> String {
        format!("{} {}", self.network, self.config.alias)
    }

    fn user(&self) -> String {
        self.config.user.clone()
    }

    fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    fn rules(&self) -> ServerRules {
        let Kind { says_atomic, revives, chooses, owns_once, .. } = self.store.kind;
        ServerRules {
            creates_once: says_atomic,
            revives,
            chooses,
            owns_once,
            claims_prove_rights: chooses,
            longest_text: 100,
        }
    }

    fn adopts(&self) -> bool {
        self.store.kind.adopts
    }

    fn subnets(&mut self, wanted: &str, each: &mut dyn FnMut(Subnet)) -> Result<()> {
        self.log("subnets");
        if wanted == self.network {
            each(self.subnet("10.1.2.0/28", wanted).expect("a CIDR"));
        }
        if let Some(subnet) = self.subnet(wanted, "") {
            each(subnet);
        }
        let known: Vec<String> = self.store.state().records.keys().cloned().collect();
        for id in known.iter().filter(|_| wanted.is_empty()) {
            if let [network, cidr, name] = *id.split('|').collect::<Vec<_>>()
                && network == self.network
                && let Some(subnet) = self.subnet(cidr, name)
            {
                each(subnet);
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        subnet: &str,
        query: ListQuery<'_>,
        listing: &mut dyn Listing,
    ) -> Result<Listed> {
        self.log("list");
        let mut state = self.store.state();
        if let Some(left) = state.lists_left {
            let Some(left) = left.checked_sub(1) else {
                return Err(Error::new(ErrorCode::TRY_AGAIN, "too many requests"));
            };
            state.lists_left = Some(left);
        }
        listing.begin();
        if state.gone.contains(subnet) {
            return Ok(Listed::NoSubnet);
        }
        // The first attempt breaks off, as a connection may.
        for record in state.records.get(subnet).into_iter().flatten().take(1) {
            listing.take(record.clone());
        }
        listing.begin();
        for record in state.records.get(subnet).into_iter().flatten() {
            let mut record = record.clone();
            if query.start.is_some_and(|start| !record.text.starts_with(start)) {
                continue;
            }
            if self.store.kind.omits_ids && query.detail == ListDetail::Texts {
                record = AddressRecord {
                    id: String::new(),
                    stamp: String::new(),
                    written: None,
                    ..record
                };
            }
            listing.take(record);
        }
        for (subnet, address, text) in std::mem::take(&mut state.late) {
            if !state.has(&subnet, address) {
                state.insert(&subnet, address, &text);
            }
        }
        if let Some(after) = state.after_list.pop_front() {
            drop(state);
            after(IpAddr::from([0; 4]));
        }
        Ok(if query.start.is_some() { Listed::Queried } else { Listed::All })
    }

    fn read(&mut self, id: &str) -> Result<Option<AddressRecord>> {
        self.log("read");
        let mut state = self.store.state();
        let found = state.find(id).cloned();
        if let Some(record) = &found
            && let Some(after) = state.after_read.pop_front()
        {
            drop(state);
            after(record.address);
        }
        Ok(found)
    }

    fn create(&mut self, subnet: &Subnet, wanted: Option<IpAddr>, text: &str) -> Result<Created> {
        self.log("create");
        let mut state = self.store.state();
        let address = match wanted {
            Some(address) => address,
            None => {
                let mut records = state.records.get(&subnet.id).into_iter().flatten();
                let is_owned =
                    records.any(|record| record.text == text) || state.keys.contains(text);
                if self.store.kind.owns_once && is_owned {
                    return Ok(Created::Owned);
                }
                let gateway = subnet.gateway;
                let hosts = subnet.cidr.hosts().filter(|host| Some(*host) != gateway);
                let mut free = hosts.filter(|host| !state.has(&subnet.id, *host));
                let Some(free) = free.next() else { return Ok(Created::Full) };
                free
            }
        };
        if state.has(&subnet.id, address) || state.is_related(address) {
            return Ok(Created::Taken);
        }
        match state.lost.pop_front() {
            Some(Lost::Never) => return Ok(Created::Unknown),
            Some(Lost::Done) => {
                state.insert(&subnet.id, address, text);
                return Ok(Created::Unknown);
            }
            Some(Lost::Late) => {
                state.late.push((subnet.id.clone(), address, text.to_owned()));
                return Ok(Created::Unknown);
            }
            None => {}
        }
        let between = state.between.pop_front();
        if !self.store.kind.is_atomic || between.is_some() {
            drop(state);
            match between {
                Some(between) => between(address),
                // A server that only says so gives others time to do the same.
                None if self.store.kind.says_atomic => thread::sleep(Duration::from_millis(50)),
                None => thread::sleep(Duration::from_millis(2)),
            }
            state = self.store.state();
            if self.store.kind.is_atomic && state.has(&subnet.id, address) {
                return Ok(Created::Taken);
            }
        }
        Ok(Created::Done(state.insert(&subnet.id, address, text)))
    }

    fn write(&mut self, record: &AddressRecord, text: &str) -> Result<Rewritten> {
        self.log("write");
        let mut state = self.store.state();
        state.next += 1;
        let stamp = format!("s{}", state.next);
        let unwritten = state.unwritten.pop_front();
        let Some(found) = state.find(&record.id) else { return Ok(Rewritten::Changed) };
        match unwritten {
            Some(Unwritten::Unknown) => return Ok(Rewritten::Unknown),
            Some(Unwritten::Refused) => return Err(Error::new(ErrorCode::BACKEND, "refused")),
            Some(Unwritten::Changed) => {
                found.stamp = stamp;
                return Ok(Rewritten::Changed);
            }
            None => {}
        }
        let (id, address) = (found.id.clone(), found.address);
        // A write validates the whole record: no other one of its subnet may have the address.
        let mut subnets = state.records.values();
        let of_subnet = subnets.find(|records| records.iter().any(|it| it.id == id));
        let others = of_subnet.into_iter().flatten().filter(|it| it.id != id);
        if others.map(|it| it.address).any(|it| it == address) || state.is_related(address) {
            return Ok(Rewritten::Refused);
        }
        if let Some(between) = state.between_write.pop_front() {
            let read = state.find(&id).cloned();
            drop(state);
            between(address);
            state = self.store.state();
            if self.store.kind.revives && state.find(&id).is_none() {
                state.revive(read.unwrap());
            }
        }
        let Some(found) = state.find(&id) else { return Ok(Rewritten::Changed) };
        found.text = text.to_owned();
        found.stamp = stamp;
        found.written = Some(SystemTime::now());
        Ok(Rewritten::Done(found.clone()))
    }

    fn delete(&mut self, record: &AddressRecord) -> Result<Deleted> {
        self.log("delete");
        let mut state = self.store.state();
        if let Some(between) = state.between_delete.pop_front() {
            drop(state);
            between(record.address);
            state = self.store.state();
        }
        if let Some(edited) = state.edited.checked_sub(1) {
            state.edited = edited;
            let found = state.find(&record.id).unwrap();
            found.stamp += "-edited";
            return Ok(Deleted::Changed);
        }
        state.delete(&record.id);
        Ok(Deleted::Done)
    }

    fn ready(&mut self) -> Result<()> {
        self.log("ready");
        Ok(())
    }
}
