//! The selector passes the suite of selectors.

use std::sync::Arc;

use ipam_kit::allocate::Reach;
use ipam_suites::selector_suite::{names, run};
use ipam_suites::subject::{InProcess, Subject};
use serde_json::json;

#[test]
fn every_check_of_the_selector_suite_passes() {
    let ipam = json!({"pod": {"poolFrom": [], "pools": ["blue"]}});
    let selector = InProcess::new(ipam_ds_kube_pod::delegate(), Reach::Node, ipam);
    let subject: Arc<dyn Subject> = Arc::new(selector);
    let report = run(&subject, &[], &[]);
    let mut expected = names();
    // It does nothing on the verbs that release.
    let of_release =
        ["del_and_check_answer_pools_or_an_error_object", "gc_answers_pools_or_nothing"];
    expected.retain(|name| !of_release.contains(name));
    assert_eq!(report.passed(), expected, "{report}");
}
