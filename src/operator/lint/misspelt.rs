//! Misspelt keys that a call only warns of.

use serde_json::Value;

use super::findings::Findings;
use crate::operator::dry_run::{DryRunStage, SelectorOutcome};
use ipam_kit::cni::Network;
use ipam_kit::ipam_section;
use ipam_kit::pool::Pool;

impl Findings {
    /// Finds misspelt keys in ranges, pools and routes of a network, and in the pools of its
    /// selectors: an error each, unless a finding names it already.
    pub(super) fn of_misspelt(&mut self, network: &Network, stages: &[DryRunStage]) {
        let found = ipam_section::misspelt_settings(network, ipam_section::KEYS);
        let mut told: Vec<&str> = found.iter().map(|it| it.key.as_str()).collect();
        for it in &found {
            if !self.names(&it.path) {
                self.error(&it.error());
            }
        }
        let mut of_pools = Vec::new();
        for DryRunStage { step, outcome, .. } in stages {
            let SelectorOutcome::Answered(answer) = outcome else { continue };
            let pools = answer.get("pools").and_then(Value::as_array);
            let pools = pools.map(Vec::as_slice).unwrap_or_default();
            of_pools.extend(
                Pool::misspelt(pools, "its answer's pools").into_iter().map(|it| (step, it)),
            );
        }
        for (step, it) in &of_pools {
            // A key that a selector took from `ipam`, or from one before it, is reported once.
            if !told.contains(&it.key.as_str()) {
                told.push(&it.key);
                self.error(&it.error().within(&step.name));
            }
        }
    }

    /// Whether a finding names this place.
    fn names(&self, path: &str) -> bool {
        self.list.iter().any(|finding| finding.text("message").contains(path))
    }
}
