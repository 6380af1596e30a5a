//! The cluster of the API server: the uid of a namespace that cannot be deleted.
//!
//! An ADD reads it when the node first meets a pool, and each lease names it. A DEL or CHECK that does
//! not find a lease of the record or the owner's note asks for it, unless a pool shows that the cluster
//! is the lease's.

use std::collections::BTreeMap;
use std::slice;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Need, ViewQuery};
use ipam_kit::allocate::store_memory::REASSERT;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{Resource, is_forbidden};
use serde::Deserialize;

use crate::lease_mark::LeaseMark;
use crate::objects::Metadata;
use crate::owner_notes::OwnerNote;
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::store::ObjectStore;

impl LeaseSession {
    /// Learns the cluster of a claim: from a pool that this node has noted, else from the server.
    /// Without the right to read it, pools alone show another cluster.
    ///
    /// # Errors
    /// The server does not answer; or it is of a cluster in which the network may not claim: code 11.
    pub(crate) fn meet_cluster<'p>(
        &mut self,
        pools: impl Iterator<Item = &'p ReadPool>,
    ) -> Result<()> {
        let mut noted = pools.filter_map(|pool| pool.noted.cluster_of(pool.metadata()));
        self.cluster = match noted.next() {
            Some(noted) => Some(noted.clone()),
            None if self.memory.is_cluster_refused() => None,
            None => match self.store.read_cluster() {
                Err(error) if is_forbidden(&error) => {
                    self.memory.remember_cluster_refusal();
                    None
                }
                seen => seen?,
            },
        };
        let (Some(seen), false) = (&self.cluster, self.memory.is_trusting()) else {
            return Ok(());
        };
        match self.memory.clusters() {
            [] => Ok(()),
            known if known.contains(seen) => Ok(()),
            known => Err(new_cluster(known, seen)),
        }
    }

    /// Remembers the state of a pool, and its cluster, if this call knows it.
    pub(crate) fn remember_pool(&mut self, name: &str, seen: &Metadata) {
        self.memory.remember_pool(name, seen, self.cluster.as_ref());
    }

    /// Proves that leases which a view does not show are gone: their pool is the one that this node has
    /// noted, or the cluster is theirs.
    ///
    /// # Errors
    /// Those of [`LeaseSession::prove_clusters`].
    pub(crate) fn prove_lost(
        &mut self,
        query: &ViewQuery<'_>,
        note: Option<&OwnerNote>,
        held: &[HeldLease],
        pools: &BTreeMap<String, ReadPool>,
    ) -> Result<()> {
        if query.need != Need::Proof {
            return Ok(());
        }
        let noted = note.into_iter().flat_map(|note| &note.leases);
        let mut lost: Vec<&Lease> = query
            .known
            .iter()
            .chain(noted)
            .filter(|lease| LeaseMark::of(lease).is_some())
            .collect();
        lost.retain(|lease| {
            let address = lease.address.addr();
            let pool = pools.get(&self.pool_of(lease.address.trunc()));
            !held.iter().any(|held| held.address() == address)
                && !pool.is_some_and(|pool| pool.noted.proves(pool.metadata(), lease))
        });
        self.prove_clusters(lost.into_iter())
    }

    /// Proves that the server is of the cluster of each of these leases: a lease of an earlier release
    /// names none, and may be of each in which the network claims.
    ///
    /// # Errors
    /// The server is of another cluster: code 11; or it does not tell.
    pub(crate) fn prove_clusters<'l>(
        &mut self,
        leases: impl Iterator<Item = &'l Lease>,
    ) -> Result<()> {
        if self.memory.is_trusting() {
            return Ok(());
        }
        let known = self.memory.clusters();
        let of = |lease: &'l Lease| lease.store.as_ref().map_or(known, slice::from_ref);
        let mut expected: Vec<&[String]> = leases.map(of).collect();
        // Nothing shows the cluster of a claim that was not allowed to read it.
        expected.retain(|clusters| !clusters.is_empty());
        if expected.is_empty() {
            return Ok(());
        }
        let seen = self.store.read_cluster()?;
        let is_other =
            |clusters: &&&[String]| !seen.as_ref().is_some_and(|it| clusters.contains(it));
        match expected.iter().find(is_other) {
            Some(clusters) => Err(other_cluster(clusters, seen.as_deref())),
            None => Ok(()),
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
                "a lease that is claimed without this right names no cluster, so its DEL in another \
                 one finds nothing and succeeds; a DEL that finds neither pool nor any other lease \
                 fails with code 103: {}",
                error.in_full()
            ))),
            answer => answer.map(|_| None),
        }
    }
}

/// The error of an ADD in a cluster in which the network may not claim.
fn new_cluster(known: &[String], seen: &str) -> Error {
    let message = format!(
        "the API server is of another cluster than this node's leases: its namespace {NAMESPACE} has \
         the uid {seen}, and this node has claimed under the uid {}",
        known.join(", ")
    );
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise(CHECK_SERVER)
        .advise(format!("if the node has moved to this cluster, {REASSERT}"))
        .advise(
            "if the network uses both clusters, run `ipam-da-kube accept --config FILE` on this node, \
             where FILE names this kubeconfig",
        )
}

/// The error of a server that is not of the cluster of a lease.
fn other_cluster(expected: &[String], seen: Option<&str>) -> Error {
    let seen = match seen {
        Some(uid) => format!("has the uid {uid}"),
        None => "is missing".to_owned(),
    };
    let expected = expected.join(", ");
    let message = format!(
        "the API server is of another cluster than the lease: its namespace {NAMESPACE} {seen}, and \
         the lease was claimed under the uid {expected}"
    );
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise(CHECK_SERVER)
        .advise(format!("if the node has moved to this cluster, {REASSERT}"))
        .advise(
            "to leave the lease in the other cluster, run `ipam-delegated forget NETWORK CONTAINER \
             --yes` if the container has a record, and then `ipam-da-kube accept --config FILE` on \
             this node",
        )
}

const CHECK_SERVER: &str = "check the server that the kubeconfig names";

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
