//! A server whose database comes back from a backup: it has forgotten addresses that containers
//! have, and gives no others until a person has made it whole.

use ipam_testkit::node::addresses;
use ipam_testkit::openwisp::OpenWisp;
use ipam_testkit::record_site::assert_refused_until_accepted;

use crate::site::Site;

#[test]
fn a_server_that_forgot_gives_nothing_until_it_is_accepted() {
    let server = OpenWisp::builder().workers(1).start();
    assert_refused_until_accepted(&server, || server.snapshot(), |backup| server.restore(backup));
}

#[test]
fn a_reassert_makes_the_records_again_under_their_addresses() {
    let server = OpenWisp::builder().workers(1).start();
    let site = Site::on(&server, "10.2.0.0/24");
    let (world, network) = crate::chain::chain(&site);
    world.call("ADD", "before", &network).success();
    let backup = server.snapshot();
    let result = world.call("ADD", "after", &network).success();
    server.restore(&backup);
    assert_eq!(world.call("ADD", "c3", &network).failure().0, 11);
    crate::chain::reassert(&world, &network);
    let held: Vec<String> = site.records().into_iter().map(|record| record.address).collect();
    assert!(held.len() == 2 && held.contains(&addresses(&result)[0]), "{held:?}");
    world.call("ADD", "c3", &network).success();
    world.call("DEL", "after", &network).success();
    world.call("DEL", "before", &network).success();
    assert_eq!(site.records().len(), 1);
}
