//! The way past the lock of a replaced plugin: a call retries, then it queues.

use std::time::Duration;

use etcd_client::KeyValue;
use ipam_kit::{Error, ErrorCode, Result};

use super::plugin_lock::{LockTicket, PluginLock};
use crate::client::EtcdClient;

/// After how many refusals a call queues for the plugin's lock.
const REFUSALS: u32 = 8;

/// The wait after the first of them, twice as long after each further one, up to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// The time that a call must have left for another try.
const LAST: Duration = Duration::from_millis(500);

/// The state of a call that waits for the plugin's lock.
#[derive(Debug, Default)]
pub(super) struct LockQueue {
    /// Our ticket, once this call has queued.
    ticket: Option<LockTicket>,
    /// How often this call was refused because of the plugin.
    refused: u32,
}

impl LockQueue {
    /// Our ticket, once this call has queued.
    pub(super) fn ticket(&self) -> Option<&LockTicket> {
        self.ticket.as_ref()
    }

    /// Tells whether a change was refused because of the lock alone, so that the caller tries
    /// again. Before, this waits and, after some refusals, draws a ticket.
    ///
    /// # Errors
    /// The deadline is exceeded.
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
        self.keep_place(client);
        let refused = self.refused.min(REFUSALS);
        let pause = (first * 2_u32.saturating_pow(refused)).min(last);
        if client.left() < (pause * 5).max(LAST) {
            return Err(lock.held_error());
        }
        client.pause(pause);
        self.count_refusal(client, lock);
        Ok(true)
    }

    /// Keeps our place in the queue, which etcd ends 10 seconds after a call was killed. Answers false
    /// if that failed.
    pub(super) fn keep_place(&mut self, client: &mut EtcdClient) -> bool {
        self.ticket.as_mut().is_none_or(|ticket| ticket.keep(client))
    }

    /// A queue with a place whose renewal is due.
    #[cfg(test)]
    pub(super) fn with_due_place(client: &mut EtcdClient, lock: &PluginLock) -> Self {
        let mut ticket = LockTicket::draw(client, lock);
        ticket.iter_mut().for_each(LockTicket::make_due);
        Self { ticket, refused: 0 }
    }

    #[cfg(test)]
    pub(super) fn has_due_place(&self) -> bool {
        self.ticket.as_ref().is_some_and(LockTicket::is_due)
    }

    /// Counts a refusal. After some of them it draws a ticket, as the plugin does.
    pub(super) fn count_refusal(&mut self, client: &mut EtcdClient, lock: &PluginLock) {
        self.refused = self.refused.saturating_add(1);
        if self.refused > REFUSALS && self.ticket.is_none() {
            self.ticket = LockTicket::draw(client, lock);
        }
    }

    /// Explains the error of a request that timed out: the plugin's lock, if this call has waited
    /// for it.
    pub(super) fn explain_timeout(&self, lock: &PluginLock, error: Error) -> Error {
        if error.code() == ErrorCode::TIMED_OUT && self.refused > 0 {
            return lock.held_error().and([error]);
        }
        error
    }

    /// Gives the lock to the next process.
    pub(super) fn end(&mut self, client: &mut EtcdClient) {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(client);
        }
    }
}
