//! The mutexes of pools: a call waits for one, and after some refusals queues in it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use etcd_client::{Compare, KeyValue, Txn, TxnOp};
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use super::pools::ValueKeys;
use crate::client::EtcdClient;
use crate::compat::lock_queue::LockQueue;
use crate::compat::plugin_lock::LockTicket;
use crate::page::flatten;

/// The longest pause after a lost race.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The time that a call must have left for another try.
const LAST: Duration = Duration::from_millis(200);

/// The place of a call in the queue of a mutex. It queues in one mutex at a time, so that two calls
/// never wait for each other.
#[derive(Debug, Default)]
pub(super) struct PoolQueue {
    queue: LockQueue,
    /// The pool in whose mutex the call queues.
    awaited: Option<IpNet>,
    /// How often another process has changed a pool first.
    races: u32,
}

impl PoolQueue {
    /// Guards a change of some pools: no process of whereabouts has a mutex of them.
    pub(super) fn guards(&self, keys: &ValueKeys, subnets: &[IpNet]) -> Vec<Compare> {
        let guards = subnets.iter().map(|subnet| keys.mutex(*subnet).guards(self.ticket(*subnet)));
        guards.flatten().collect()
    }

    /// Reads who has the mutexes, for when a guard fails.
    pub(super) fn reads(&self, keys: &ValueKeys, subnets: &[IpNet]) -> Vec<TxnOp> {
        let reads = subnets.iter().map(|subnet| keys.mutex(*subnet).read(self.ticket(*subnet)));
        reads.flatten().collect()
    }

    fn ticket(&self, subnet: IpNet) -> Option<&LockTicket> {
        self.queue.ticket().filter(|_| self.awaited == Some(subnet))
    }

    /// Tells whether a change was refused because of a mutex, by what its transaction found. If so,
    /// this waits until the mutexes are free: what was read before is out of date.
    ///
    /// # Errors
    /// The deadline is exceeded, or the store does not answer.
    pub(super) fn wait(
        &mut self,
        client: &mut EtcdClient,
        keys: &ValueKeys,
        subnets: &[IpNet],
        found: &[KeyValue],
    ) -> Result<bool> {
        if !self.pause_if_held(client, keys, subnets, found)? {
            return Ok(false);
        }
        loop {
            // The change itself would go through etcd's log each time, with whole values.
            let answer = client.read(&Txn::new().and_then(self.reads(keys, subnets)))?;
            let found = flatten(answer.response.op_responses());
            if !self.pause_if_held(client, keys, subnets, &found)? {
                return Ok(true);
            }
        }
    }

    fn pause_if_held(
        &mut self,
        client: &mut EtcdClient,
        keys: &ValueKeys,
        subnets: &[IpNet],
        found: &[KeyValue],
    ) -> Result<bool> {
        let mut held = subnets.iter().copied();
        let held = held.find(|subnet| keys.mutex(*subnet).is_held(found, self.ticket(*subnet)));
        let Some(subnet) = held.or(self.awaited) else { return Ok(false) };
        self.turn_to(client, subnet);
        self.queue.wait_for_lock(client, &keys.mutex(subnet), found)
    }

    /// Waits after a lost race for a pool, each time longer; then queues in its mutex. Answers
    /// whether it has waited, so that what was read before is out of date.
    ///
    /// # Errors
    /// The deadline is exceeded.
    pub(super) fn lose_race(
        &mut self,
        client: &mut EtcdClient,
        keys: &ValueKeys,
        subnet: IpNet,
    ) -> Result<bool> {
        if client.left() < LAST {
            let message = format!("other processes change {} all the time", keys.pool(subnet));
            return Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"));
        }
        self.races = self.races.saturating_add(1);
        self.turn_to(client, subnet);
        self.queue.count_refusal(client, &keys.mutex(subnet));
        if self.races == 1 || self.queue.ticket().is_some() {
            return Ok(false);
        }
        let most = Duration::from_millis(2_u64.saturating_pow(self.races)).min(LONGEST_PAUSE);
        client.pause(most.mul_f64(f64::from(random()) / f64::from(u32::MAX)));
        Ok(true)
    }

    fn turn_to(&mut self, client: &mut EtcdClient, subnet: IpNet) {
        if self.awaited.replace(subnet) != Some(subnet) {
            self.queue.end(client);
        }
    }

    /// Gives the mutex to the next process.
    pub(super) fn end(&mut self, client: &mut EtcdClient) {
        self.queue.end(client);
    }
}

fn random() -> u32 {
    let [.., a, b, c, d] = RandomState::new().build_hasher().finish().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}
