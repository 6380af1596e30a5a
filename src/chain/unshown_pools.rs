//! What an ADD of a plan would fail by, as far as it can be told without one.

use serde_json::Value;

use super::plan::Step;
use super::served::{serves, unserved};
use ipam_kit::error::Result;

/// The pools that no delegate of a walk was shown, for verbs on which no delegate serves any.
#[derive(Debug, Default)]
pub(crate) struct UnshownPools {
    /// The pools that were named so far.
    known: Vec<Value>,
    pools: Vec<Value>,
}

impl UnshownPools {
    /// Goes on past a delegate; `pools` are those that are known after it.
    pub(crate) fn visit(&mut self, step: &Step, pools: Option<&[Value]>) {
        if !step.is_selector() {
            self.pools.retain(|pool| !serves(step, pool));
            return;
        }
        let pools = pools.unwrap_or_default();
        let knows = |all: &[Value], pool: &Value| all.iter().any(|other| is_same(other, pool));
        self.pools.retain(|pool| knows(pools, pool));
        let new = pools.iter().filter(|pool| !knows(&self.known, pool));
        self.pools.extend(new.cloned());
        self.known = pools.to_vec();
    }

    /// Fails where an ADD would end with pools that no delegate served.
    ///
    /// # Errors
    /// Error 112. A chain of selectors alone is refused elsewhere.
    pub(crate) fn refuse_left(&self, steps: &[Step]) -> Result<()> {
        if self.pools.is_empty() || steps.iter().all(Step::is_selector) {
            return Ok(());
        }
        Err(unserved(&self.pools, steps))
    }
}

/// Whether a pool is another one, perhaps with more in it.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || (one["name"].is_string() && one["name"] == other["name"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(name: &str, serves: &[&str]) -> Step {
        let mut step = Step::new(name, "/x".into());
        let names: Vec<String> = serves.iter().map(|name| (*name).to_owned()).collect();
        step.serves = Some(names).filter(|names| !names.is_empty());
        step
    }

    /// The pools that are left of a walk: each delegate with the pools that are known after it.
    fn left(walk: &[(Step, Value)]) -> Vec<Value> {
        let mut unshown = UnshownPools::default();
        for (step, pools) in walk {
            unshown.visit(step, pools.as_array().map(Vec::as_slice));
        }
        let steps: Vec<Step> = walk.iter().map(|(step, _)| step.clone()).collect();
        let is_refused = unshown.refuse_left(&steps).is_err();
        let has_allocator = steps.iter().any(|step| !step.is_selector());
        assert_eq!(is_refused, has_allocator && !unshown.pools.is_empty());
        unshown.pools
    }

    #[test]
    fn a_pool_is_left_that_no_delegate_behind_its_selector_is_shown() {
        let (red, blue) = (json!({"name": "red"}), json!({"name": "blue"}));
        let asks = json!({"name": "red", "requested-ip": "10.0.0.9"});
        let selector = || step("ipam-ds-x", &[]);
        let both = json!([red, blue]);
        for (walk, expected) in [
            (vec![(selector(), both.clone())], both.clone()),
            (vec![(selector(), both.clone()), (step("a", &[]), both.clone())], json!([])),
            (vec![(selector(), both.clone()), (step("a", &["red"]), both.clone())], json!([blue])),
            (vec![(step("a", &[]), Value::Null), (selector(), json!([red]))], json!([red])),
            // It adds a pool, asks for an address in one that is there, or drops one.
            (
                vec![
                    (selector(), json!([red])),
                    (step("a", &[]), json!([red])),
                    (selector(), both.clone()),
                ],
                json!([blue]),
            ),
            (
                vec![
                    (selector(), json!([red])),
                    (step("a", &[]), json!([red])),
                    (selector(), json!([asks])),
                ],
                json!([]),
            ),
            (vec![(selector(), both), (selector(), json!([asks]))], json!([red])),
        ] {
            assert_eq!(json!(left(&walk)), expected, "{walk:?}");
        }
    }
}
