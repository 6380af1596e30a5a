//! The store as one call uses it.

use std::ops::ControlFlow;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use ipam_kit::cni::Verb;
use ipam_kit::{Request, Result};

use crate::client::EtcdClient;
use crate::config::EtcdStore;
use crate::current_servers::connect_if_proven;
use crate::keys::{EtcdKeys, end_of};
use crate::layout::LayoutOrigin;
use crate::memory::EtcdMemory;
use crate::page::{first_get, found_by_key, next_page, read_page};
use crate::transport::EtcdAnswer;

/// The servers, the keys of the network, and what this node remembers of the store.
#[derive(Debug)]
pub(crate) struct EtcdSession {
    pub(crate) client: EtcdClient,
    pub(crate) keys: EtcdKeys,
    pub(crate) memory: EtcdMemory,
    /// Whether the store lets us have keys of owners.
    pub(crate) indexed: bool,
    /// Whether another store than the known one may be used.
    pub(crate) accepts_any_store: bool,
    /// Whether this call takes no address.
    pub(crate) releasing: bool,
}

impl EtcdSession {
    /// Opens the store that the configuration names, or that the record of a container does.
    ///
    /// # Errors
    /// The state folder is missing, or a certificate file cannot be read.
    pub(crate) fn open(store: &EtcdStore, request: &Request) -> Result<Self> {
        let memory = EtcdMemory::open(store, request)?;
        let keys = EtcdKeys::new(store.layout.key_paths(), &store.prefix, request.network.name());
        let indexed =
            !matches!(store.layout.origin, LayoutOrigin::Plugin(_)) || !memory.is_unindexed();
        let client = match connect_if_proven(request, store, &memory, &keys, indexed) {
            Some(client) => client,
            None => EtcdClient::open(store, request, &memory, request.deadline)?,
        };
        Ok(Self {
            client,
            keys,
            memory,
            indexed,
            accepts_any_store: request.trusts_any_store(),
            releasing: !matches!(request.verb, Verb::Add | Verb::Status),
        })
    }

    /// Reads something in the store that is known.
    ///
    /// # Errors
    /// The store does not answer, refuses it, or is not the known one.
    pub(crate) fn read(&mut self, txn: &Txn) -> Result<EtcdAnswer> {
        let answer = self.client.read(txn)?;
        self.check_answer(&answer)?;
        Ok(answer)
    }

    /// Fails when an answer is not of the store that is known.
    ///
    /// # Errors
    /// As [`EtcdMemory::check_answer`].
    pub(crate) fn check_answer(&mut self, answer: &EtcdAnswer) -> Result<()> {
        self.memory.remember_endpoint(self.client.preferred());
        if self.accepts_any_store {
            Ok(())
        } else {
            self.memory.check_answer(answer, self.releasing)
        }
    }

    /// Returns the revision of the latest claim that is known, which a claim is guarded with; none
    /// where the store is used whatever it is, or has no key of it.
    pub(crate) fn latest(&self) -> Option<i64> {
        (!self.accepts_any_store && self.indexed).then(|| self.memory.latest())
    }

    /// Reads something that every call may read, and the revision of the latest claim: 0 without a
    /// claim, `None` if the store has no key of it.
    ///
    /// # Errors
    /// The store does not answer, or refuses it.
    pub(crate) fn read_latest_claim(&mut self) -> Result<(EtcdAnswer, Option<i64>)> {
        let answer = self.client.read(&Txn::new().and_then(self.reads_of_latest_claim()))?;
        let latest = self.latest_claim_in(&answer);
        Ok((answer, latest))
    }

    fn reads_of_latest_claim(&self) -> Vec<TxnOp> {
        match self.indexed {
            true => vec![
                TxnOp::get(self.keys.latest(), None),
                TxnOp::get(self.keys.owners(), Some(any_key())),
            ],
            false => vec![TxnOp::get(self.keys.leases(), Some(any_key()))],
        }
    }

    fn latest_claim_in(&self, answer: &EtcdAnswer) -> Option<i64> {
        self.indexed.then(|| {
            let found = found_by_key(&answer.response);
            found.get(self.keys.latest().as_bytes()).map_or(0, KeyValue::mod_revision)
        })
    }

    /// Fails where an ADD would, which reads and writes some keys beside our own. Writes nothing:
    /// etcd checks space and rights for both branches of a transaction, and the guard of the one
    /// that writes never holds.
    ///
    /// # Errors
    /// The store does not answer, refuses it, or is not the known one.
    pub(crate) fn ready(&mut self, reads: Vec<TxnOp>, written: Vec<String>) -> Result<()> {
        let never = match self.indexed {
            true => self.keys.latest(),
            false => self.keys.leases(),
        };
        let never = Compare::mod_revision(never, CompareOp::Less, 0);
        let ours = [self.keys.latest(), self.keys.owners()].map(str::to_owned);
        let ours = ours.into_iter().filter(|_| self.indexed);
        let writes: Vec<TxnOp> =
            written.into_iter().chain(ours).map(|key| TxnOp::put(key, "", None)).collect();
        let reads: Vec<TxnOp> = self.reads_of_latest_claim().into_iter().chain(reads).collect();
        let txn = Txn::new().when([never]).and_then(writes).or_else(reads);
        let answer = self.client.read(&txn)?;
        let latest = self.latest_claim_in(&answer);
        self.check_answer(&answer)?;
        if let Some(latest) = latest {
            self.memory.check_latest_claim(latest)?;
            self.memory.remember_latest_claim(&answer, latest);
        }
        Ok(())
    }

    /// Takes the store as it was looked at for the one in use.
    ///
    /// # Errors
    /// As [`EtcdMemory::accept`].
    pub(crate) fn accept(&mut self, (answer, latest): (EtcdAnswer, Option<i64>)) -> Result<()> {
        self.memory.accept(&answer, self.client.answering(), latest)
    }

    /// Reads the keys from one to before another in pages, in order; with `keys_only` without values.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn each_between(
        &mut self,
        from: String,
        end: &str,
        keys_only: bool,
        each: &mut dyn FnMut(&EtcdKeys, &KeyValue) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut next = Some(from.into_bytes());
        while let Some(from) = next.take() {
            let answer = self.read(&read_page(from, end, keys_only))?;
            let Some(page) = first_get(answer.response.op_responses()) else { return Ok(()) };
            for found in page.kvs() {
                if each(&self.keys, found).is_break() {
                    return Ok(());
                }
            }
            next = next_page(&page);
        }
        Ok(())
    }

    /// Reads all keys with a prefix that ends in a slash.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn each_below(
        &mut self,
        prefix: String,
        each: &mut dyn FnMut(&EtcdKeys, &KeyValue) -> ControlFlow<()>,
    ) -> Result<()> {
        let end = end_of(&prefix);
        self.each_between(prefix, &end, false, each)
    }
}

/// Reads one key of those that begin so, whichever it is.
fn any_key() -> GetOptions {
    GetOptions::new().with_prefix().with_limit(1).with_keys_only()
}
