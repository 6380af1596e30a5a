//! A server whose database comes back from a backup: it has forgotten addresses that containers
//! have, and gives no others until a person has made it whole.

use ipam_testkit::phpipam::PhpIpam;
use ipam_testkit::record_site::{assert_reasserted, assert_refused_until_accepted};

use crate::site::KEY;

#[test]
fn a_server_that_forgot_gives_nothing_until_it_is_accepted() {
    let server = PhpIpam::builder().imitated().start();
    assert_refused_until_accepted(&server, || server.snapshot(), |backup| server.restore(backup));
}

#[test]
fn a_reassert_makes_the_records_again_under_their_addresses() {
    let server = PhpIpam::builder().imitated().start();
    assert_reasserted(&server, || server.snapshot(), |backup| server.restore(backup), |_| {});
}

#[test]
fn a_reassert_makes_the_records_again_where_a_key_keeps_owners_apart() {
    let server = PhpIpam::builder().imitated().key_field(KEY).start();
    let prepare = |network: &mut serde_json::Value| {
        network["ipam"]["phpipam"]["keyField"] = KEY.into();
    };
    assert_reasserted(&server, || server.snapshot(), |backup| server.restore(backup), prepare);
}
