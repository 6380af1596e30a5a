//! `network_name` of whereabouts 0.6.2, whose reservations have names without it.

use ipam_testkit::whereabouts::Release;

use crate::common::beside::{Ours, Site, amid, given, old_add, old_del, served};

const RANGE: &str = "10.1.2.0/26";

#[test]
fn a_release_that_names_reservations_otherwise_gives_other_addresses_of_the_pool() {
    let site = Site::new(served(Some(Release::V07)));
    let old = site.old(Release::V07, RANGE).network_name("blue").reserving_by_address();
    let ours = Ours::chain(&site, RANGE).in_network("blue");
    let requests = old_add(&old, "first").count();
    let mut held = site.held().len();
    for after in (0..=requests).step_by(3) {
        let (theirs, own) = (format!("old-{after}"), format!("ours-{after}"));
        let (other, outcome) = amid(old_add(&old, &theirs), after, || ours.start("ADD", &own));
        assert_ne!(given(outcome), other.unwrap()[0], "after {after}");
        held += 2;
        assert_eq!(site.held().len(), held, "after {after}");
    }
    for after in (0..=requests).step_by(3) {
        old_del(&old, &format!("old-{after}"));
        ours.del(&format!("ours-{after}"));
    }
    old_del(&old, "first");
    site.assert_empty("");
}
