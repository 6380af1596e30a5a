//! Three nodes and many workers with ADDs, CHECKs and DELs, random kills of calls, and a server that
//! is killed and started again: no address ever has two holders, every call ends, and nothing is
//! left in the end.
//!
//! Every day a twentieth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, some three minutes
//! on two cores. `IPAM_DELEGATED_SEED` sets the seed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::thread::sleep;
use std::time::Duration;

use ipam_testkit::history::records::{
    MarkedRecord, Plan, RecordStore, SUBNETS, assert_sound_on_records,
};
use ipam_testkit::openwisp::{ORGANIZATION, OpenWisp, Record, TOKEN};
use ipam_testkit::world::full_size;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

struct Records<'a> {
    server: &'a OpenWisp,
    subnets: [String; 2],
}

impl RecordStore for Records<'_> {
    const NAME: &'static str = "openwisp";

    fn subnets(&self) -> &[String] {
        &self.subnets
    }

    fn section(&self, endpoints: &[String], timeout: &str) -> Value {
        json!({"urls": endpoints, "token": TOKEN, "timeout": timeout})
    }

    fn records(&self) -> Vec<MarkedRecord> {
        let marked = |Record { id, address, description, .. }| MarkedRecord {
            id,
            address: address.parse().unwrap(),
            text: description,
        };
        self.subnets.iter().flat_map(|subnet| self.server.records(subnet)).map(marked).collect()
    }

    fn delete(&self, id: &str) {
        self.server.delete(id);
    }

    fn disturb(&self, _number: usize) {
        self.server.kill();
        sleep(SECOND);
        self.server.restart();
    }
}

#[test]
fn no_address_ever_has_two_holders_whatever_happens_to_the_server() {
    let server = OpenWisp::start();
    let subnets =
        SUBNETS.map(|cidr| server.subnet(Some(ORGANIZATION), cidr, &format!("of {cidr}")));
    let (operations, disturbances) = if full_size() { (3_000, 12) } else { (150, 2) };
    let plan = Plan { operations, disturbances, call_time: SECOND / 4, late: 10 * SECOND };
    assert_sound_on_records(server.url(), &Records { server: &server, subnets }, &plan);
}
