//! host-etcd's backend/etcd/backend.go, and the mutex of etcd's own client that it uses.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use super::allocator::Store;
use super::{Done, Played, Requests, Steps};

/// Between two looks at those before it in the queue; the program is told by a watch.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Seconds that the session lives. The program keeps it alive while it runs, and never ends it; a
/// player does neither.
const SESSION: u32 = 60;

const LOCK: &str = "/ipam/lock/";

const ADDRESSES: &str = "/ipam/ips/";

pub(super) struct Keys {
    steps: Steps,
    pause: Duration,
    /// The lease of the session.
    session: i64,
}

impl Keys {
    pub(super) fn new(steps: Steps, pause: Duration) -> Self {
        Self { steps, pause, session: 0 }
    }

    /// Its place in the queue for the lock.
    fn place(&self) -> String {
        format!("{LOCK}{:x}", self.session)
    }
}

impl Store for Keys {
    fn open(&mut self) -> Played<()> {
        self.session = self.steps.grant(SESSION)?;
        Ok(())
    }

    fn lock(&mut self) -> Played<()> {
        let place = self.place();
        let enqueue = |requests: &Requests| {
            let (own, oldest) = requests.enqueue(LOCK, &place, self.session)?;
            Ok((own, oldest.created == own))
        };
        let done = |(_, first): &(i64, bool)| {
            if *first { Done::Created(place.clone()) } else { Done::Queued(place.clone()) }
        };
        let (own, first) = self.steps.step(enqueue, done)?;
        if first {
            return Ok(());
        }
        loop {
            let look = |requests: &Requests| requests.youngest_before(LOCK, own);
            let before = self.steps.step(look, |before| match before {
                Some(_) => Done::Waited(LOCK.to_owned()),
                None => Done::Passed(LOCK.to_owned()),
            })?;
            if before.is_none() {
                return Ok(());
            }
            thread::sleep(self.pause);
        }
    }

    fn unlock(&mut self) -> Played<()> {
        self.steps.delete(&self.place())
    }

    /// Whoever has the address loses it.
    fn reserve(&mut self, id: &str, address: IpAddr, set: usize) -> Played<bool> {
        self.steps.put(&format!("{ADDRESSES}{address}"), id.trim())?;
        self.steps.put(&format!("/ipam/last_reserved_ip{set}"), &address.to_string())?;
        Ok(true)
    }

    fn last_reserved(&mut self, set: usize) -> Played<Option<String>> {
        self.steps.get(&format!("/ipam/last_reserved_ip{set}"))
    }

    fn release(&mut self, id: &str) -> Played<()> {
        let list = |requests: &Requests| requests.list(ADDRESSES);
        let held = self.steps.step(list, |_| Done::Listed(ADDRESSES.to_owned()))?;
        let held = held.iter().filter(|entry| entry.value.trim() == id.trim());
        held.into_iter().try_for_each(|entry| self.steps.delete(entry.key.trim()))
    }
}
