//! The memory of a call does not grow with a subnet.

use ipam_testkit::phpipam::PhpIpam;
use ipam_testkit::record_site::assert_little_memory;

#[test]
fn four_thousand_addresses_fit_into_eight_mebibytes() {
    let server = PhpIpam::start();
    assert_little_memory(&server, |subnet, addresses| {
        for address in addresses {
            server.record(subnet, &address, &[("hostname", "of others")]);
        }
    });
}
