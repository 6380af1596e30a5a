//! The times that records have, which a test moves.

use std::time::Duration;

use ipam_servers::{parse_timestamp, timestamp};
use ipam_testkit::phpipam::PhpIpam;

/// Makes the records of a subnet older by so much.
#[track_caller]
pub fn age(server: &PhpIpam, subnet: &str, by: Duration) {
    server.edit(subnet, "owner", |owner| match owner.split_once(' ') {
        Some((writer, time)) => {
            let time = parse_timestamp(time).unwrap().checked_sub(by).unwrap();
            format!("{writer} {}", timestamp(time))
        }
        None => owner.to_owned(),
    });
}
