//! cni-ipam-etcd's backend/etcd/backend.go.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use super::allocator::Store;
use super::ranges::{self, RangeSet};
use super::{Done, Played, Requests, Steps};

/// Between two tries for the lock.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// After which it goes on without the lock: 20 tries.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// Seconds that the lock lives.
const LEASE: u32 = 10;

pub(super) struct Keys {
    steps: Steps,
    /// The network's key.
    prefix: String,
    document: String,
    pause: Duration,
    patience: Duration,
}

impl Keys {
    pub(super) fn new(
        steps: Steps,
        network: &str,
        sets: &[RangeSet],
        [pause, patience]: [Duration; 2],
    ) -> Self {
        let prefix = format!("/etcd-cni/networks/{network}");
        Self { steps, prefix, document: ranges::document(sets), pause, patience }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}

impl Store for Keys {
    fn open(&mut self) -> Played<()> {
        self.steps.put(&self.prefix, &self.document)
    }

    /// Nobody looks whether it succeeded. Each try leaves a lease of its own.
    fn lock(&mut self) -> Played<()> {
        let key = self.key("lock");
        let mut waited = Duration::ZERO;
        while waited < self.patience {
            let lease = self.steps.grant(LEASE)?;
            let done = |created: &bool| {
                if *created { Done::Created(key.clone()) } else { Done::Refused(key.clone()) }
            };
            let create =
                |value: &str| self.steps.step(|requests| requests.create(&key, value, lease), done);
            if create(&lease.to_string())? {
                break;
            }
            thread::sleep(self.pause);
            waited += self.pause;
        }
        Ok(())
    }

    /// Ends whatever lease the key names, be it another's.
    fn unlock(&mut self) -> Played<()> {
        let named = self.steps.get(&self.key("lock"))?;
        if let Some(lease) = named.and_then(|value| value.parse().ok()) {
            // It may have run out.
            let revoke = |requests: &Requests| {
                let _ = requests.revoke(lease);
                Ok(())
            };
            self.steps.step(revoke, |()| Done::Revoked)?;
        }
        Ok(())
    }

    fn reserve(&mut self, id: &str, address: IpAddr, set: usize) -> Played<bool> {
        let key = self.key(&format!("used/{address}"));
        if self.steps.get(&key)?.is_some() {
            return Ok(false);
        }
        self.steps.put(&key, id)?;
        self.steps.put(&self.key(&format!("lastReserved/{set}")), &address.to_string())?;
        Ok(true)
    }

    fn last_reserved(&mut self, set: usize) -> Played<Option<String>> {
        self.steps.get(&self.key(&format!("lastReserved/{set}")))
    }

    fn release(&mut self, id: &str) -> Played<()> {
        let prefix = self.key("used/");
        let list = |requests: &Requests| requests.list(&prefix);
        let used = self.steps.step(list, |_| Done::Listed(prefix.clone()))?;
        let held = used.iter().filter(|entry| entry.value == id);
        held.into_iter().try_for_each(|entry| self.steps.delete(&entry.key))
    }
}
