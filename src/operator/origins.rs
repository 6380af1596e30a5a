//! Whose the pools of a chain are: the selector that named each, and those that have changed it since.

use serde_json::{Value, json};

use super::dry_run::{DryRunStage, SelectorOutcome};
use crate::chain::entry::Placement;
use crate::chain::plan::Step;
use crate::chain::served::describe_pool;
use ipam_cli::push_line;
use ipam_kit::text::masked;

/// A pool, with the places in the chain of those that it is of.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub pool: Value,
    pub named_by: usize,
    changed_by: Vec<usize>,
}

/// The pools that are known after each delegate of a dry run.
#[derive(Debug)]
pub(super) struct Origins {
    /// The delegates' names, those that are there twice with their place.
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
        let is = |name: &str| stages.iter().filter(|stage| stage.step.name == name).count();
        let name = |(place, stage): (usize, &DryRunStage)| match &*stage.step.name {
            name if is(name) > 1 => format!("{name} (delegate {})", place + 1),
            name => name.to_owned(),
        };
        Self { names: stages.iter().enumerate().map(name).collect(), after }
    }

    /// The pools after a delegate as JSON: the places of those that they are of count from 0.
    pub(super) fn to_json(&self, place: usize) -> Value {
        let one = |Origin { pool, named_by, changed_by }: &Origin| json!({"pool": masked(pool.clone()), "namedBy": named_by, "changedBy": changed_by});
        self.after[place].iter().map(one).collect()
    }

    /// Adds whose the pools after a selector are, where there were some before it.
    pub(super) fn describe(&self, place: usize, text: &mut String) {
        let there = place.checked_sub(1).map_or(0, |before| self.after[before].len());
        if there == 0 || self.after[place].is_empty() {
            return;
        }
        text.push_str("  whose the pools are\n");
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
    let mut take = |is: &dyn Fn(&Value) -> bool| {
        let found = before.iter().position(|known| is(&known.pool))?;
        Some(before.remove(found))
    };
    // What is as it was first: its name may be there twice.
    let kept: Vec<Option<Origin>> = pools.iter().map(|pool| take(&|known| known == pool)).collect();
    let named = |(pool, kept): (&Value, Option<Origin>)| {
        kept.unwrap_or_else(|| {
            let name = pool["name"].as_str().filter(|name| !name.is_empty());
            let same = name.and_then(|name| take(&|known| known["name"] == name));
            match same {
                Some(mut origin) => {
                    origin.changed_by.push(place);
                    Origin { pool: pool.clone(), ..origin }
                }
                None => Origin { pool: pool.clone(), named_by: place, changed_by: Vec::new() },
            }
        })
    };
    pools.iter().zip(kept).map(named).collect()
}
