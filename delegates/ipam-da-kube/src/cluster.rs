//! The cluster of the API server: the uid of a namespace that cannot be deleted.
//!
//! An ADD notes it when the node first meets a pool. A DEL or CHECK that does not find what the record
//! or the owner's note names asks for it, unless a pool shows that the cluster is the same.

use std::collections::BTreeMap;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Need, ViewQuery};
use ipam_kit::allocate::store_memory::REASSERT;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{Resource, is_forbidden};
use serde::Deserialize;

use crate::lease_mark::LeaseMark;
use crate::owner_notes::OwnerNote;
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::store::ObjectStore;

impl LeaseSession {
    /// Notes the cluster at the first ADD of this node, and compares it at the first one in each other
    /// pool. Without the right to read it, pools alone show another cluster.
    ///
    /// # Errors
    /// The server does not answer, or is of another cluster: code 11.
    pub(crate) fn meet_cluster(&mut self, is_new_pool: bool) -> Result<()> {
        let is_first = self.memory.clusters().is_empty();
        if !(is_first || is_new_pool) || self.memory.is_cluster_refused() {
            return Ok(());
        }
        match self.store.read_cluster() {
            Ok(Some(seen)) if is_first => self.memory.remember_cluster(&seen),
            Ok(Some(seen)) => self.memory.check_cluster(self.store.namespace(), &seen)?,
            Ok(None) => {}
            Err(error) if is_forbidden(&error) => self.memory.remember_cluster_refusal(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Proves that leases which a view does not show are gone: their pool is the one that this node has
    /// noted, or the cluster is.
    ///
    /// # Errors
    /// Those of [`LeaseSession::prove_cluster`].
    pub(crate) fn prove_lost(
        &mut self,
        query: &ViewQuery<'_>,
        note: Option<&OwnerNote>,
        held: &[HeldLease],
        pools: &BTreeMap<String, ReadPool>,
    ) -> Result<()> {
        let noted = note.into_iter().flat_map(|note| &note.leases);
        let expected = query.known.iter().chain(noted).filter(|l| LeaseMark::of(l).is_some());
        let is_shown = |lease: &Lease| {
            let address = lease.address.addr();
            held.iter().any(|held| held.address() == address)
        };
        let mut lost = expected.filter(|lease| !is_shown(lease));
        let is_proved = |lease: &Lease| {
            let name = self.pool_of(lease.address.trunc());
            let pool = pools.get(&name).and_then(|pool| pool.object.as_ref());
            pool.is_some_and(|pool| self.memory.pool(&name).is_of(&pool.metadata))
        };
        match query.need == Need::Proof && !lost.all(is_proved) {
            true => self.prove_cluster(),
            false => Ok(()),
        }
    }

    /// Proves that the server is of a noted cluster. A node without a note has none to compare.
    ///
    /// # Errors
    /// The server is of another cluster: code 11; or it does not tell.
    pub(crate) fn prove_cluster(&mut self) -> Result<()> {
        if self.memory.clusters().is_empty() {
            return Ok(());
        }
        let seen = self.store.read_cluster()?;
        let noted = self.memory.clusters();
        match seen.as_ref().is_some_and(|seen| noted.contains(seen)) {
            true => Ok(()),
            false => Err(other_cluster(noted, seen.as_deref())),
        }
    }
}

impl ObjectStore {
    /// Reads the uid of the cluster; `None` if the namespace does not exist (yet).
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn read_cluster(&mut self) -> Result<Option<String>> {
        let namespace: Option<Namespace> = self.read_core(&Resource {
            group: "",
            version: "v1",
            plural: "namespaces",
            namespace: None,
            name: Some(NAMESPACE),
        })?;
        Ok(namespace.map(|namespace| namespace.metadata.uid))
    }

    /// Says what is lost if this login may not read the cluster; `None` if it may.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) fn cluster_remark(&mut self) -> Result<Option<String>> {
        match self.read_cluster() {
            Err(error) if is_forbidden(&error) => Ok(Some(format!(
                "a DEL in another cluster is not noticed, and succeeds there: {}",
                error.in_full()
            ))),
            answer => answer.map(|_| None),
        }
    }
}

/// The error of a server of another cluster.
fn other_cluster(noted: &[String], seen: Option<&str>) -> Error {
    let seen = match seen {
        Some(uid) => format!("has the uid {uid}"),
        None => "is missing".to_owned(),
    };
    let noted = noted.join(", ");
    let message = format!(
        "the API server is of another cluster than the leases of this network: its namespace \
         {NAMESPACE} {seen}, and this node has seen the uid {noted}"
    );
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise("check the server that the kubeconfig names")
        .advise(format!(
            "if the node has moved to this cluster, {REASSERT}; to leave its leases in the other \
             cluster, run `ipam-da-kube accept --config FILE` on this node"
        ))
}

/// The namespace whose uid names the cluster.
const NAMESPACE: &str = "kube-system";

#[derive(Deserialize)]
struct Namespace {
    metadata: NamespaceMetadata,
}

#[derive(Deserialize)]
struct NamespaceMetadata {
    uid: String,
}
