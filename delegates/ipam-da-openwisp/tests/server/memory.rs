//! The memory of a call does not grow with a subnet.

use ipam_testkit::openwisp::OpenWisp;
use ipam_testkit::record_site::assert_little_memory;

#[test]
fn four_thousand_addresses_fit_into_eight_mebibytes() {
    let server = OpenWisp::builder().workers(1).start();
    assert_little_memory(&server, |subnet, addresses| {
        server.records_of(subnet, addresses.into_iter().map(|address| (address, "of others")));
    });
}
