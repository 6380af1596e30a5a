//! Selectors that each choose a pool of the same family.

use serde_json::Value;

use super::findings::Findings;
use crate::chain::served::describe_pool;
use crate::operator::dry_run::DryRunStage;
use crate::operator::origins::Origins;

impl Findings {
    /// Finds selectors that each choose a pool of one family, with the pools of STATUS.
    pub(super) fn of_two_selectors(&mut self, stages: &[DryRunStage]) {
        let origins = Origins::of(stages);
        let pools = origins.after.last().map(Vec::as_slice).unwrap_or_default();
        let pairs = pools.iter().enumerate().flat_map(|(i, second)| {
            pools[..i]
                .iter()
                .map(move |first| [first, second])
                .filter(|[first, second]| first.named_by != second.named_by)
        });
        // Certain findings come first.
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

/// The family of a pool's first range; `None` where it has no ranges.
fn family(pool: &Value) -> Option<&'static str> {
    let range = pool["ranges"].get(0)?;
    let text = ["subnet", "rangeStart"].iter().find_map(|key| range[key].as_str())?;
    Some(if text.contains(':') { "an IPv6 pool" } else { "an IPv4 pool" })
}
