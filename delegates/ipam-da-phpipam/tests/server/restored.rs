//! A server whose database comes back from a backup: it has forgotten addresses that containers
//! have, and gives no others until a person has made it whole.

use ipam_testkit::node::given;
use ipam_testkit::phpipam::PhpIpam;

use crate::site::Site;

#[test]
fn a_server_that_forgot_gives_nothing_until_it_is_accepted() {
    let server = PhpIpam::start();
    let site = Site::on(&server, "10.1.0.0/24");
    let node = site.node();
    node.add("before");
    let backup = server.snapshot();
    let result = node.add("after");
    server.restore(&backup);
    for (verb, container, codes) in
        [("ADD", "c3", &[11][..]), ("STATUS", "", &[50]), ("CHECK", "after", &[11, 104])]
    {
        let known = if verb == "CHECK" { given(&result) } else { serde_json::json!({}) };
        let (code, text) = node.call_with(verb, container, &known).failure();
        assert!(codes.contains(&code), "{verb}: {code} {text}");
        assert!(verb == "CHECK" || text.contains("reassert"), "{verb}: {text}");
    }
    assert_eq!(site.records().len(), 1, "nothing was given");
    // Nothing of it is left to release.
    node.del_known("after", &result).success();
    node.told(&["accept"]);
    node.add("c3");
    assert_eq!(site.records().len(), 2);
}
