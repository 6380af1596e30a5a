//! What `deploy/` holds.

use std::path::Path;

use ipam_testkit::deployed::assert_deployed;
use ipam_testkit::openwisp::{OPERATOR, ORGANIZATION};

use crate::site::Site;

#[test]
fn a_cluster_takes_the_manifests_and_what_the_pod_does_serves_the_network() {
    let site = Site::new();
    let user = site.server.user("deployed", Some(ORGANIZATION), &OPERATOR);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    assert_deployed(&site, &folder, &"0".repeat(40), &user.token);
}
