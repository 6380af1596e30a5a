//! `newLeaderElector` of `pkg/storage/kubernetes/ipam.go`, and `tools/leaderelection` of the
//! client-go that each release has: 0.22.6 in v0.5.4, 0.29.2 in v0.7.0, 0.34.1 in v0.9.4.
//!
//! A program renews the lease at once, and then every 500 ms beside its work. A player renews it
//! once, before its work: a program does no more in the time of an unhindered call. A player that a
//! test stops for more than a second loses the lease, as a stopped program does. All releases go on
//! with their work then.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Played;
use super::requests::{Api, LEASES};
use crate::whereabouts::Release;

const NAME: &str = "whereabouts";

pub(super) struct Election<'a> {
    api: &'a Api,
    release: Release,
    /// The pod's namespace and name.
    identity: String,
    /// The lease as the server gave it last.
    lease: Value,
    /// The record that counts, and since when it has not changed.
    observed: Value,
    since: Instant,
}

impl<'a> Election<'a> {
    pub(super) fn new(api: &'a Api, release: Release, identity: &str) -> Self {
        let (lease, observed) = Default::default();
        Self { api, release, identity: identity.to_owned(), lease, observed, since: Instant::now() }
    }

    /// Waits for the lease, and renews it once; false after the deadline.
    pub(super) fn win(&mut self, pause: Duration, limit: Instant) -> Played<bool> {
        while !self.try_to_hold()? {
            if Instant::now() >= limit {
                return Ok(false);
            }
            thread::sleep(pause);
        }
        self.try_to_hold()?;
        Ok(true)
    }

    /// Releases the lease. client-go 0.34.1 reads it first, and then also releases that of another
    /// holder.
    pub(super) fn resign(&mut self) -> Played<()> {
        if self.release == Release::V094 {
            let reply = self.api.ask("GET", LEASES, NAME, &Value::Null, None)?;
            if !reply.is_success() {
                return Ok(());
            }
            self.lease = reply.body;
        }
        if self.is_held() {
            let transitions = self.lease["spec"]["leaseTransitions"].clone();
            self.write("", &time(), &transitions)?;
        }
        Ok(())
    }

    /// `tryAcquireOrRenew`.
    fn try_to_hold(&mut self) -> Played<bool> {
        let now = time();
        if self.release == Release::V094 && self.is_held() && self.is_valid() {
            let spec = self.observed.clone();
            if self.write(spec["acquireTime"].as_str().unwrap(), &now, &spec["leaseTransitions"])? {
                return Ok(true);
            }
        }
        let reply = self.api.ask("GET", LEASES, NAME, &Value::Null, None)?;
        if reply.status == 404 {
            return self.create(&now);
        }
        if !reply.is_success() {
            return Ok(false);
        }
        self.lease = reply.body;
        if self.lease["spec"] != self.observed {
            (self.observed, self.since) = (self.lease["spec"].clone(), Instant::now());
        }
        let held = self.is_held();
        let free = self.observed["holderIdentity"].as_str().unwrap_or("").is_empty();
        if !free && !held && self.is_valid() {
            return Ok(false);
        }
        let known = self.lease["spec"].clone();
        if held {
            return self.write(
                known["acquireTime"].as_str().unwrap_or(&now),
                &now,
                &known["leaseTransitions"],
            );
        }
        let transitions = known["leaseTransitions"].as_u64().unwrap_or(0) + 1;
        self.write(&now, &now, &transitions.into())
    }

    fn create(&mut self, now: &str) -> Played<bool> {
        let mut lease = self.api.object("Lease", NAME, &self.record(now, now, &0.into()));
        lease["apiVersion"] = "coordination.k8s.io/v1".into();
        let reply = self.api.ask("POST", LEASES, "", &lease, None)?;
        Ok(self.observe(reply.is_success(), reply.body))
    }

    /// Writes a record with the resourceVersion that was read; without a time of acquisition it
    /// releases the lease.
    fn write(&mut self, acquired: &str, now: &str, transitions: &Value) -> Played<bool> {
        let mut lease = self.lease.clone();
        lease["spec"] = self.record(acquired, now, transitions);
        let reply = self.api.ask("PUT", LEASES, NAME, &lease, None)?;
        Ok(self.observe(reply.is_success(), reply.body))
    }

    fn observe(&mut self, success: bool, lease: Value) -> bool {
        if success {
            (self.observed, self.since) = (lease["spec"].clone(), Instant::now());
            self.lease = lease;
        }
        success
    }

    fn record(&self, acquired: &str, now: &str, transitions: &Value) -> Value {
        let (holder, acquired) = match acquired {
            "" => ("", now),
            _ => (self.identity.as_str(), acquired),
        };
        json!({
            "holderIdentity": holder, "leaseDurationSeconds": 1, "acquireTime": acquired,
            "renewTime": now, "leaseTransitions": transitions,
        })
    }

    fn is_held(&self) -> bool {
        self.observed["holderIdentity"] == self.identity.as_str()
    }

    /// v0.5.4 counts its own 1500 ms, later releases what the record says.
    fn is_valid(&self) -> bool {
        let seconds = self.observed["leaseDurationSeconds"].as_u64().unwrap_or(0);
        let duration = match self.release {
            Release::V054 => Duration::from_millis(1500),
            _ => Duration::from_secs(seconds),
        };
        self.since.elapsed() < duration
    }
}

/// The time of day in UTC, on a day of its own: it tells records apart, and no release reads it.
fn time() -> String {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let (seconds, micros) = (micros / 1_000_000 % 86_400, micros % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("2026-01-01T{hours:02}:{minutes:02}:{seconds:02}.{micros:06}Z")
}
