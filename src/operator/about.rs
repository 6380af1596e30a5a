//! The answers of delegates to `about --json`.

use serde_json::Value;

use super::reference;
use crate::chain::plan::Step;
use crate::chain::query;
use crate::chain::session::Session;
use ipam_kit::delegate::Reach;

/// The description of a delegate.
#[derive(Debug, Default)]
pub(super) struct About {
    /// The reach of an allocator's store; `None` if it does not say.
    pub reach: Option<Reach>,
    /// The keys of `ipam` that it reads; `None` if it may read any key.
    pub keys: Option<Vec<String>>,
    /// The keys that it reads of a range in `ipam.ranges`.
    pub of_ranges: Vec<String>,
}

impl About {
    /// Asks a selector or an allocator. A standard plugin is never asked: its keys are in the
    /// table.
    pub(super) fn of(session: &Session<'_>, step: &Step) -> Self {
        if step.is_standalone() {
            // It gets another section ipam.
            return Self { keys: Some(Vec::new()), ..Self::default() };
        }
        if !step.is_ours() {
            let keys = reference::of_ipam(step.own_name());
            let keys = keys.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect());
            return Self { keys, ..Self::default() };
        }
        let about = query::about(session, step).unwrap_or_default();
        let reach = about["reach"].as_str().and_then(Reach::parse);
        Self {
            reach: reach.filter(|_| step.is_allocator()),
            keys: names_of(&about["keys"]),
            of_ranges: names_of(&about["keys"]["ranges"]).unwrap_or_default(),
        }
    }

    /// Whether it says that it reads this key of `ipam`.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.keys.iter().flatten().any(|read| read == key)
    }
}

fn names_of(keys: &Value) -> Option<Vec<String>> {
    Some(keys.as_object()?.keys().cloned().collect())
}
