//! A place for the process tests of `ipam-da-etcd`: nodes that call the program, and real servers.

#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    clippy::unwrap_used,
    reason = "test support; each test file uses a part of it"
)]

pub mod beside;
#[path = "../../../../tests/support/certificates.rs"]
pub mod certificates;
#[path = "../../../../tests/support/etcd/mod.rs"]
pub mod etcd;
pub mod layouts;
#[path = "../../../../tests/support/node.rs"]
pub mod node;
#[path = "../../../../tests/support/old/mod.rs"]
pub mod old;
pub mod relay;
pub mod rights;
pub mod store;
#[path = "../../../../tests/support/mod.rs"]
pub mod support;

use certificates::{Certificates, Pair};
use etcd::{Etcd, Tls};
pub use node::{Node, VERBS, addresses, at_once, given, subnets, within};
use serde_json::json;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-etcd");

/// Its section of `ipam`.
pub const STORE: &str = "etcd";

/// What every key of ours begins with.
pub const PREFIX: &str = "/ipam-delegated/";

impl Node {
    /// `node-1` with the store of a server and the pool 10.1.0.0/16.
    pub fn of(etcd: &Etcd) -> Self {
        Self::at(&[etcd.endpoint()])
    }

    /// The same with these endpoints.
    pub fn at(endpoints: &[String]) -> Self {
        Self::with_store(json!({"etcd": {"endpoints": endpoints}}), subnets(&["10.1.0.0/16"]))
    }

    /// One pool each.
    pub fn with_subnets(mut self, list: &[&str]) -> Self {
        self.pools = subnets(list);
        self
    }
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
