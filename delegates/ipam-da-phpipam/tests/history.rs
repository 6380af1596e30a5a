//! Three nodes and many workers with ADDs, CHECKs and DELs, random kills of calls, and a server whose
//! lock is held for a while and which ends connections, so that records come late and changes fail.
//! No address ever has two holders, every call ends, and nothing is left in the end.
//!
//! Every day a twentieth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it. `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::thread::sleep;
use std::time::Duration;

use ipam_testkit::history::records::{
    MarkedRecord, Plan, RecordStore, SUBNETS, assert_sound_on_records,
};
use ipam_testkit::phpipam::{LockKind, PhpIpam, Record};
use ipam_testkit::world::full_size;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

/// How long a change waits for the lock.
const WAIT: Duration = Duration::from_millis(800);

const KEY: &str = "cni_key";

struct Records<'a> {
    server: &'a PhpIpam,
    subnets: [String; 2],
    has_key: bool,
}

impl RecordStore for Records<'_> {
    const NAME: &'static str = "phpipam";

    fn subnets(&self) -> &[String] {
        &self.subnets
    }

    fn section(&self, endpoints: &[String], timeout: &str) -> Value {
        let (app, code) = self.server.app();
        let mut section =
            json!({"urls": endpoints, "appId": app, "token": code, "timeout": timeout});
        if self.has_key {
            section["keyField"] = KEY.into();
        }
        section
    }

    fn records(&self) -> Vec<MarkedRecord> {
        let marked = |Record { id, address, note, .. }| MarkedRecord {
            id,
            address: address.parse().unwrap(),
            text: note,
        };
        self.subnets.iter().flat_map(|subnet| self.server.records(subnet)).map(marked).collect()
    }

    fn delete(&self, id: &str) {
        self.server.delete(id);
    }

    /// Holds the lock for less or for more than a change waits, or ends connections. With a real
    /// server, a change waits for a second, and a proxy cannot end all connections.
    fn disturb(&self, number: usize) {
        let hold = |time: Duration| {
            let turn = self.server.hold();
            sleep(time);
            drop(turn);
        };
        match number % 3 {
            0 => hold(WAIT / 2),
            1 => hold(WAIT * 2),
            _ if self.server.is_real() => hold(WAIT * 4),
            _ => {
                self.server.set_down(true);
                sleep(SECOND / 2);
                self.server.set_down(false);
            }
        }
    }
}

#[track_caller]
fn assert_sound_with(lock: LockKind, has_key: bool) {
    let server = PhpIpam::builder().lock(lock).waiting(WAIT).key_field(KEY).start();
    let subnets = SUBNETS.map(|cidr| server.subnet(cidr, &format!("of {cidr}")));
    let (operations, disturbances) = if full_size() { (4_000, 30) } else { (200, 6) };
    let plan = Plan { operations, disturbances, call_time: SECOND / 10, late: 3 * SECOND };
    assert_sound_on_records(server.url(), &Records { server: &server, subnets, has_key }, &plan);
}

#[test]
fn no_address_ever_has_two_holders_whatever_happens_to_the_lock() {
    assert_sound_with(LockKind::File, false);
}

#[test]
fn no_address_ever_has_two_holders_where_a_key_keeps_owners_apart() {
    assert_sound_with(LockKind::Disabled, true);
}
