//! The answers that show the schema of pools, pools that a claim makes, and marks of new leases.

use std::hash::{BuildHasher, Hasher, RandomState};

use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;
use serde_json::json;

use crate::freed_notes;
use crate::lease_mark::LeaseMark;
use crate::objects::{GROUP, IpPool, PoolEntry, VERSION};
use crate::patch::Patch;
use crate::session::LeaseSession;
use crate::stamp::OwnerStamp;
use crate::store::Outcome;

impl LeaseSession {
    /// Makes a pool with its first entries.
    ///
    /// # Errors
    /// The server does not answer; a pool of whereabouts 0.3 has this subnet.
    pub(crate) fn create_pool(
        &mut self,
        name: &str,
        subnet: IpNet,
        entries: &[(u64, PoolEntry)],
    ) -> Result<Outcome<()>> {
        self.refuse_pool_of_v03(subnet)?;
        let allocations: serde_json::Map<_, _> =
            entries.iter().map(|(key, entry)| (key.to_string(), entry.to_json())).collect();
        let mut pool = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "IPPool",
            "metadata": {"name": name, "namespace": self.store.namespace()},
            "spec": {"range": subnet.to_string(), "allocations": allocations},
        });
        if !self.cooldown.is_zero() {
            let (name, text) = freed_notes::annotation(self.cooldown);
            pool["metadata"]["annotations"] = json!({name: text});
        }
        let outcome = self.store.create_pool(&pool)?;
        Ok(self.learn(name, outcome, entries))
    }

    /// Adds entries to a pool.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn add_entries(
        &mut self,
        name: &str,
        patch: &Patch,
        entries: &[(u64, PoolEntry)],
    ) -> Result<Outcome<()>> {
        if self.knows_schema() {
            let outcome = self.store.patch_pool_quietly(name, patch)?;
            return Ok(outcome.map(|head| self.remember_pool(name, &head.metadata)));
        }
        let outcome = self.store.patch_pool(name, patch)?;
        Ok(self.learn(name, outcome, entries))
    }

    /// Learns from an answer what the CRD keeps of an entry, and the state of the pool.
    pub(crate) fn learn(
        &mut self,
        name: &str,
        outcome: Outcome<IpPool>,
        entries: &[(u64, PoolEntry)],
    ) -> Outcome<()> {
        outcome.map(|pool| {
            let shown = entries.first().and_then(|(key, _)| pool.allocation(&key.to_string()));
            if let Some(shown) = shown {
                let mark = (!self.overlap_check).then_some(shown.mark.is_some());
                self.memory.remember_schema(shown.ifname.is_some(), mark);
            }
            self.remember_pool(name, &pool.metadata);
        })
    }

    /// Fails if whereabouts 0.3 has made a pool of this subnet: it gave some another name, and its
    /// addresses may be in use.
    fn refuse_pool_of_v03(&mut self, subnet: IpNet) -> Result<()> {
        let Some(old) = self.names.pool_of_v03(subnet) else { return Ok(()) };
        let Some(_) = self.store.read_pool(&old)? else { return Ok(()) };
        let (new, namespace) = (self.pool_of(subnet), self.store.namespace());
        let message = format!(
            "ippools.{GROUP}/{old} in the namespace {namespace} has the name that whereabouts 0.3 gave the pool of {subnet}"
        );
        let renamed = [
            ("name", old.as_str(), new.as_str()),
            ("uid", "[^\"]*", ""),
            ("resourceVersion", "[^\"]*", ""),
        ];
        let renamed =
            renamed.map(|(key, from, to)| format!("s/\"{key}\": \"{from}\"/\"{key}\": \"{to}\"/"));
        let renamed = renamed.join("; ");
        let get = format!("kubectl get -n {namespace} ippools.{GROUP} {old} -o json");
        Err(Error::new(ErrorCode::BACKEND, message).advise(format!(
            "rename it after the last node with whereabouts 0.3 has gone: `{get} | sed '{renamed}' | kubectl create -f -`, then `kubectl delete -n {namespace} ippools.{GROUP} {old}`"
        )))
    }
}

impl LeaseSession {
    /// Returns a text for the entry of a lease that no other lease has.
    pub(crate) fn new_text(&self, stamp: &OwnerStamp) -> String {
        stamp.to_mark(&self.new_nonce())
    }

    /// Returns a text that no earlier call of this returned.
    pub(crate) fn new_nonce(&self) -> String {
        format!("{:016x}", RandomState::new().build_hasher().finish())
    }

    pub(crate) fn new_mark(&self) -> LeaseMark {
        LeaseMark {
            namespace: self.store.namespace().to_owned(),
            ifname: self.memory.keeps_ifname().unwrap_or_default(),
            reservation: None,
            sticky: None,
            text: None,
            kept: !self.overlap_check && self.memory.keeps_mark().unwrap_or_default(),
        }
    }

    /// Returns whether an earlier answer has shown what the CRD keeps of an entry.
    pub(crate) fn knows_schema(&self) -> bool {
        self.memory.keeps_ifname().is_some()
            && (self.overlap_check || self.memory.keeps_mark().is_some())
    }
}
