//! The origins of a chain's pools: the selector that named each, and those that changed it.

use serde_json::{Value, json};

use super::dry_run::{DryRunStage, SelectorOutcome};
use crate::chain::entry::Placement;
use crate::chain::plan::Step;
use crate::chain::served::describe_pool;
use ipam_cli::push_line;
use ipam_kit::text::masked;

/// A pool, with the places of its selectors in the chain.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub pool: Value,
    pub named_by: usize,
    changed_by: Vec<usize>,
}

/// The pools after each delegate of a dry run.
#[derive(Debug)]
pub(super) struct Origins {
    /// The delegates' names, with their place if a name is there twice.
    pub names: Vec<String>,
    pub after: Vec<Vec<Origin>>,
}

impl Origins {
    pub(super) fn of(stages: &[DryRunStage]) -> Self {
        let mut after: Vec<Vec<Origin>> = Vec::new();
        for (place, stage) in stages.iter().enumerate() {
            let before = after.last().cloned().unwrap_or_default();
            after.push(match (&stage.outcome, &stage.pools) {
                (SelectorOutcome::Answered(_), Some(pools)) => {
                    chosen(before, place, &stage.step, pools)
                }
                _ => before,
            });
        }
        let names = (0..stages.len()).map(|place| name_of(stages, place)).collect();
        Self { names, after }
    }

    /// The pools after a delegate as JSON, with the places of their selectors, counted from 0.
    pub(super) fn to_json(&self, place: usize) -> Value {
        let mut origins = Vec::new();
        for Origin { pool, named_by, changed_by } in &self.after[place] {
            let pool = masked(pool.clone());
            origins.push(json!({"pool": pool, "namedBy": named_by, "changedBy": changed_by}));
        }
        origins.into()
    }

    /// Adds the origins of the pools after a selector, if there were pools before it.
    pub(super) fn describe(&self, place: usize, text: &mut String) {
        let there = place.checked_sub(1).map_or(0, |before| self.after[before].len());
        if there == 0 || self.after[place].is_empty() {
            return;
        }
        text.push_str("  where the pools come from\n");
        for Origin { pool, named_by, changed_by } in &self.after[place] {
            let names: Vec<&str> = changed_by.iter().map(|by| &*self.names[*by]).collect();
            let changed = match &names[..] {
                [] => String::new(),
                names => format!(", changed by {}", names.join(", ")),
            };
            let named_by = &self.names[*named_by];
            push_line(text, &format!("    {}: {named_by}{changed}", describe_pool(pool)));
        }
    }
}

/// The pools after a selector's answer.
fn chosen(mut before: Vec<Origin>, place: usize, step: &Step, pools: &[Value]) -> Vec<Origin> {
    if step.placing == Some(Placement::Replace) {
        before.clear();
    }
    // An unchanged pool comes first: its name may be there twice.
    let mut unchanged = Vec::new();
    for pool in pools {
        unchanged.push(take(&mut before, |known| known == pool));
    }
    let mut after = Vec::new();
    for (pool, unchanged) in pools.iter().zip(unchanged) {
        after.push(unchanged.unwrap_or_else(|| changed_or_new(&mut before, place, pool)));
    }
    after
}

/// The origin of a pool that a selector changed, by its name, or that it names first.
fn changed_or_new(before: &mut Vec<Origin>, place: usize, pool: &Value) -> Origin {
    let name = pool["name"].as_str().filter(|name| !name.is_empty());
    match name.and_then(|name| take(before, |known| known["name"] == name)) {
        Some(mut origin) => {
            origin.changed_by.push(place);
            Origin { pool: pool.clone(), ..origin }
        }
        None => Origin { pool: pool.clone(), named_by: place, changed_by: Vec::new() },
    }
}

fn take(origins: &mut Vec<Origin>, is_meant: impl Fn(&Value) -> bool) -> Option<Origin> {
    let found = origins.iter().position(|origin| is_meant(&origin.pool))?;
    Some(origins.remove(found))
}

/// The name of a delegate, with its place if it is there twice.
fn name_of(stages: &[DryRunStage], place: usize) -> String {
    let name = &stages[place].step.name;
    if stages.iter().filter(|stage| stage.step.name == *name).count() > 1 {
        return format!("{name} (delegate {})", place + 1);
    }
    name.clone()
}
