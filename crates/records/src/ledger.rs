//! A ledger over the records of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, View, ViewQuery};
use ipam_kit::allocate::{
    ClaimLimits, Lease, Owner, PoolRequest, Profile, Reach, Strategy, known, requested_pools, scope,
};
use ipam_kit::cni::{NetworkName, Verb};
use ipam_kit::contract::Purpose;
use ipam_kit::delegate::Deadline;
use ipam_kit::host::open_own;
use ipam_kit::keys::Key;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, Request, Result};
use log::debug;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::mark::{NameMark, NotedOwner, OwnerMark, short_hash};
use crate::memory::SiteMemory;
use crate::owner_file::OwnerFile;
use crate::pools::{self, SubnetPool};
use crate::present;
use crate::server::{AddressRecord, RecordServer, ServerRules};
use crate::sight::SubnetSight;

/// The leases of one network in records of a server.
#[derive(Debug)]
pub struct RecordLedger<S> {
    pub(crate) server: S,
    pub(crate) memory: SiteMemory,
    pub(crate) rules: ServerRules,
    pub(crate) call: RecordCall,
    /// Whether the owner's note counts. It does not after it proved wrong.
    pub(crate) trusts_notes: bool,
    /// Whether a change of this call has an unknown outcome.
    pub(crate) has_unknown: bool,
    /// Whether a claim of this call has met a record of its owner that was not looked for.
    pub(crate) looks_first: bool,
    /// How often a claim of this call met another one at its address.
    pub(crate) clashes: u32,
    /// The addresses that the server refused as used, and of which it showed no record: how often.
    pub(crate) hidden: BTreeMap<IpAddr, u32>,
    /// The lock of the node's first claim, if it is this one.
    first: Option<File>,
}

/// The subject of a call. It does not change.
#[derive(Debug)]
pub(crate) struct RecordCall {
    pub(crate) network: NetworkName,
    /// This node; `None` if its identity cannot be read.
    pub(crate) node: Option<String>,
    /// Whether the call takes addresses.
    pub(crate) claims: bool,
    /// Whether the call releases addresses.
    pub(crate) releases: bool,
    /// Whether it releases only what an ADD of this process took.
    pub(crate) is_undo: bool,
    /// Whether it does so, and the ADD has answered no leases.
    pub(crate) is_of_nothing: bool,
    /// Whether records of an older program count in this call.
    pub(crate) adopts: bool,
    /// The pod, for the text of a record.
    pub(crate) pod: String,
    /// The files of owners.
    pub(crate) owners: PathBuf,
    /// The pools of the call that can be read.
    pub(crate) pools: Vec<PoolRequest>,
    pub(crate) deadline: Deadline,
}

/// The guard of a commit: the sight of a view.
#[derive(Debug)]
pub struct RecordToken {
    pub(crate) turn: OwnerFile,
    pub(crate) held: HeldGuard,
    /// The subnets that were looked at.
    pub(crate) sights: Vec<SubnetSight>,
    /// The subnet of each request, by the request's path.
    pub(crate) pools: BTreeMap<String, SubnetPool>,
    /// The sticky names of the requests.
    pub(crate) names: BTreeMap<String, NameMark>,
}

/// The records of the owner at a view.
#[derive(Debug)]
pub(crate) enum HeldGuard {
    /// These, by id and stamp.
    Seen(BTreeSet<(String, String)>),
    /// A guess: those of the record of the attachment.
    Guessed,
}

/// [`Lease::revision`]: a state of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Revision {
    pub(crate) id: String,
    pub(crate) subnet: String,
    pub(crate) stamp: String,
}

impl Revision {
    pub(crate) fn of(record: &AddressRecord, subnet: &str) -> Self {
        Self { id: record.id.clone(), subnet: subnet.to_owned(), stamp: record.stamp.clone() }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!(self)
    }

    /// Reads the revision that came back with a lease.
    pub(crate) fn read(lease: &Lease) -> Option<Self> {
        Self::deserialize(&lease.revision).ok()
    }

    /// The record of a lease, without its text.
    pub(crate) fn record(self, lease: &Lease) -> AddressRecord {
        let Self { id, stamp, .. } = self;
        AddressRecord {
            id,
            address: lease.address.addr(),
            text: String::new(),
            stamp,
            written: None,
        }
    }

    pub(crate) fn key(&self) -> (String, String) {
        (self.id.clone(), self.stamp.clone())
    }
}

impl RecordToken {
    pub(crate) fn sight(&self, subnet: &str) -> Option<&SubnetSight> {
        self.sights.iter().find(|sight| sight.subnet.id == subnet)
    }

    /// Whether the view has read a record of the owner, and no other call of the node could change it
    /// since. An id that was the owner's is never another owner's.
    pub(crate) fn has_seen(&self, revision: &Revision) -> bool {
        let HeldGuard::Seen(seen) = &self.held else { return false };
        self.turn.is_locked() && seen.contains(&revision.key())
    }

    /// Whether a change names each lease that the owner holds.
    pub(crate) fn fits(&self, change: &Change<'_>, trusts_notes: bool) -> bool {
        let named = [&change.keep, &change.leave, &change.drop];
        let named: Option<BTreeSet<_>> = named
            .into_iter()
            .flatten()
            .map(|lease| Revision::read(lease).map(|it| it.key()))
            .collect();
        let Some(named) = named else { return false };
        match &self.held {
            HeldGuard::Seen(held) => *held == named,
            HeldGuard::Guessed => {
                let only_drops =
                    change.keep.is_empty() && change.claim.is_empty() && change.leave.is_empty();
                let note = self.turn.note().filter(|note| note.sure && trusts_notes);
                let ids: BTreeSet<&String> = named.iter().map(|(id, _)| id).collect();
                only_drops
                    && note.is_some_and(|note| {
                        note.records.iter().map(|it| &it.id).collect::<BTreeSet<_>>() == ids
                    })
            }
        }
    }
}

impl<S: RecordServer> RecordLedger<S> {
    /// Waits for the turn of an owner.
    pub(crate) fn turn(&self, owner: &Owner) -> Result<OwnerFile> {
        let give_up = Instant::now() + self.call.deadline.left() * 9 / 10;
        OwnerFile::take(&self.call.owners, &NotedOwner::of(owner), give_up, self.call.claims)
    }

    /// The text of an owner's record.
    pub(crate) fn text(&self, owner: &Owner, name: Option<(&str, &NameMark)>) -> Result<String> {
        let tail = name.map_or(&*self.call.pod, |(name, _)| name);
        OwnerMark::text_of(owner, name.map(|(_, mark)| mark), tail, self.rules.longest_text)
    }

    /// Fails if an ADD would fail: for the first time on this node with a proof of each right.
    pub(crate) fn prove_rights(&mut self) -> Result<()> {
        match self.memory.had_rights() {
            true => self.server.ready()?,
            false => self.server.check_rights()?,
        }
        self.memory.remember_rights();
        Ok(())
    }

    /// Whether this claim is the first of those that the node makes at the same time. The first one
    /// takes its address in order. If the lock fails, each is the first.
    pub(crate) fn is_first(&mut self) -> bool {
        if self.first.is_some() {
            return true;
        }
        let path = self.call.owners.with_file_name("first.lock");
        let Ok(file) = open_own(&path, OFlags::RDWR | OFlags::CREATE, 0o600) else { return true };
        match file.try_lock() {
            Ok(()) => self.first = Some(file),
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Error(error)) => debug!("cannot lock {}: {error}", path.display()),
        }
        true
    }

    /// Waits a random time, so that calls that met do not meet again.
    pub(crate) fn pause(&self) {
        let [random, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
        self.wait(Duration::from_millis(25 << self.clashes.min(5)) * u32::from(random) / 255);
    }

    /// Waits, at most for a part of the time that is left.
    pub(crate) fn wait(&self, time: Duration) {
        std::thread::sleep(time.min(self.call.deadline.left() / 4));
    }
}

impl<S: RecordServer> Ledger for RecordLedger<S> {
    type Config = S::Config;
    type Token = RecordToken;

    const KEYS: Option<&'static [Key]> = Some(S::KEYS);
    const REACH: Reach = Reach::Cluster;

    fn open(config: S::Config, request: &Request) -> Result<Self> {
        let server = S::open(config, request)?;
        // The notes and locks of an owner are those of the recorded server, also if another is asked.
        let folder = request.state_dir()?.root().join(S::FOLDER).join(short_hash(&server.site()));
        let server = present::proven::<S>(request, &known(request)).unwrap_or(server);
        let memory =
            SiteMemory::read(folder.join("site.json"), server.user(), request.trusts_any_store());
        let purpose = request.members().purpose();
        let adopts = server.adopts() && matches!(purpose, Ok(Purpose::Runtime));
        let is_undo =
            matches!(purpose, Ok(Purpose::Undo | Purpose::TakenBetween { before: None, .. }));
        let is_of_nothing = is_undo && known(request).is_empty();
        let args = |name: &str| request.args.get(name).unwrap_or_default();
        let pod = match (args("K8S_POD_NAMESPACE"), args("K8S_POD_NAME")) {
            ("", _) | (_, "") => String::new(),
            (namespace, pod) => format!("{namespace}/{pod}"),
        };
        let pools = requested_pools(request).into_iter();
        let pools = pools.filter_map(|pool| PoolRequest::read(&[pool], Strategy::Lowest).ok());
        Ok(Self {
            rules: server.rules(),
            server,
            memory,
            call: RecordCall {
                network: request.network.name().clone(),
                node: scope(request).ok().map(|scope| scope.node),
                claims: request.verb == Verb::Add,
                releases: request.verb == Verb::Del,
                adopts,
                is_undo,
                is_of_nothing,
                pod,
                owners: folder.join("owners"),
                pools: pools.flatten().collect(),
                deadline: request.deadline,
            },
            trusts_notes: true,
            has_unknown: false,
            looks_first: false,
            clashes: 0,
            hidden: BTreeMap::new(),
            first: None,
        })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<RecordToken>,
    ) -> Result<View<RecordToken>> {
        let turn = match earlier {
            Some(token) => token.turn,
            None => self.turn(query.owner)?,
        };
        if query.requests.is_empty() {
            self.view_held(query, turn)
        } else {
            self.view_pools(query, turn)
        }
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: RecordToken,
        change: &Change<'_>,
    ) -> Result<Commit<RecordToken>> {
        if !seen.fits(change, self.trusts_notes) {
            self.trusts_notes = false;
            return Ok(Commit::Outdated);
        }
        if change.claim.is_empty() && change.keep.is_empty() {
            return self.release(owner, seen, change);
        }
        self.make_change(owner, seen, change)
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        self.remove_entries(entries)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_subnets(node, each)
    }

    fn ready(&mut self) -> Result<()> {
        self.check_not_restored()?;
        self.prove_rights()
    }

    fn accept(&mut self) -> Result<bool> {
        // A server that cannot be reached is not accepted.
        self.server.ready()?;
        self.memory.accept()?;
        Ok(true)
    }

    fn foreign_entries(&mut self) -> Result<Vec<String>> {
        self.find_faults()
    }

    fn ranges(&mut self, request: &PoolRequest) -> Result<RangeSet> {
        Ok(pools::find(&mut self.server, &mut self.memory, request)?.set)
    }

    fn profile(&self) -> Profile {
        Profile {
            strategy: Strategy::Lowest,
            keeps_sticky: true,
            chooses: self.rules.chooses,
            ..Profile::default()
        }
    }

    fn claim_limits(&self, _claims: usize) -> ClaimLimits {
        // The view shows whole subnets.
        ClaimLimits { look_first: true, ..ClaimLimits::IN_ORDER }
    }
}

/// The error that a server's answers contradict each other.
pub(crate) fn contradicts<S: RecordServer>(what: String) -> Error {
    Error::new(ipam_kit::ErrorCode::TRY_AGAIN, format!("{}: {what}", S::NAME))
        .advise("call again; if the error persists, check what else changes records of the subnet")
}
