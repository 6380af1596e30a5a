//! A server whose database comes back from a backup: it has forgotten addresses that containers
//! have, and gives no others until a person has made it whole.

use ipam_testkit::phpipam::PhpIpam;
use ipam_testkit::record_site::assert_refused_until_accepted;

#[test]
fn a_server_that_forgot_gives_nothing_until_it_is_accepted() {
    let server = PhpIpam::start();
    assert_refused_until_accepted(&server, || server.snapshot(), |backup| server.restore(backup));
}
