//! Our place among the processes of a replaced plugin.

use std::time::Duration;

use etcd_client::KeyValue;
use ipam_kit::{Error, ErrorCode, Result};

use super::plugin_lock::{LockTicket, PluginLock};
use crate::client::EtcdClient;

/// After how many refusals we queue in for the plugin's lock.
const REFUSALS: u32 = 8;

/// The wait after the first of them, twice as long after each further one, up to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// What has to be left of a call's time for another try.
const LAST: Duration = Duration::from_millis(500);

/// How a call gets past the plugin's lock.
#[derive(Debug, Default)]
pub(super) struct LockQueue {
    /// Our turn, once we have queued in.
    ticket: Option<LockTicket>,
    /// How often this call was refused for the sake of the plugin.
    refused: u32,
}

impl LockQueue {
    /// Our turn, once we have queued in.
    pub(super) fn ticket(&self) -> Option<&LockTicket> {
        self.ticket.as_ref()
    }

    /// Whether it was the lock alone that a change was refused for. Then there has been a pause,
    /// and after some of them we stand in the queue.
    ///
    /// # Errors
    /// The time is over.
    pub(super) fn wait_for_lock(
        &mut self,
        client: &mut EtcdClient,
        lock: &PluginLock,
        found: &[KeyValue],
    ) -> Result<bool> {
        let held = lock.is_held(found, self.ticket());
        let lost = self.ticket.take_if(|ticket| !ticket.is_among(found));
        let has_lost = lost.is_some();
        if let Some(lost) = lost {
            // etcd has ended its lease meanwhile, or a replaced plugin took it for its own.
            lost.end(client);
        }
        if !held {
            return Ok(has_lost);
        }
        let [first, mut last] = PAUSES;
        if self.ticket.is_some() {
            last /= 5;
        }
        let refused = self.refused.min(REFUSALS);
        let pause = (first * 2_u32.saturating_pow(refused)).min(last);
        if client.left() < (pause * 5).max(LAST) {
            return Err(lock.held_error());
        }
        client.pause(pause);
        self.count_refusal(client, lock);
        Ok(true)
    }

    /// After some refusals we queue in as a replaced plugin does.
    pub(super) fn count_refusal(&mut self, client: &mut EtcdClient, lock: &PluginLock) {
        self.refused = self.refused.saturating_add(1);
        if self.refused > REFUSALS && self.ticket.is_none() {
            self.ticket = LockTicket::draw(client, lock);
        }
    }

    /// Says of a request that was given up why that is, where the time went by in waiting.
    pub(super) fn explain_timeout(&self, lock: &PluginLock, error: Error) -> Error {
        if error.code() == ErrorCode::TIMED_OUT && self.refused > 0 {
            return lock.held_error().and([error]);
        }
        error
    }

    /// Lets the next one have the lock.
    pub(super) fn end(&mut self, client: &mut EtcdClient) {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(client);
        }
    }
}
