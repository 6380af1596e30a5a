//! Servers that ask who calls, and tokens that may do more or less.

use ipam_testkit::consul::{Consul, Token};
use ipam_testkit::node::addresses;
use ipam_testkit::world::Outcome;

use super::{Node, POOL, SUBNET, define};

/// All rights that we ask for.
pub const ALL: &str = r#"key_prefix "ipam/" { policy = "write" }"#;

/// A server with ACLs by which nothing is allowed, and a pool with its folders.
pub fn guarded() -> Consul {
    let consul = Consul::builder().acl().start();
    define(&consul, POOL, SUBNET);
    consul.put("ipam/", "");
    consul.put("ipam/blue/", "");
    consul
}

/// A node with a token for these rules.
pub fn with_rules(consul: &Consul, rules: &str) -> Node {
    with_token(consul, &consul.create_token(rules))
}

pub fn with_token(consul: &Consul, token: &Token) -> Node {
    Node::of(consul).with("token", token.secret.as_str())
}

/// An attachment's life: every verb succeeds and nothing is left.
#[track_caller]
pub fn assert_works(node: &Node) {
    let result = node.add("c1");
    assert_eq!(addresses(&node.add("c1")), addresses(&result));
    node.check("c1", &result).success();
    node.call("STATUS", "").success();
    node.del_known("c1", &result).success();
    node.add("c1");
    node.del("c1");
    assert!(node.listed().is_empty());
}

/// Fails with a code (of STATUS 50), and these words.
#[track_caller]
pub fn assert_failed(outcome: Outcome, verb: &str, code: u64, words: &[&str]) {
    let (told, text) = outcome.failure();
    assert_eq!(told, if verb == "STATUS" && code != 7 { 50 } else { code }, "{verb}: {text}");
    for word in words {
        assert!(text.contains(word), "{verb}: {word:?} is not in {text}");
    }
}
