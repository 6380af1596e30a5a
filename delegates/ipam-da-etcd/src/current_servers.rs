//! The servers that the network configuration names now, where a record names others.
//!
//! They are tried before the recorded ones, which may be gone. Servers of another store would answer
//! that nothing is held, so they are used only if they prove to be those of the recorded store.

use std::time::Duration;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::allocate::owner_index::LeaseRevision;
use ipam_kit::allocate::{Lease, known};
use ipam_kit::delegate::Deadline;
use ipam_kit::{Request, Result};
use log::{debug, warn};

use crate::client::EtcdClient;
use crate::config::{EtcdConfig, EtcdStore};
use crate::endpoint::Endpoint;
use crate::keys::EtcdKeys;
use crate::memory::EtcdMemory;
use crate::page::{FoundKeys, READS, found_by_key};

/// How long the proof may take, and which part of the time that is left.
const LONGEST: Duration = Duration::from_secs(3);
const PART: u32 = 3;

/// Returns a client of the servers that the configuration names now, if a record names other
/// settings and the servers prove to be those of the recorded store. A `marked` store has a key of
/// the latest claim.
pub(crate) fn connect_if_proven(
    request: &Request,
    recorded: &EtcdStore,
    memory: &EtcdMemory,
    keys: &EtcdKeys,
    marked: bool,
) -> Option<EtcdClient> {
    let today = match today(request)? {
        Ok(today) => today,
        Err(error) => {
            debug!("the present configuration names no store: {}", error.in_full());
            return None;
        }
    };
    if (today.layout.name, &today.prefix) != (recorded.layout.name, &recorded.prefix) {
        debug!("the present configuration has another layout or prefix");
        return None;
    }
    let time = LONGEST.min(request.deadline.left() / PART);
    let proof = Proof { recorded, today: &today, memory, keys, marked };
    let connected = EtcdClient::open(&today, request, memory, Deadline::after(time));
    let proven = connected.and_then(|mut client| {
        let holds = proof.holds(&mut client, &known(request))?;
        Ok((holds, client))
    });
    match proven {
        Ok((true, mut client)) => {
            debug!("using the servers of the present configuration");
            client.set_deadline(request.deadline);
            return Some(client);
        }
        Ok((false, _)) => {
            warn!("{}: cannot confirm that this is the recorded store", list(&today.endpoints))
        }
        Err(error) => warn!("{}: {}", list(&today.endpoints), error.in_full()),
    }
    warn!("using the recorded servers: {}", list(&recorded.endpoints));
    None
}

fn today(request: &Request) -> Option<Result<EtcdStore>> {
    let network = request.present()?;
    Some(network.settings::<EtcdConfig>().and_then(|config| config.store()))
}

fn list(endpoints: &[Endpoint]) -> String {
    endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

struct Proof<'a> {
    recorded: &'a EtcdStore,
    today: &'a EtcdStore,
    memory: &'a EtcdMemory,
    keys: &'a EtcdKeys,
    marked: bool,
}

impl Proof<'_> {
    /// Tells whether a client's servers have the recorded store.
    ///
    /// # Errors
    /// They do not answer, or refuse it.
    fn holds(&self, client: &mut EtcdClient, known: &[Lease]) -> Result<bool> {
        let known = &known[..known.len().min(READS)];
        let mut reads = Vec::new();
        for lease in known {
            reads.push(TxnOp::get(self.keys.lease(lease.address.addr()), None));
        }
        if self.marked {
            reads.push(TxnOp::get(self.keys.latest(), None));
        }
        let answer = client.read(&Txn::new().and_then(reads))?;
        let found = found_by_key(&answer.response);
        let latest = self.marked.then(|| revision_in(&found, self.keys.latest()).unwrap_or(0));
        let holds_them = !known.is_empty()
            && known.iter().all(|lease| {
                let seen = LeaseRevision::read(&lease.revision).map(|seen| seen.revision);
                let key = self.keys.lease(lease.address.addr());
                seen.is_some() && revision_in(&found, &key) == seen
            });
        let todays: Vec<&str> = self.today.endpoints.iter().map(Endpoint::host_and_port).collect();
        let recorded: Vec<&str> =
            self.recorded.endpoints.iter().map(Endpoint::host_and_port).collect();
        let still_named = recorded.iter().all(|endpoint| todays.contains(endpoint));
        let evidence = holds_them || still_named;
        Ok(self.memory.is_recorded_store(&answer, latest, &recorded, evidence, still_named))
    }
}

fn revision_in(found: &FoundKeys, key: &str) -> Option<i64> {
    found.get(key.as_bytes()).map(KeyValue::mod_revision)
}
