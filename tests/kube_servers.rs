//! The support for tests with real Kubernetes API servers does what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "support/kube/mod.rs"]
mod kube;
#[path = "support/waiting.rs"]
mod waiting;

use kube::{Kube, Node};

#[test]
fn a_node_is_made() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("a").cidrs(&["10.1.0.0/24", "fd00::/64"]).machine_id("m"));
    println!("{:?}", kube.node("a"));
}
