//! A server whose database comes back from a backup: it has forgotten addresses that containers
//! have, and gives no others until a person has made it whole.

use ipam_testkit::openwisp::OpenWisp;
use ipam_testkit::record_site::{assert_reasserted, assert_refused_until_accepted};

#[test]
fn a_server_that_forgot_gives_nothing_until_it_is_accepted() {
    let server = OpenWisp::builder().workers(1).start();
    assert_refused_until_accepted(&server, || server.snapshot(), |backup| server.restore(backup));
}

#[test]
fn a_reassert_makes_the_records_again_under_their_addresses() {
    let server = OpenWisp::builder().workers(1).start();
    assert_reasserted(&server, || server.snapshot(), |backup| server.restore(backup), |_| {});
}
