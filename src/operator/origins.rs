//! Whose the pools of a chain are: the selector that named each, and those that have changed it since.

use serde_json::{Value, json};

use super::dry_run::{DryStep, SelectorOutcome};
use super::findings::Findings;
use crate::chain::entry::Placing;
use crate::chain::plan::Step;
use crate::chain::served::describe_pool;
use ipam_cli::push_line;
use ipam_kit::text::masked;

/// A pool, with the places in the chain of those that it is of.
#[derive(Clone, Debug)]
struct Origin {
    pool: Value,
    named_by: usize,
    changed_by: Vec<usize>,
}

/// The pools that are known after each delegate of a dry run.
#[derive(Debug)]
pub(super) struct Origins {
    /// The delegates' names, those that are there twice with their place.
    names: Vec<String>,
    after: Vec<Vec<Origin>>,
}

impl Origins {
    pub(super) fn of(stages: &[DryStep]) -> Self {
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
        let name = |(place, stage): (usize, &DryStep)| match &*stage.step.name {
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

impl Findings {
    /// Selectors of which each names a pool of the same family, as far as the pools of STATUS tell.
    pub(super) fn of_two_selectors(&mut self, stages: &[DryStep]) {
        let origins = Origins::of(stages);
        let pools = origins.after.last().map(Vec::as_slice).unwrap_or_default();
        let pairs = pools.iter().enumerate().flat_map(|(i, second)| {
            pools[..i]
                .iter()
                .map(move |first| [first, second])
                .filter(|[first, second]| first.named_by != second.named_by)
        });
        // What is known for sure comes first.
        let (known, open): (Vec<_>, Vec<_>) =
            pairs.partition(|pair| pair.iter().all(|origin| family(&origin.pool).is_some()));
        let same =
            known.into_iter().filter(|[one, other]| family(&one.pool) == family(&other.pool));
        let mut told: Vec<[usize; 2]> = Vec::new();
        for pair in same.chain(open) {
            let places = pair.map(|origin| origin.named_by);
            if told.contains(&places) {
                continue;
            }
            told.push(places);
            let (level, each) = match pair.map(|origin| family(&origin.pool)) {
                [Some(family), Some(_)] => ("warning", family),
                // The store alone knows.
                _ => ("note", "a pool"),
            };
            let [one, other] = places.map(|place| &*origins.names[place]);
            let pools = pair.map(|origin| describe_pool(&origin.pool)).join(", ");
            let name = &stages[places[1]].step.name;
            let message = format!(
                "{one} and {other} each choose {each} ({pools}), and a container gets an address of each; if one is \
                 enough, write {{\"type\": \"{name}\", \"pools\": \"replace\"}} in ipam.delegates"
            );
            self.push(level, &message);
        }
    }
}

/// The pools after a selector's answer.
fn chosen(mut before: Vec<Origin>, place: usize, step: &Step, pools: &[Value]) -> Vec<Origin> {
    if step.placing == Some(Placing::Replace) {
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

/// The family of a pool's first range; `None` where it has no ranges.
fn family(pool: &Value) -> Option<&'static str> {
    let range = pool["ranges"].get(0)?;
    let text = ["subnet", "rangeStart"].iter().find_map(|key| range[key].as_str())?;
    Some(if text.contains(':') { "an IPv6 pool" } else { "an IPv4 pool" })
}
