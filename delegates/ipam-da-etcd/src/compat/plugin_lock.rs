//! The lock of a replaced plugin, which its processes hold while they look for an address.

use std::time::{Duration, Instant};

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};
use ipam_kit::{Error, ErrorCode};
use log::debug;

use super::layouts::LockPath;
use crate::client::EtcdClient;
use crate::keys::end_of;
use crate::transport::EtcdAnswer;

/// The lock.
#[derive(Debug)]
pub(super) enum PluginLock {
    /// One key, whose value is the decimal id of its etcd lease. A process that finds the key tries
    /// again later.
    Key(String),
    /// Keys below this one, one for each process, named by its etcd lease; the oldest has the lock.
    Queue(String),
}

/// Our key in the lock, which this call holds or waits for.
#[derive(Debug)]
pub(super) struct LockTicket {
    lease: i64,
    key: String,
    /// The revision that made the key.
    since: i64,
    /// When the renewal of its etcd lease is due.
    renew_at: Instant,
}

/// For how long etcd keeps what a killed process held, in seconds.
const LEASE: i64 = 10;

/// How old the etcd lease of a ticket gets before it is renewed.
const RENEWAL: Duration = Duration::from_secs(LEASE.unsigned_abs() / 3);

/// How long after a failed renewal another one is tried.
const RETRY: Duration = Duration::from_secs(1);

/// The value of our keys in a queue. Those of host-etcd are empty, and no program reads them.
const OURS: &str = "ipam-delegated";

impl PluginLock {
    /// Returns the lock of a layout; `key` makes the key of a path.
    pub(super) fn at(lock: LockPath, key: impl Fn(&str) -> String) -> Self {
        match lock {
            LockPath::Key(path) => Self::Key(key(path)),
            LockPath::Queue(path) => Self::Queue(key(path)),
        }
    }

    /// That no process has the lock; with a ticket, none before us.
    pub(super) fn guards(&self, ticket: Option<&LockTicket>) -> Vec<Compare> {
        match (self, ticket) {
            (Self::Key(key), None) => {
                vec![Compare::create_revision(key.as_str(), CompareOp::Equal, 0)]
            }
            (Self::Queue(folder), None) => vec![
                Compare::create_revision(folder.as_str(), CompareOp::Equal, 0)
                    .with_range(end_of(folder)),
            ],
            (Self::Key(_), Some(ticket)) => vec![ticket.guard()],
            (Self::Queue(folder), Some(ticket)) => vec![
                ticket.guard(),
                Compare::create_revision(folder.as_str(), CompareOp::Greater, ticket.since - 1)
                    .with_range(end_of(folder)),
            ],
        }
    }

    /// Reads the oldest key of the lock, and our own.
    pub(super) fn read(&self, ticket: Option<&LockTicket>) -> Vec<TxnOp> {
        let oldest = match self {
            Self::Key(key) => return vec![TxnOp::get(key.as_str(), None)],
            Self::Queue(folder) => {
                let first = GetOptions::new().with_range(end_of(folder)).with_limit(1);
                let first = first.with_sort(SortTarget::Create, SortOrder::Ascend);
                TxnOp::get(folder.as_str(), Some(first))
            }
        };
        let own = ticket.map(|ticket| TxnOp::get(ticket.key.as_str(), None));
        [oldest].into_iter().chain(own).collect()
    }

    /// Reads all who have it or wait for it.
    pub(super) fn read_all(&self) -> TxnOp {
        match self {
            Self::Key(key) => TxnOp::get(key.as_str(), None),
            Self::Queue(folder) => {
                let all = GetOptions::new().with_range(end_of(folder));
                TxnOp::get(folder.as_str(), Some(all))
            }
        }
    }

    /// Tells whether another process has it before us, by what a refused transaction read.
    pub(super) fn is_held(&self, found: &[KeyValue], ticket: Option<&LockTicket>) -> bool {
        found.iter().filter(|found| self.is_of(found)).any(|found| match ticket {
            Some(ticket) => found.create_revision() < ticket.since,
            None => true,
        })
    }

    /// Tells whether a key is one of the lock's.
    fn is_of(&self, found: &KeyValue) -> bool {
        match self {
            Self::Key(key) => found.key() == key.as_bytes(),
            Self::Queue(folder) => found.key().starts_with(folder.as_bytes()),
        }
    }

    /// Tells whether a key of the lock is a replaced plugin's own.
    pub(super) fn is_of_plugin(&self, found: &KeyValue) -> bool {
        self.is_of(found) && found.value() != OURS.as_bytes()
    }

    /// Returns the error when other processes hold it all the time.
    pub(super) fn held_error(&self) -> Error {
        let (key, end) = match self {
            Self::Key(key) => (key, "10 seconds"),
            Self::Queue(folder) => (folder, "60 seconds (10 with the value ipam-delegated)"),
        };
        let message = format!("another process keeps the lock {key}, so nothing may be changed");
        Error::new(ErrorCode::TRY_AGAIN, message).advise(format!(
            "call again; a killed process loses its lock after {end}; delete a key without an etcd lease: \
             etcdctl get --prefix --write-out=json {key} shows the leases"
        ))
    }
}

impl LockTicket {
    /// Takes the lock if it is free, else a place in its queue, as the plugin does.
    /// `None` if that failed this time.
    pub(super) fn draw(client: &mut EtcdClient, lock: &PluginLock) -> Option<Self> {
        let renew_at = Instant::now() + RENEWAL;
        let lease = client.grant(LEASE).map_err(log_refusal).ok()?;
        let (key, value) = match lock {
            PluginLock::Key(key) => (key.clone(), lease.to_string()),
            PluginLock::Queue(folder) => (format!("{folder}{lease:x}"), OURS.to_owned()),
        };
        let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let put = TxnOp::put(key.as_str(), value, Some(PutOptions::new().with_lease(lease)));
        let answer = client.write(&Txn::new().when([absent]).and_then([put]));
        let mut ticket = Self { lease, key, since: 0, renew_at };
        match answer.map_err(log_refusal) {
            Ok(Some(EtcdAnswer { response, revision, .. })) if response.succeeded() => {
                ticket.since = revision;
                Some(ticket)
            }
            // The end of the lease removes a key that may have been written with it.
            _ => {
                ticket.end(client);
                None
            }
        }
    }

    /// Keeps the lock, or its place in the queue, while the call waits. Answers false if its
    /// renewal failed: the call draws a new place if etcd ends this one.
    pub(super) fn keep(&mut self, client: &mut EtcdClient) -> bool {
        if !self.is_due() {
            return true;
        }
        let asked = Instant::now();
        match client.renew(self.lease) {
            Ok(()) => self.renew_at = asked + RENEWAL,
            Err(error) => {
                debug!("cannot keep {}: {error}", self.key);
                // A silent server has taken its time already.
                self.renew_at = Instant::now() + RETRY;
                return false;
            }
        }
        true
    }

    /// Gives the lock to the next process.
    pub(super) fn end(self, client: &mut EtcdClient) {
        // Its key goes with the lease.
        if let Err(error) = client.revoke(self.lease) {
            debug!("cannot release {}, which goes when its etcd lease ends: {error}", self.key);
        }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.renew_at
    }

    /// Makes its renewal due.
    #[cfg(test)]
    pub(super) fn make_due(&mut self) {
        self.renew_at = Instant::now();
    }

    fn guard(&self) -> Compare {
        Compare::create_revision(self.key.as_str(), CompareOp::Equal, self.since)
    }

    /// Tells whether our key is still there, by what a refused transaction read.
    pub(super) fn is_among(&self, found: &[KeyValue]) -> bool {
        found.iter().any(|found| {
            found.key() == self.key.as_bytes() && found.create_revision() == self.since
        })
    }
}

fn log_refusal(error: Error) {
    debug!("cannot queue for the replaced plugin's lock: {error}");
}
