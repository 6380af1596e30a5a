//! What `deploy/` holds.

use std::path::Path;

use ipam_testkit::deployed::assert_deployed;
use ipam_testkit::phpipam::CODE;

use crate::site::Site;

#[test]
fn a_cluster_takes_the_manifests_and_what_the_pod_does_serves_the_network() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    assert_deployed(&Site::new(), &folder, &"0".repeat(32), CODE);
}
