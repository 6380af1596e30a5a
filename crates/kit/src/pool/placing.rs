use serde_json::{Map, Value};

use super::REQUESTED;

/// The rule for the pools of earlier selectors when a selector names its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// They stay. A pool of the same name is enriched, every other one is put behind them.
    #[default]
    Add,
    /// The selector's own take their place.
    Replace,
}

impl Placement {
    /// Reads the word of a configuration.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "add" => Some(Self::Add),
            "replace" => Some(Self::Replace),
            _ => None,
        }
    }

    /// The pools after a selector: those that are there, and its own.
    ///
    /// A pool of the same name is merged: the selector's members override those there, and the
    /// number stays. Pools without a name are never the same. An added pool is numbered behind
    /// those that are there, so that no two share a cursor.
    pub fn place(self, there: &[Value], own: Vec<Value>) -> Vec<Value> {
        if self == Self::Replace || there.is_empty() {
            return own;
        }
        let numbers = there.iter().enumerate().map(|(place, pool)| number(pool).unwrap_or(place));
        let first = numbers.max().map_or(0, |last| last.saturating_add(1));
        let mut next = first;
        let mut pools = there.to_vec();
        let mut is_open = vec![true; there.len()];
        for pool in own {
            let same = |i: &usize| is_open[*i] && is_same(&pools[*i], &pool);
            let found = (0..there.len()).find(same);
            match (found, pool) {
                (Some(i), Value::Object(own)) => {
                    is_open[i] = false;
                    enrich(&mut pools[i], own);
                }
                (_, mut pool) => {
                    let own = number(&pool);
                    let number = own.map_or(next, |own| first.saturating_add(own));
                    // Without a number, the place is the number.
                    if own.is_some() || number != pools.len() {
                        pool["index"] = number.min(u32::MAX as usize).into();
                    }
                    next = next.max(number.saturating_add(1));
                    pools.push(pool);
                }
            }
        }
        pools
    }
}

fn number(pool: &Value) -> Option<usize> {
    pool["index"].as_u64().and_then(|number| usize::try_from(number).ok())
}

fn is_same(one: &Value, other: &Value) -> bool {
    let name = one["name"].as_str().filter(|name| !name.is_empty());
    name.is_some() && name == other["name"].as_str()
}

fn enrich(pool: &mut Value, mut own: Map<String, Value>) {
    let Value::Object(pool) = pool else { return };
    own.retain(|key, value| key != "index" && !is_unset(value));
    // One address in two spellings.
    if REQUESTED.iter().any(|key| own.contains_key(*key)) {
        pool.retain(|key, _| !REQUESTED.contains(&key.as_str()));
    }
    pool.extend(own);
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn added(there: Value, own: Value) -> Value {
        let list = |pools: &Value| pools.as_array().unwrap().clone();
        let pools = Placement::Add.place(&list(&there), list(&own));
        // A second call with the same pools changes nothing but those without a name.
        let named = |pool: &Value| pool["name"].is_string();
        if list(&own).iter().all(named) {
            assert_eq!(Placement::Add.place(&pools, list(&own)), pools, "a second time");
        }
        pools.into()
    }

    #[test]
    fn one_selector_is_handed_on_as_it_is() {
        let own = json!([{"name": "a", "index": 3}, {"ranges": []}]);
        assert_eq!(added(json!([]), own.clone()), own);
        let replaced =
            Placement::Replace.place(&[json!({"name": "b"})], vec![json!({"name": "a"})]);
        assert_eq!(replaced, [json!({"name": "a"})]);
    }

    #[test]
    fn a_pool_of_the_same_name_is_enriched_in_its_place() {
        let ranges = json!([{"subnet": "10.1.0.0/24"}]);
        let there = json!([
            {"name": "a", "ranges": ranges, "requested-ip": "10.1.0.2", "requested_ip": "10.1.0.2", "colour": "x"},
            {"name": "b"},
        ]);
        let own = json!([
            {"name": "b", "ranges": ranges, "index": 7},
            {"name": "a", "ranges": [], "requested_ip": "10.1.0.9", "strategy": "lowest", "colour": null},
        ]);
        assert_eq!(
            added(there, own),
            json!([
                {"name": "a", "ranges": ranges, "requested_ip": "10.1.0.9", "strategy": "lowest", "colour": "x"},
                {"name": "b", "ranges": ranges},
            ])
        );
        let other = json!([{"subnet": "10.2.0.0/24"}]);
        let there = json!([{"name": "a", "ranges": ranges}]);
        let own = json!([{"name": "a", "ranges": other}, {"name": "a"}]);
        let expected = json!([{"name": "a", "ranges": other}, {"name": "a"}]);
        assert_eq!(added(there, own), expected, "each is enriched once");
    }

    #[test]
    fn pools_without_a_name_are_never_the_same() {
        let pool = json!({"ranges": [{"subnet": "10.1.0.0/24"}]});
        let unnamed = json!({"name": "", "ranges": [{"subnet": "10.1.0.0/24"}]});
        let pools = added(json!([pool, unnamed]), json!([pool, unnamed]));
        assert_eq!(pools, json!([pool, unnamed, pool, unnamed]));
    }

    #[test]
    fn an_added_pool_shares_its_number_with_no_other() {
        for (there, own, numbers) in [
            (
                json!([{"index": 0}, {"index": 1}]),
                json!([{"index": 0}, {"index": 1}]),
                [0, 1, 2, 3],
            ),
            (json!([{}, {}]), json!([{}, {"index": 0}]), [0, 1, 2, 2]),
            (json!([{"index": 4}, {}]), json!([{}, {"index": 7}]), [4, 1, 5, 12]),
        ] {
            let pools = added(there, own);
            let placed = pools.as_array().unwrap().iter().enumerate();
            let found: Vec<usize> =
                placed.map(|(place, pool)| number(pool).unwrap_or(place)).collect();
            assert_eq!(found, numbers);
        }
        let last = u64::from(u32::MAX);
        assert_eq!(added(json!([{"index": last}]), json!([{}]))[1]["index"], last);
    }
}
