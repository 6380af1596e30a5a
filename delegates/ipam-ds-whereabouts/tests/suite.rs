//! The selector passes the suite of selectors.

use std::sync::Arc;

use ipam_kit::allocate::Reach;
use ipam_suites::selector_suite::{names, run};
use ipam_suites::subject::{InProcess, Subject};
use serde_json::json;

#[test]
fn every_check_of_the_selector_suite_passes() {
    let ipam = json!({
        "range": "10.230.1.0/24", "ipRanges": [{"range": "fd00:230::/64"}],
        "routes": [{"dst": "0.0.0.0/0"}], "kubernetes": {"kubeconfig": "/proc/self/exe"},
    });
    let selector = InProcess::new(ipam_ds_whereabouts::delegate(), Reach::Node, ipam);
    let subject: Arc<dyn Subject> = Arc::new(selector);
    let report = run(&subject, &[], &[]);
    let mut expected = names();
    // Its pools have no names.
    expected.retain(|name| *name != "a_pool_of_the_same_name_is_one_pool");
    assert_eq!(report.passed(), expected, "{report}");
}
