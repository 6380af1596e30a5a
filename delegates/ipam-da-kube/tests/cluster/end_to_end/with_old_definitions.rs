//! The definitions of whereabouts 0.7, which drop the interface of an entry.

use ipam_testkit::whereabouts::Release;

use super::nodes::assert_lost_nodes_are_released;
use super::pods::assert_interfaces_hold_their_own;

#[test]
fn interfaces_of_a_pod_in_one_network_hold_their_own_addresses() {
    assert_interfaces_hold_their_own(Release::V07);
}

#[test]
fn a_person_on_another_node_releases_the_leases_of_a_lost_node_and_no_others() {
    assert_lost_nodes_are_released(Release::V07);
}
