//! The seam under the ledger: a server that keeps a record for each address.

use std::net::IpAddr;
use std::time::SystemTime;

use ipam_kit::delegate::Deadline;
use ipam_kit::keys::Key;
use ipam_kit::{Request, Result};
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A server that keeps subnets, and a record for each address in use.
///
/// An implementation sends requests and says what the answers mean. It chooses nothing, and repeats
/// no change: [`RecordLedger`](crate::RecordLedger) does.
pub trait RecordServer: Sized {
    /// The settings that the server reads from the section `ipam`.
    type Config: DeserializeOwned;

    /// The keys of [`Config`](Self::Config).
    const KEYS: &'static [Key];

    /// The folder of the node's memory in the state folder.
    const FOLDER: &'static str;

    /// The server's name in errors, as in `OpenWISP`.
    const NAME: &'static str;

    /// Opens the server for one call, without a request.
    ///
    /// # Errors
    /// A setting is invalid.
    fn open(config: Self::Config, request: &Request) -> Result<Self>;

    /// A name of what the settings lead to: servers, and the part of them that is seen. Another
    /// name has a memory of its own.
    fn site(&self) -> String;

    /// A name of the user that the settings log in as; it shows no secret. The node remembers rights
    /// and pools for each user.
    fn user(&self) -> String;

    /// Sets another deadline for the requests that follow.
    fn set_deadline(&mut self, deadline: Deadline);

    /// The promises of the server.
    fn rules(&self) -> ServerRules;

    /// Whether a record whose text is the name of a pod and nothing else is an older program's lease.
    fn adopts(&self) -> bool {
        false
    }

    /// Whether it chooses addresses of this subnet ([`ServerRules::chooses`]).
    fn chooses_in(&self, _subnet: &Subnet) -> bool {
        self.rules().chooses
    }

    /// Shows subnets, at least those that `wanted` may mean, and the children of each. `each` may
    /// get a subnet more than once.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    fn subnets(&mut self, wanted: &str, each: &mut dyn FnMut(Subnet)) -> Result<()>;

    /// Shows the records of a subnet. Before each attempt it calls [`Listing::begin`], which drops
    /// what the attempt before has shown. The last attempt shows each record once, and misses none
    /// that was there from its beginning to its end.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    fn list(
        &mut self,
        subnet: &str,
        query: ListQuery<'_>,
        listing: &mut dyn Listing,
    ) -> Result<Listed>;

    /// Reads a record; `None` if it certainly does not exist.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    fn read(&mut self, id: &str) -> Result<Option<AddressRecord>>;

    /// Makes a record of this address, or of one that the server chooses.
    ///
    /// # Errors
    /// The record is certainly not made, and waiting does not help.
    fn create(&mut self, subnet: &Subnet, address: Option<IpAddr>, text: &str) -> Result<Created>;

    /// Writes the text of a record again, so that it gets another stamp.
    ///
    /// # Errors
    /// The record is certainly not written, and waiting does not help.
    fn write(&mut self, record: &AddressRecord, text: &str) -> Result<Rewritten>;

    /// Deletes a record.
    ///
    /// # Errors
    /// The record is certainly not deleted, and waiting does not help.
    fn delete(&mut self, record: &AddressRecord) -> Result<Deleted>;

    /// Fails if an ADD would fail, by one request. A node asks on STATUS, and before a claim once in
    /// five minutes.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    fn ready(&mut self) -> Result<()>;

    /// Fails if records that a claim makes could not be read, written and deleted again. A node asks
    /// before its first claim, and instead of its first [`Self::ready`].
    ///
    /// # Errors
    /// A right is missing. The server cannot be reached.
    fn check_rights(&mut self) -> Result<()> {
        self.ready()
    }

    /// Faults of the settings and rights, for `lint`.
    ///
    /// # Errors
    /// The server cannot be reached.
    fn findings(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The promises of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRules {
    /// Two records of one address are impossible. Otherwise each claim is read again, and withdrawn
    /// if another record has its address.
    pub creates_once: bool,
    /// A write that is under way while its record is deleted may make the record again.
    pub revives: bool,
    /// The server chooses an address for [`RecordServer::create`] without one.
    pub chooses: bool,
    /// Of one text, a subnet has one record at most whose address the server chose. So an owner's
    /// record may be made without a look.
    pub owns_once: bool,
    /// A right to make records is one to write and delete them. Otherwise a node proves these rights
    /// before a claim.
    pub claims_prove_rights: bool,
    /// The longest text of a record, in bytes; at least 100.
    pub longest_text: usize,
}

/// A subnet, as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// The server's id.
    pub id: String,
    /// The name; several subnets may have the same.
    pub name: String,
    /// The addresses.
    pub cidr: IpNet,
    /// The gateway, where the server knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The id of the subnet around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Why it gives no addresses, with what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl Subnet {
    /// Whether a pool's name means it: its id, its CIDR or its name.
    pub fn is_meant_by(&self, wanted: &str) -> bool {
        let is_cidr = || wanted.parse::<IpNet>().is_ok_and(|cidr| cidr.trunc() == self.cidr);
        self.id == wanted || self.name == wanted || is_cidr()
    }
}

/// The records that a list has to show.
#[derive(Clone, Copy, Debug)]
pub struct ListQuery<'a> {
    /// Only those whose text begins so are needed. The server may show more.
    pub start: Option<&'a str>,
    /// The needed parts of each record.
    pub detail: ListDetail,
}

/// The parts of each record that a list has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListDetail {
    /// Address and text.
    Texts,
    /// All of it.
    Whole,
    /// All of it, for records that a list has shown: others may be missing.
    Shown,
}

/// The receiver of a list.
pub trait Listing {
    /// Forgets what was shown: the list begins anew.
    fn begin(&mut self);

    /// Takes a record.
    fn take(&mut self, record: AddressRecord);
}

/// The extent of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// All records of the subnet.
    All,
    /// Those of the query.
    Queried,
    /// The server has no such subnet.
    NoSubnet,
}

/// The record of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRecord {
    /// The server's id; empty in a list without ids.
    pub id: String,
    /// The address.
    pub address: IpAddr,
    /// The text with the owner's mark.
    pub text: String,
    /// The part that each write of the record changes: a time or an ETag.
    pub stamp: String,
    /// When it was last written, by the clock of this machine.
    pub written: Option<SystemTime>,
}

/// The outcome of [`RecordServer::create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The record is made.
    Done(AddressRecord),
    /// The address has a record.
    Taken,
    /// The server chooses, and the subnet has a record with this text ([`ServerRules::owns_once`]).
    Owned,
    /// The server chooses, and has no free address.
    Full,
    /// The server has no such subnet, or the subnet lacks the address.
    NoSubnet,
    /// The record may be made, now or later.
    Unknown,
}

/// The outcome of [`RecordServer::write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// The record has the text, and this stamp.
    Done(AddressRecord),
    /// The record is gone, or it has changed.
    Changed,
    /// The server refuses the record as it is, such as beside another one of its address. It has not
    /// changed.
    Refused,
    /// The record may be written, now or later.
    Unknown,
}

/// The outcome of [`RecordServer::delete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The record is gone, or was before.
    Done,
    /// It has changed since it was read, and stays.
    Changed,
    /// It may be deleted, now or later.
    Unknown,
}
