//! The pools that an ADD would leave without an address, as far as another verb can know them.

use serde_json::Value;

use super::plan::Step;
use super::served::{serves, unserved};
use ipam_kit::error::Result;

/// The pools that are for none of the visited delegates, on verbs on which no delegate serves a pool.
#[derive(Debug, Default)]
pub(crate) struct UnshownPools {
    /// All pools after the last selector.
    known: Vec<Value>,
    unshown: Vec<Value>,
}

impl UnshownPools {
    /// Visits the next delegate; `pools` are those that are known after it.
    pub(crate) fn visit(&mut self, step: &Step, pools: Option<&[Value]>) {
        if !step.is_selector() {
            self.unshown.retain(|pool| !serves(step, pool));
            return;
        }
        let pools = pools.unwrap_or_default();
        self.unshown.retain(|pool| contains(pools, pool));
        let new = pools.iter().filter(|pool| !contains(&self.known, pool));
        self.unshown.extend(new.cloned());
        self.known = pools.to_vec();
    }

    /// Fails if an ADD would end with pools that no delegate served.
    ///
    /// # Errors
    /// Error 112. A chain of selectors alone is refused elsewhere.
    pub(crate) fn refuse_left(&self, steps: &[Step]) -> Result<()> {
        if self.unshown.is_empty() || steps.iter().all(Step::is_selector) {
            return Ok(());
        }
        Err(unserved(&self.unshown, steps))
    }
}

/// Whether a pool is among others. A pool of the same name is the same, with whatever else it has.
fn contains(pools: &[Value], pool: &Value) -> bool {
    let has_name = pool["name"].is_string();
    pools.iter().any(|other| other == pool || (has_name && other["name"] == pool["name"]))
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
        let mut tracked = UnshownPools::default();
        for (step, pools) in walk {
            tracked.visit(step, pools.as_array().map(Vec::as_slice));
        }
        let steps: Vec<Step> = walk.iter().map(|(step, _)| step.clone()).collect();
        let is_refused = tracked.refuse_left(&steps).is_err();
        let has_allocator = steps.iter().any(|step| !step.is_selector());
        assert_eq!(is_refused, has_allocator && !tracked.unshown.is_empty());
        tracked.unshown
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
