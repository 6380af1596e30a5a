use std::fmt;
use std::time::Duration;

use etcd_client::Txn;
use ipam_kit::delegate::Deadline;
use ipam_kit::{ErrorCode, Request, Result};
use ipam_servers::{Failover, PATIENCE, Service, Transport};

use crate::config::EtcdStore;
use crate::connection::TxnMaker;
use crate::credentials::EtcdCredentials;
use crate::endpoint::Endpoint;
use crate::keys::plain;
use crate::memory::{self, EtcdMemory};
use crate::transport::{EtcdAnswer, Grpc};

/// The servers of a store, of which one that answers is as good as another.
///
/// A client library's own list of endpoints balances between them and fails with the one it happens
/// to have chosen; here each request goes to one server, and on to the next when that one fails.
pub(crate) struct EtcdClient {
    servers: Failover<Grpc>,
}

impl EtcdClient {
    /// Returns a client for one call: it shows the auth token that is kept on this node, and begins
    /// with the server that answered last.
    ///
    /// # Errors
    /// The state folder is missing, or a certificate file cannot be read.
    pub(crate) fn open(
        store: &EtcdStore,
        request: &Request,
        memory: &EtcdMemory,
        deadline: Deadline,
    ) -> Result<Self> {
        let tokens = memory::folder(&request.state_dir()?).join("tokens");
        let credentials = store.user.clone().map(|(user, password)| {
            // A token is known to the servers of one store alone.
            let name = plain(&format!("{user}@{}", store.endpoints[0]));
            EtcdCredentials::new(user, password, tokens.join(name))
        });
        let mut client = Self::new(store, credentials, request.unreached(), deadline)?;
        if let Some(endpoint) = memory.endpoint() {
            client.prefer(&endpoint);
        }
        Ok(client)
    }

    /// Returns a client for the servers of a store; it connects when there is something to send.
    /// `unreached` is the code of the error when no server could be reached.
    ///
    /// # Errors
    /// A certificate file cannot be read.
    pub(crate) fn new(
        store: &EtcdStore,
        credentials: Option<EtcdCredentials>,
        unreached: ErrorCode,
        deadline: Deadline,
    ) -> Result<Self> {
        let service = Service {
            name: "etcd",
            servers: store.endpoints.iter().map(Endpoint::to_string).collect(),
            timeout: store.timeout,
            unreached,
        };
        let transport = Grpc::new(store, credentials)?;
        Ok(Self { servers: Failover::new(service, transport, deadline) })
    }

    /// Sets another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.servers.set_deadline(deadline);
    }

    /// Returns the server that answered last.
    pub(crate) fn answering(&self) -> &Endpoint {
        self.servers.transport().endpoint(self.servers.answering())
    }

    /// Begins with this server, if it is one of the store's.
    fn prefer(&mut self, url: &str) {
        self.servers.prefer(url);
    }

    /// Returns the server that answered last, where it is not the one that the configuration names
    /// first.
    pub(crate) fn preferred(&self) -> Option<String> {
        self.servers.preferred().map(str::to_owned)
    }

    /// Asks something that changes nothing, until a server answers.
    ///
    /// # Errors
    /// No server answers in time, or the store refuses the request.
    pub(crate) fn read(&mut self, txn: &Txn) -> Result<EtcdAnswer> {
        let make: TxnMaker<'_> = &|| txn.clone();
        self.servers.read(make)
    }

    /// Changes something; `None` when it may have been done, or may still be.
    ///
    /// # Errors
    /// The change was not done, and will not be.
    pub(crate) fn write(&mut self, txn: &Txn) -> Result<Option<EtcdAnswer>> {
        self.write_made(&|| txn.clone())
    }

    /// Changes something by a transaction that may be long, so that it is not copied.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn write_made(&mut self, make: TxnMaker<'_>) -> Result<Option<EtcdAnswer>> {
        self.servers.write(make)
    }

    /// Tells whether the latest request was refused because this caller has no right to some key in
    /// it.
    pub(crate) fn was_denied(&self) -> bool {
        self.servers.transport().was_denied()
    }

    /// Returns an etcd lease of so many seconds, from the server that answered last.
    ///
    /// # Errors
    /// The server refuses: code 11.
    pub(crate) fn grant(&mut self, seconds: i64) -> Result<i64> {
        let patience = self.patience();
        self.servers.transport_mut().about_leases(patience, async |leases| {
            leases.grant(seconds, None).await.map(|lease| lease.id())
        })
    }

    /// Renews an etcd lease, so that it lasts for all its seconds once more.
    ///
    /// # Errors
    /// The lease has ended, or the server refuses: code 11.
    pub(crate) fn renew(&mut self, lease: i64) -> Result<()> {
        let patience = self.patience();
        self.servers
            .transport_mut()
            .about_leases(patience, async |leases| leases.keep_alive(lease).await.map(drop))
    }

    /// Ends an etcd lease, and with it the keys that were written with it.
    ///
    /// # Errors
    /// The server refuses: code 11.
    pub(crate) fn revoke(&mut self, lease: i64) -> Result<()> {
        let patience = self.patience();
        self.servers
            .transport_mut()
            .about_leases(patience, async |leases| leases.revoke(lease).await.map(drop))
    }

    /// Waits, while the connection lives on.
    pub(crate) fn pause(&mut self, time: Duration) {
        self.servers.transport_mut().pause(time);
    }

    /// Returns the time until the store is given up.
    pub(crate) fn left(&self) -> Duration {
        self.servers.left()
    }

    /// Returns how long one server may take for a request that goes to no other.
    fn patience(&self) -> Duration {
        PATIENCE.min(self.left())
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.servers.fmt(f)
    }
}

#[cfg(test)]
pub(crate) mod tests;
