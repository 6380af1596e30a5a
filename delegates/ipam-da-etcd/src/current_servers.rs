//! The proof that the servers of the present configuration have the recorded store.

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::allocate::owner_index::LeaseRevision;
use ipam_kit::allocate::present_store::present_store;
use ipam_kit::allocate::{Lease, known};
use ipam_kit::{Error, Request, Result};

use crate::client::EtcdClient;
use crate::config::{EtcdConfig, EtcdStore};
use crate::endpoint::Endpoint;
use crate::keys::EtcdKeys;
use crate::memory::EtcdMemory;
use crate::page::{FoundKeys, READS, found_by_key};

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
    present_store(
        request,
        |network| {
            let present = network.settings::<EtcdConfig>()?.store()?;
            if (present.layout.name, &present.prefix) != (recorded.layout.name, &recorded.prefix) {
                let message = "the record names another layout or prefix";
                return Err(Error::config("ipam.etcd", message));
            }
            let endpoints = Error::listed(present.endpoints.iter().map(Endpoint::to_string), ", ");
            Ok((present, endpoints))
        },
        |present, deadline| {
            let mut client = EtcdClient::open(&present, request, memory, deadline)?;
            let proof = Proof { recorded, present: &present, memory, keys, marked };
            let holds = proof.holds(&mut client, &known(request))?;
            client.set_deadline(request.deadline);
            Ok(holds.then_some(client))
        },
    )
}

struct Proof<'a> {
    recorded: &'a EtcdStore,
    present: &'a EtcdStore,
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
        let present: Vec<&str> =
            self.present.endpoints.iter().map(Endpoint::host_and_port).collect();
        let recorded: Vec<&str> =
            self.recorded.endpoints.iter().map(Endpoint::host_and_port).collect();
        let still_named = recorded.iter().all(|endpoint| present.contains(endpoint));
        let evidence = holds_them || still_named;
        Ok(self.memory.is_recorded_store(&answer, latest, &recorded, evidence, still_named))
    }
}

fn revision_in(found: &FoundKeys, key: &str) -> Option<i64> {
    found.get(key.as_bytes()).map(KeyValue::mod_revision)
}
