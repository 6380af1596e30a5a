//! The tools of the checks of a ledger.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::CheckResult;
use crate::between::CallBetween;
use crate::plain::{self, leases};
use ipam_kit::allocate::ledger::{
    Change, Claim, Commit, Entry, Ledger, Need, Scan, Taken, View, ViewQuery, unknown_ranges,
};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Scope, Strategy};
use ipam_kit::cni::address::parse_address;
use ipam_kit::cni::{ContainerId, Environment, IfName, NetworkName, Verb};
use ipam_kit::delegate::Request;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;
use ipam_kit::pool::Pool;

/// Where ledgers of one kind are opened, all on one store.
pub trait LedgerSubject: Clone + Send + Sync + 'static {
    /// The kind.
    type Ledger: Ledger;

    /// A ledger for one network, as a process opens it: [`request`] makes what it is opened by.
    /// Each step and each racer of a check gets one of its own.
    ///
    /// # Errors
    /// The store cannot be used.
    fn open(&self, network: &NetworkName) -> Result<Self::Ledger>;

    /// Calls `between` inside the next commit, after its caller has looked and before anything is
    /// changed. False where that cannot be done. Any ledger can do it inside of
    /// [`InterleavedLedger`](crate::between::InterleavedLedger).
    fn interleave(&self, between: CallBetween) -> bool {
        drop(between);
        false
    }

    /// The name of a pool that the store itself knows, for this network alone: 10.1.2.0/28 with the
    /// gateway 10.1.2.1. `None` if the store chooses no addresses.
    fn store_pool(&self, _network: &NetworkName) -> Option<String> {
        None
    }
}

/// The request of a DEL for [`Ledger::open`], on this network and with this section `ipam`.
///
/// # Errors
/// A process could not be called so.
pub fn request(network: &NetworkName, ipam: &Value) -> Result<Request> {
    let config = json!({"cniVersion": "1.1.0", "name": network.as_str(), "ipam": ipam});
    let variables = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
    let (environment, stdin) = (Environment::new(variables), config.to_string());
    Request::parse(Verb::Del, environment, stdin.as_bytes(), Settings::default())
}

/// A network that no other check uses.
#[derive(Clone)]
pub(super) struct LedgerBench<'a, S> {
    pub subject: &'a S,
    pub network: NetworkName,
}

/// The outcome of a commit.
pub(super) enum EndedCommit {
    Done { kept: Vec<Lease>, claimed: Vec<Lease> },
    Lost(Vec<Taken>),
    Full,
}

impl EndedCommit {
    pub(super) fn told(&self) -> String {
        match self {
            Self::Done { kept, claimed } => {
                format!("is done: it keeps {} and takes {}", leases(kept), leases(claimed))
            }
            Self::Lost(taken) => format!("is lost; taken: {}", plain::taken(taken)),
            Self::Full => "says that the pool is full".to_owned(),
        }
    }
}

static NETWORKS: AtomicU64 = AtomicU64::new(0);

/// A network name that nothing else uses.
pub(super) fn fresh_network() -> Result<NetworkName> {
    let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
    NetworkName::parse(&format!("suite-{}-{number}", process::id()))
}

impl<'a, S: LedgerSubject> LedgerBench<'a, S> {
    pub(super) fn new(subject: &'a S) -> Result<Self> {
        Ok(Self { subject, network: fresh_network()? })
    }

    pub(super) fn open(&self) -> Result<S::Ledger> {
        self.subject.open(&self.network)
    }

    pub(super) fn owner(&self, container: &str, ifname: &str) -> Result<Owner> {
        self.owner_on("node-1", container, ifname)
    }

    pub(super) fn owner_on(&self, node: &str, container: &str, ifname: &str) -> Result<Owner> {
        let scope = Scope { node: node.to_owned(), network: self.network.clone() };
        let container = ContainerId::parse(container)?;
        Ok(Owner { scope, container, ifname: IfName::parse(ifname)? })
    }

    /// The owner's leases.
    pub(super) fn held(&self, owner: &Owner) -> Result<Vec<Lease>> {
        let query = ViewQuery {
            owner,
            known: &[],
            requests: &[],
            scans: &[],
            may_guess: false,
            need: Need::Proof,
        };
        Ok(self.open()?.view(&query, None)?.held)
    }

    /// The addresses that the owner holds, in order.
    pub(super) fn addresses(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        let held = self.held(owner)?;
        let mut held: Vec<IpAddr> = held.iter().map(|lease| lease.address.addr()).collect();
        held.sort_unstable();
        Ok(held)
    }

    /// Looks as far as told, then commits.
    pub(super) fn commit(&self, owner: &Owner, change: &Change<'_>) -> Result<EndedCommit> {
        let mut ledger = self.open()?;
        let view = self.view(&mut ledger, owner, change, Scan::None)?;
        ended(ledger.commit(owner, view.token, change)?)
    }

    /// A view for a change.
    pub(super) fn view(
        &self,
        ledger: &mut S::Ledger,
        owner: &Owner,
        change: &Change<'_>,
        look: Scan,
    ) -> Result<View<<S::Ledger as Ledger>::Token>> {
        let requests: Vec<PoolRequest> =
            change.claim.iter().map(|claim| claim.request.clone()).collect();
        let scans = vec![look; requests.len()];
        let query = ViewQuery {
            owner,
            known: &[],
            requests: &requests,
            scans: &scans,
            may_guess: false,
            need: Need::Claim,
        };
        ledger.view(&query, None)
    }

    /// Takes one address for an owner who holds nothing.
    pub(super) fn take(&self, owner: &Owner, address: &str) -> Result<Lease> {
        let request = pool_of(address)?;
        let change = Change { claim: vec![claim(&request, &[address])?], ..Change::default() };
        match self.commit(owner, &change)? {
            EndedCommit::Done { claimed, .. } if claimed.len() == 1 => Ok(claimed[0].clone()),
            ended => {
                let message = format!("{address} is free, but the claim {}", ended.told());
                Err(Error::new(ErrorCode::INTERNAL, message))
            }
        }
    }

    /// Every entry, by its address.
    pub(super) fn entries(&self) -> Result<BTreeMap<IpAddr, Entry>> {
        let mut entries = BTreeMap::new();
        self.open()?.scan(None, &mut |entry| {
            entries.insert(entry.lease.address.addr(), entry);
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    /// All there is, in a form to be compared.
    pub(super) fn state(&self) -> Result<Vec<String>> {
        let line = |(address, entry): (&IpAddr, &Entry)| {
            format!("{address} {} by {}", entry.lease.revision, entry.held_by())
        };
        Ok(self.entries()?.iter().map(line).collect())
    }
}

/// An outcome that tells; one that does not is an error here.
pub(super) fn ended<T>(commit: Commit<T>) -> Result<EndedCommit> {
    match commit {
        Commit::Done { kept, claimed } => Ok(EndedCommit::Done { kept, claimed }),
        Commit::Lost { taken, .. } => Ok(EndedCommit::Lost(taken)),
        Commit::Full { .. } => Ok(EndedCommit::Full),
        Commit::Outdated => Ok(EndedCommit::Lost(Vec::new())),
        Commit::Unknown => {
            Err(Error::new(ErrorCode::TRY_AGAIN, "the store did not confirm a commit"))
        }
    }
}

/// The first pool's number names its cursor.
pub(super) fn pool(index: u32, ranges: Value) -> Result<PoolRequest> {
    let pool = json!({"ranges": ranges, "index": index});
    let pool = Pool::parse(&pool, "pool")?;
    let mut requests = PoolRequest::read(&[pool], Strategy::RoundRobin)?;
    let mut request = requests.remove(0);
    request.path = format!("prevResult.pools[{index}]");
    Ok(request)
}

/// 10.1.2.0/24, 10.1.3.0/24 or fd00:1::/64, whichever the address is of.
pub(super) fn pool_of(text: &str) -> Result<PoolRequest> {
    if text.contains(':') {
        return pool(2, json!([{"subnet": "fd00:1::/64"}]));
    }
    if text.starts_with("10.1.3.") {
        return pool(1, json!([{"subnet": "10.1.3.0/24"}]));
    }
    pool(0, json!([{"subnet": "10.1.2.0/24"}]))
}

pub(super) fn claim<'a>(request: &'a PoolRequest, candidates: &[&str]) -> Result<Claim<'a>> {
    let parse = |text: &&str| {
        parse_address(text).map_err(|error| Error::new(ErrorCode::INTERNAL, error.to_string()))
    };
    Ok(Claim {
        request,
        set: request.set.clone().ok_or_else(|| unknown_ranges(request))?,
        candidates: candidates.iter().map(parse).collect::<Result<_>>()?,
        next: Scan::None,
        replaces: None,
    })
}

pub(super) fn expect(holds: bool, message: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(message().into()) }
}

/// The commit is done; its kept and claimed leases.
pub(super) fn done(ended: EndedCommit, what: &str) -> Result<(Vec<Lease>, Vec<Lease>), String> {
    match ended {
        EndedCommit::Done { kept, claimed } => Ok((kept, claimed)),
        EndedCommit::Lost(_) | EndedCommit::Full => Err(format!("{what} {}", ended.told())),
    }
}

/// The commit is lost; what was taken.
pub(super) fn lost(ended: EndedCommit, what: &str) -> Result<Vec<Taken>, String> {
    match ended {
        EndedCommit::Lost(taken) => Ok(taken),
        EndedCommit::Done { .. } | EndedCommit::Full => Err(format!("{what} {}", ended.told())),
    }
}
