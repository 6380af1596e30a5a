//! A place for the process tests of `ipam-da-etcd`: nodes that call the program, and real servers.

#![allow(dead_code, clippy::unwrap_used, reason = "test support; each test file uses a part of it")]

pub mod beside;
pub mod layouts;
pub mod relay;
pub mod rights;
pub mod store;

use std::path::Path;

use ipam_testkit::certificates::{Certificates, Pair};
use ipam_testkit::etcd::{Etcd, Tls};
use ipam_testkit::world::{World, binary};
use serde_json::{Value, json};

/// A node that calls the program.
pub type Node = ipam_testkit::node::Node<Etcd>;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-etcd");

/// What every key of ours begins with.
pub const PREFIX: &str = "/ipam-delegated/";

/// A world, and a network whose chain ends in a store behind this endpoint.
pub fn chain(endpoint: &str) -> (World, Value) {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-etcd"]));
    network["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/16"}]]);
    network["ipam"]["etcd"] = json!({"endpoints": [endpoint], "timeout": "2s"});
    (world, network)
}

/// Serves TLS with certificates that a test made.
pub fn tls(certificates: &Certificates, needs_certificate: bool) -> Tls {
    let Pair { certificate, key } = certificates.server();
    let Pair { certificate: shown, key: shown_key } = certificates.client();
    Tls {
        authority: certificates.authority(),
        certificate,
        key,
        client_authority: needs_certificate.then(|| certificates.authority()),
        client: needs_certificate.then_some((shown, shown_key)),
    }
}

/// A node that trusts the authority of these certificates, and may show one.
pub fn secured(node: Node, certificates: &Certificates, shown: Option<&Pair>) -> Node {
    let node = node.with("trustedCaFile", certificates.authority().to_str().unwrap());
    match shown {
        None => node,
        Some(pair) => node
            .with("certFile", pair.certificate.to_str().unwrap())
            .with("keyFile", pair.key.to_str().unwrap()),
    }
}
