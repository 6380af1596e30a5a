//! Missing rights, malformed objects, unreachable servers: a clear error in time, and no change.

mod kubeconfigs;
mod objects;
mod rights;
mod servers;

use std::ops::Deref;

use ipam_testkit::world::Outcome;
use serde_json::Value;

use crate::common::node::Node;
use crate::common::{Desk, v094};

/// A desk and a node whose outputs show no secret.
struct Site {
    desk: Desk,
    node: Node,
}

impl Site {
    #[track_caller]
    fn new() -> Self {
        Self::on(Desk::new(&v094()))
    }

    #[track_caller]
    fn on(desk: Desk) -> Self {
        let node = Node::of(&desk);
        Self { desk, node }
    }

    /// A call fails with this code, says all of this, and changes nothing that the API server or
    /// the state folder holds.
    #[track_caller]
    fn fails(&self, verb: &str, container: &str, code: u64, parts: &[&str]) -> String {
        self.fails_with(verb, container, &serde_json::json!({}), code, parts)
    }

    #[track_caller]
    fn fails_with(
        &self,
        verb: &str,
        container: &str,
        prev_result: &Value,
        code: u64,
        parts: &[&str],
    ) -> String {
        let held = self.desk.held();
        let owners = self.owners();
        let outcome = self.node.call_with(verb, container, prev_result);
        let text = self.assert_failure(outcome, code, parts);
        assert_eq!(self.desk.held(), held, "{verb} {text}");
        assert_eq!(self.owners(), owners, "{verb} {text}");
        text
    }

    #[track_caller]
    fn assert_failure(&self, outcome: Outcome, code: u64, parts: &[&str]) -> String {
        for output in [&outcome.stdout, &outcome.stderr] {
            assert!(!output.contains(self.desk.login.token().unwrap()), "{output}");
        }
        let (found, text) = outcome.failure();
        assert_eq!(found, code, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?}: {text}");
        }
        text
    }

    /// The notes of owners in the state folder.
    fn owners(&self) -> Vec<String> {
        ipam_testkit::world::names(&self.world.path("state/kube/net/owners"))
    }
}

impl Deref for Site {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}
