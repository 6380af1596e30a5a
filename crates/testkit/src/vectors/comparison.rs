//! What we do beside what was recorded.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Difference;

/// The faults that are found case by case.
pub struct Comparison<'a> {
    reasons: &'a BTreeMap<String, String>,
    needed: BTreeSet<&'a str>,
    faults: Vec<String>,
}

impl<'a> Comparison<'a> {
    /// With the reasons that differences may have, by their names.
    pub fn with(reasons: &'a BTreeMap<String, String>) -> Self {
        Self { reasons, needed: BTreeSet::new(), faults: Vec::new() }
    }

    /// Compares what was observed in a case with what was recorded, which the differences change.
    #[track_caller]
    pub fn add(
        &mut self,
        case: &str,
        recorded: Value,
        differences: &'a [Difference],
        observed: &Value,
    ) {
        let mut expected = recorded;
        for difference in differences {
            assert!(self.reasons.contains_key(&difference.why), "{}", difference.why);
            self.needed.insert(&difference.why);
            if let Err(fault) = difference.apply(&mut expected) {
                self.fault(case, &fault);
            }
        }
        if *observed != expected {
            self.fault(case, &format!("\nexpected {expected}\nobserved {observed}"));
        }
    }

    pub(super) fn fault(&mut self, case: &str, fault: &str) {
        self.faults.push(format!("{case}: {fault}"));
    }

    /// Fails where a case has a fault, or where no difference has a reason of the list.
    #[track_caller]
    pub fn finish(self) {
        assert!(self.faults.is_empty(), "{}", self.faults.join("\n"));
        assert_eq!(self.needed.len(), self.reasons.len(), "a reason that nothing needs");
    }
}
