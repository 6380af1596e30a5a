use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use ipam_delegated::allocate::ledger::{Entry, Holder};
use ipam_delegated::{Error, ErrorCode, Result};

use crate::claim::write_owner;
use crate::client::{Answer, Client};
use crate::document::{Holding, Revision};
use crate::keys::Keys;

/// How many owners are read at once; a transaction may have 128 operations.
const BATCH: usize = 64;

/// Removing entries that a scan showed, owner by owner, each only while it is still the very one.
pub struct Removal<'a> {
    pub client: &'a Client,
    pub keys: &'a Keys,
    pub judge: &'a dyn Fn(&Answer) -> Result<()>,
}

impl Removal<'_> {
    /// Removes entries and tells which.
    ///
    /// # Errors
    /// Some could not be removed, or it is not known whether they were.
    pub fn run(&self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let mut by_owner: BTreeMap<Option<String>, Vec<&Entry>> = BTreeMap::new();
        for entry in entries {
            by_owner
                .entry(entry.holder.as_ref().and_then(|h| self.key(h)))
                .or_default()
                .push(entry);
        }
        let mut removed = Vec::new();
        let nobodys = by_owner.remove(&None).unwrap_or_default();
        for entry in nobodys {
            if self.step(None, &[entry])? {
                removed.push(entry.clone());
            }
        }
        let owners: Vec<(String, Vec<&Entry>)> =
            by_owner.into_iter().filter_map(|(key, entries)| Some((key?, entries))).collect();
        for batch in owners.chunks(BATCH) {
            let holdings = self.holdings(batch.iter().map(|(key, _)| key.as_str()))?;
            for (key, entries) in batch {
                let holding = holdings.get(key);
                if self.step(Some((key.as_str(), holding)), entries)? {
                    removed.extend(entries.iter().map(|entry| (*entry).clone()));
                }
            }
        }
        Ok(removed)
    }

    /// The states of owners, by their keys.
    pub fn holdings<'k>(
        &self,
        keys: impl Iterator<Item = &'k str>,
    ) -> Result<BTreeMap<String, Holding>> {
        let reads: Vec<TxnOp> = keys.map(|key| TxnOp::get(key, None)).collect();
        let answer = self.client.read(&Txn::new().and_then(reads))?;
        (self.judge)(&answer)?;
        let mut holdings = BTreeMap::new();
        for answer in answer.response.op_responses() {
            let TxnOpResponse::Get(get) = answer else { continue };
            for found in get.kvs() {
                let key = String::from_utf8_lossy(found.key()).into_owned();
                holdings.insert(key, Holding::read(found)?);
            }
        }
        Ok(holdings)
    }

    /// The key of the owner that an entry names.
    pub fn key(&self, holder: &Holder) -> Option<String> {
        let (node, ifname) = (holder.node.as_deref()?, holder.ifname.as_deref()?);
        Some(self.keys.owner_of(node, &holder.container, ifname))
    }

    /// Removes the entries of one owner in one transaction; tells whether they were still there.
    fn step(&self, owner: Option<(&str, Option<&Holding>)>, entries: &[&Entry]) -> Result<bool> {
        let (mut guards, mut ops) = (Vec::new(), Vec::new());
        let gone = |address| entries.iter().any(|entry| entry.lease.address.addr() == address);
        for entry in entries {
            let key = self.keys.lease(entry.lease.address.addr());
            let revision = Revision::read(&entry.lease.revision).map_or(-1, |seen| seen.revision);
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, revision));
            ops.push(TxnOp::delete(key, None));
        }
        match owner {
            None => {}
            // A lease whose owner has no key was made by hand.
            Some((key, None)) => {
                guards.push(Compare::create_revision(key, CompareOp::Equal, 0));
            }
            Some((key, Some(holding))) => {
                guards.push(Compare::mod_revision(key, CompareOp::Equal, holding.revision));
                let rest = holding.document.without(gone);
                if rest.leases.len() < holding.document.leases.len() {
                    // The keys of the rest are written only while they are the owner's.
                    for item in &rest.leases {
                        let key = self.keys.lease(item.address.addr());
                        guards.push(Compare::mod_revision(key, CompareOp::Equal, holding.revision));
                    }
                    write_owner(self.keys, key.to_owned(), &rest, &mut ops);
                }
            }
        }
        let txn = Txn::new().when(guards).and_then(ops);
        match self.client.write(&txn)? {
            Some(answer) => {
                (self.judge)(&answer)?;
                Ok(answer.response.succeeded())
            }
            None => {
                let addresses = entries.iter().map(|entry| entry.lease.address.addr().to_string());
                let addresses = addresses.collect::<Vec<_>>().join(", ");
                let message = format!("the store did not say whether {addresses} was released");
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
            }
        }
    }
}
