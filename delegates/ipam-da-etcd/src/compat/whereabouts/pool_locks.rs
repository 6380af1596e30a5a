//! The mutexes of pools: a call waits for one, and after some refusals queues in it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Bound;
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

/// The places of a call in the queues of mutexes. While it waits for a pool, it has places in pools
/// before that one alone, in one order, so that two calls never wait for each other.
#[derive(Debug, Default)]
pub(super) struct PoolQueues {
    queues: BTreeMap<IpNet, LockQueue>,
    /// How often another process has changed a pool first.
    races: u32,
}

impl PoolQueues {
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
        self.queues.get(&subnet)?.ticket()
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
        self.keep_places(client);
        for subnet in subnets {
            let mutex = keys.mutex(*subnet);
            let queue = match mutex.is_held(found, self.ticket(*subnet)) {
                true => self.queue_for(client, *subnet),
                false => self.queues.entry(*subnet).or_default(),
            };
            if queue.wait_for_lock(client, &mutex, found)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Keeps the places, until one cannot be kept: each further failure would take as long.
    fn keep_places(&mut self, client: &mut EtcdClient) {
        self.queues.values_mut().all(|queue| queue.keep_place(client));
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
        self.queue_for(client, subnet).count_refusal(client, &keys.mutex(subnet));
        if self.races == 1 || self.ticket(subnet).is_some() {
            return Ok(false);
        }
        let most = Duration::from_millis(2_u64.saturating_pow(self.races)).min(LONGEST_PAUSE);
        client.pause(most.mul_f64(f64::from(random()) / f64::from(u32::MAX)));
        Ok(true)
    }

    /// Gives the mutexes to the next processes.
    pub(super) fn end(&mut self, client: &mut EtcdClient) {
        self.queues.values_mut().for_each(|queue| queue.end(client));
    }

    /// Returns the queue of a pool that the call is to wait for.
    fn queue_for(&mut self, client: &mut EtcdClient, subnet: IpNet) -> &mut LockQueue {
        let later = self.queues.range_mut((Bound::Excluded(subnet), Bound::Unbounded));
        later.for_each(|(_, queue)| queue.end(client));
        self.queues.entry(subnet).or_default()
    }
}

fn random() -> u32 {
    let [.., a, b, c, d] = RandomState::new().build_hasher().finish().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use ipam_testkit::fake_grpc::fake;

    use super::*;
    use crate::client::tests::{answer, client};

    #[test]
    fn a_renewal_that_fails_is_the_last_one_of_a_turn() {
        let server = fake(|_| answer());
        let mut connected = client(&[&server]);
        connected.read(&Txn::new()).unwrap();
        let keys = ValueKeys::new("/whereabouts");
        let mut queues = PoolQueues::default();
        for subnet in ["10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24"] {
            let subnet = subnet.parse().unwrap();
            let queue = LockQueue::with_due_place(&mut connected, &keys.mutex(subnet));
            queues.queues.insert(subnet, queue);
        }
        let due = |queues: &PoolQueues| {
            queues.queues.values().filter(|queue| queue.has_due_place()).count()
        };
        assert_eq!(due(&queues), 3);
        // A client without a connection renews nothing.
        let mut cut = client(&[&server]);
        queues.keep_places(&mut cut);
        assert_eq!(due(&queues), 2);
    }
}
