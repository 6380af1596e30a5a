//! The choice of one pool of each family.

use ipam_kit::cni::address::parse_cidr;
use ipam_kit::pool::{Pool, RangeRules};
use ipam_kit::{Error, Result};

use crate::rules::PoolChoice;
use crate::wishes::Wish;

/// Keeps one pool of each family among `choices`: the one that `wanted` names first, else the first
/// choice. Other pools stay. `there` are the pools of earlier selectors.
///
/// Pools without ranges, which a store knows by their names, count as a family.
///
/// # Errors
/// A name is not among the choices; the same list wants two pools of a family; ranges are
/// malformed.
pub(crate) fn choose(
    there: Vec<Pool>,
    choices: &[PoolChoice],
    wanted: &[Vec<Wish<String>>],
) -> Result<Vec<Pool>> {
    let candidates = candidates(&there, choices)?;
    let mut chosen: Vec<usize> = Vec::new();
    for list in wanted {
        let earlier = chosen.len();
        for wish in list {
            let index = find(choices, wish)?;
            let family = candidates[index].family;
            match chosen.iter().position(|other| candidates[*other].family == family) {
                None => chosen.push(index),
                // What comes first, as the pod before its namespace, counts.
                Some(other) if other < earlier || chosen[other] == index => {}
                Some(other) => return Err(same_family(wish, &choices[chosen[other]].name)),
            }
        }
    }
    for (index, candidate) in candidates.iter().enumerate() {
        if chosen.iter().all(|other| candidates[*other].family != candidate.family) {
            chosen.push(index);
        }
    }
    Ok(placed(there, choices, &candidates, &chosen))
}

/// All pools: those that may be chosen, and the others.
///
/// # Errors
/// Ranges are malformed.
pub(crate) fn all(there: Vec<Pool>, choices: &[PoolChoice]) -> Result<Vec<Pool>> {
    let candidates = candidates(&there, choices)?;
    let chosen: Vec<usize> = (0..choices.len()).collect();
    Ok(placed(there, choices, &candidates, &chosen))
}

/// A pool that may be chosen.
struct Candidate {
    /// Its place among the pools of earlier selectors; `None` if the store alone knows it.
    place: Option<usize>,
    /// Whether its ranges are IPv4.
    family: Option<bool>,
}

fn candidates(there: &[Pool], choices: &[PoolChoice]) -> Result<Vec<Candidate>> {
    let read = |choice: &PoolChoice| {
        let Some(place) = place(there, choice)? else {
            return Ok(Candidate { place: None, family: None });
        };
        let set = there[place].range_set(RangeRules::ANY, &format!("prevResult.pools[{place}]"))?;
        Ok(Candidate { place: Some(place), family: set.map(|set| set.is_ipv4()) })
    };
    choices.iter().map(read).collect()
}

/// The place of a choice among the pools: by the name, else by the subnet.
fn place(there: &[Pool], choice: &PoolChoice) -> Result<Option<usize>> {
    let PoolChoice { name, path } = choice;
    let by_name = there.iter().position(|pool| pool.name() == Some(name));
    let Ok(subnet) = parse_cidr(name) else { return Ok(by_name) };
    let has = |pool: &Pool| {
        let subnets = pool.ranges().iter().filter_map(|range| range.subnet.as_deref());
        pool.name().is_none() && subnets.flat_map(parse_cidr).any(|it| it == subnet)
    };
    let by_subnet: Vec<usize> = (0..there.len()).filter(|place| has(&there[*place])).collect();
    match (by_name, &by_subnet[..]) {
        (Some(place), _) | (None, &[place]) => Ok(Some(place)),
        (None, []) => Err(Error::config(path, format_args!("no pool has the subnet {name}"))
            .advise("expected the subnet of a range of this network")),
        (None, _) => Err(Error::config(path, format_args!("several pools have the subnet {name}"))
            .advise("give them names")),
    }
}

fn find(choices: &[PoolChoice], wish: &Wish<String>) -> Result<usize> {
    choices.iter().position(|choice| choice.name == wish.value).ok_or_else(|| {
        let names = choices.iter().map(|choice| format!("{:?}", choice.name));
        let names = Error::listed(names, ", ");
        let message = format!("the network does not allow the pool {:?}, but {names}", wish.value);
        Error::config(&wish.place, message)
            .advise("name one of these, or extend ipam.pod.pools of the network")
    })
}

fn same_family(wish: &Wish<String>, other: &str) -> Error {
    let message = format!("{other:?} and {:?} are pools of one family", wish.value);
    Error::config(&wish.place, message).advise("name at most one pool of each family")
}

/// The pools without the choices that were not chosen; those that the store alone knows follow. Each
/// pool keeps its number, so that no other continues at its cursor.
fn placed(
    there: Vec<Pool>,
    choices: &[PoolChoice],
    candidates: &[Candidate],
    chosen: &[usize],
) -> Vec<Pool> {
    let count = there.len();
    let is_left_out = |place: usize| {
        let choice = candidates.iter().position(|candidate| candidate.place == Some(place));
        choice.is_some_and(|index| !chosen.contains(&index))
    };
    let kept = there.into_iter().enumerate().filter(|(place, _)| !is_left_out(*place));
    let of_store = candidates.iter().zip(choices).enumerate();
    let of_store = of_store
        .filter(|(index, (candidate, _))| candidate.place.is_none() && chosen.contains(index));
    let of_store = of_store.filter_map(|(index, (_, choice))| {
        Some((count + index, Pool::new(Some(choice.name.clone()), Vec::new())?))
    });
    let mut pools = Vec::new();
    for (number, mut pool) in kept.chain(of_store) {
        // Without a number, the place is the number.
        if number != pools.len() {
            pool.index = pool.index.or(u32::try_from(number).ok());
        }
        pools.push(pool);
    }
    pools
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(value: &Value) -> Pool {
        Pool::parse(value, "p").unwrap()
    }

    fn choices(names: &[&str]) -> Vec<PoolChoice> {
        let choice = |name: &&str| PoolChoice { name: (*name).to_owned(), path: "path".to_owned() };
        names.iter().map(choice).collect()
    }

    fn v4(name: &str, third: u8) -> Value {
        json!({"name": name, "ranges": [{"subnet": format!("10.0.{third}.0/24")}]})
    }

    fn v6(name: &str, third: u8) -> Value {
        json!({"name": name, "ranges": [{"subnet": format!("fd00:{third}::/64")}]})
    }

    /// `NAME@NUMBER` of each pool, with the choices `a4`, `b4`, `a6`, the subnet of `b6`, which has no
    /// name, and `stored`. `wanted` are the names of the pod, `|`, and those of its namespace.
    fn chosen(wanted: &str) -> Result<String> {
        let mut b6 = v6("fd00:1::/64", 1);
        b6.as_object_mut().unwrap().remove("name");
        let there = [v4("a4", 0), v6("a6", 0), json!({"name": "other"}), v4("b4", 1), b6];
        let there = there.iter().map(pool).collect();
        let choices = choices(&["a4", "b4", "a6", "fd00:1::/64", "stored"]);
        let wish = |name: &str| Wish { value: name.to_owned(), place: "here".to_owned() };
        let wanted: Vec<Vec<_>> =
            wanted.split('|').map(|list| list.split_whitespace().map(wish).collect()).collect();
        let pools = choose(there, &choices, &wanted)?;
        let number = |(place, pool): (usize, &Pool)| pool.index.map_or(place, |it| it as usize);
        let shown = pools.iter().enumerate().map(|it| (it.1.name().unwrap_or("b6"), number(it)));
        let shown = shown.map(|(name, number)| format!("{name}@{number}"));
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn one_pool_of_each_family_is_given() {
        for (wanted, expected) in [
            ("", "a4@0 a6@1 other@2 stored@9"),
            ("b4", "a6@1 other@2 b4@3 stored@9"),
            ("fd00:1::/64", "a4@0 other@2 b6@4 stored@9"),
            ("fd00:1::/64 b4 b4", "other@2 b4@3 b6@4 stored@9"),
            // The pod, then its namespace.
            ("b4 | a4 fd00:1::/64", "other@2 b4@3 b6@4 stored@9"),
            ("| b4", "a6@1 other@2 b4@3 stored@9"),
        ] {
            assert_eq!(chosen(wanted).unwrap(), expected, "{wanted}");
        }
    }

    #[test]
    fn a_choice_is_never_widened() {
        for (wanted, message) in [
            ("c4", r#"here: the network does not allow the pool "c4", but "a4", "b4", "#),
            ("other", r#"here: the network does not allow the pool "other", but "a4", "#),
            ("a4 b4", r#"here: "a4" and "b4" are pools of one family"#),
            ("a4 | b4 c4", r#"here: the network does not allow the pool "c4""#),
        ] {
            let error = chosen(wanted).unwrap_err();
            assert_eq!(error.code().number(), 7);
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_subnet_is_that_of_one_pool_without_a_name() {
        let lan = json!({"ranges": [{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.99"}]});
        let rest = json!({"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.100"}]});
        let named = v4("lan", 0);
        for (there, message) in [
            (&[&lan, &rest][..], "path: several pools have the subnet 10.0.0.0/24"),
            (&[&named], "path: no pool has the subnet 10.0.0.0/24"),
        ] {
            let there = there.iter().map(|value| pool(value)).collect();
            let error = choose(there, &choices(&["10.0.0.0/24"]), &[]).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
