//! Checks that pools are served: by the answer of one delegate, and by a whole chain.

use std::net::IpAddr;

use serde_json::Value;

use super::plan::Step;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::pool::compare_answer;

/// Fails if a delegate's addresses do not fit the pools it was shown. `left` are the pools of its answer,
/// which it did not serve; without pools in the answer (`None`) it served all.
///
/// Two answers are not compared: with `"answers": "any"` in the delegate's entry, and of a standalone
/// program, which was shown no pools.
pub(crate) fn compare_with_pools(
    step: &Step,
    shown: &[&Value],
    left: Option<&[Value]>,
    given: &[IpAddr],
) -> Result<()> {
    // Without pools and addresses it served nothing: the pools stay.
    let is_silent = left.is_none() && given.is_empty();
    if step.answers_any || is_silent {
        return Ok(());
    }
    if !step.is_allocator() {
        refuse_sticky(step, shown)?;
    }
    if left.is_none() && !step.is_allocator() {
        let given: Vec<String> = given.iter().map(IpAddr::to_string).collect();
        refuse_unknown_ranges(step, shown, &given.join(", "))?;
    }
    compare_answer(shown, left.unwrap_or_default(), given).map_err(|error| {
        let error = error.within(&step.name);
        if step.is_allocator() {
            return error.advise(
                "an allocator must give one address inside each pool, and answer in pools those that it did \
                 not serve: repair or replace it",
            );
        }
        let name = &step.name;
        // It finds the ranges of all pools in `ipam`.
        let error = if step.serves.is_some() {
            error.advise("give its entry only the ranges of the pools that it serves")
        } else {
            error
        };
        error.advise(format!(
            "name another allocator in ipam.delegates; to accept any answer of {name}, write \
             {{\"type\": \"{name}\", \"answers\": \"any\"}} there"
        ))
    })
}

/// Fails if a standard plugin, which has ranges of its own, is shown a pool without ranges. If its object
/// names this pool and no other, the author of the network says that its ranges are the pool's.
pub(crate) fn refuse_unknown_ranges(step: &Step, shown: &[&Value], given: &str) -> Result<()> {
    let unknown = shown.iter().find(|pool| !has_ranges(pool) && !serves_only(step, pool));
    let Some(pool) = unknown else { return Ok(()) };
    let name = &step.name;
    let message = format!(
        "{name}: {} has no ranges, so {given} cannot be matched to it",
        describe_pool(pool)
    );
    let entry = format!(r#"{{"type": "{name}", "serves": [{}]}}"#, pool["name"]);
    let advice = if step.is_allocator() {
        "an allocator must answer in pools those that it did not serve, [] if it served all"
            .to_owned()
    } else if step.serves.as_ref().is_some_and(|names| names.len() > 1) {
        format!(
            "write one entry for each pool, as in {entry}, with its ranges; or give the pool ranges"
        )
    } else {
        format!(
            "if {name} has its own ranges for this pool, write {entry} with them in ipam.delegates; else give the pool ranges"
        )
    };
    Err(Error::new(ErrorCode::UNSERVED, message).advise(advice))
}

/// Fails if a standard plugin is shown a pool whose address is to stay with a name: it would give
/// any.
pub(crate) fn refuse_sticky(step: &Step, shown: &[&Value]) -> Result<()> {
    let sticky = shown.iter().find(|pool| pool["sticky"].as_str().is_some_and(|it| !it.is_empty()));
    let Some(pool) = sticky else { return Ok(()) };
    let (name, pool) = (&step.name, describe_pool(pool));
    let message = format!("{name}: {pool} has a sticky name, and {name} keeps no names");
    Err(Error::new(ErrorCode::UNSERVED, message)
        .advise("name ipam-da-kube as the allocator in ipam.delegates, or set no sticky names"))
}

/// Fails for a chain that has only selectors.
pub(crate) fn refuse_without_allocator(steps: &[Step]) -> Result<()> {
    if steps.iter().any(|step| !step.is_selector()) {
        return Ok(());
    }
    let names: Vec<&str> = steps.iter().map(|step| &*step.name).collect();
    let message =
        format!("ipam.delegates names only selectors ({}), so every ADD fails", names.join(", "));
    Err(Error::new(ErrorCode::UNSERVED, message)
        .advise("add an allocator (ipam-da-…, or a plugin such as host-local)"))
}

/// Fails for a plan in which an allocator follows itself, each for every pool: the first leaves no pool.
///
/// # Errors
/// Error 7.
pub(crate) fn refuse_repeated_allocator(steps: &[Step]) -> Result<()> {
    let mut before: Vec<&Step> = Vec::new();
    for step in steps {
        if step.is_selector() {
            // It may name pools for the allocators behind it.
            before.clear();
        }
        if !step.is_allocator() || step.serves.is_some() {
            continue;
        }
        let mut others = before.iter();
        if others.any(|other| other.name == step.name && other.overrides == step.overrides) {
            let message = format!("names {} twice, and the first serves every pool", step.name);
            return Err(Error::config("ipam.delegates", message)
                .advise("remove one, or name the pools of each in its serves"));
        }
        before.push(step);
    }
    Ok(())
}

/// The error about pools that no delegate of these steps has served.
pub(crate) fn unserved(left: &[Value], steps: &[Step]) -> Error {
    let message = format!("no delegate served {}", describe_pools(left));
    let error = Error::new(ErrorCode::UNSERVED, message);
    let last_selector = steps.iter().rposition(Step::is_selector);
    let (before, after) = steps.split_at(last_selector.map_or(0, |index| index + 1));
    let early = before.iter().rfind(|step| !step.is_selector());
    if let (Some(early), Some(index), []) = (early, last_selector, after) {
        let selector = &steps[index].name;
        return error.advise(format!("put {} after {selector} in ipam.delegates", early.name));
    }
    for step in after {
        if let Some(names) = &step.serves
            && !left.iter().any(|pool| serves(step, pool))
        {
            let names: Vec<String> =
                names.iter().map(|name| Value::from(&**name).to_string()).collect();
            let has_name = left.iter().any(|pool| pool["name"].is_string());
            let correction =
                if has_name { "correct serves or the pool's name" } else { "give the pool a name" };
            return error.advise(format!(
                "serves of {} names {}: {correction}, or add an allocator for it",
                step.name,
                names.join(", ")
            ));
        }
    }
    error.advise("add an allocator for it to ipam.delegates")
}

/// Whether a delegate is shown a pool.
pub(crate) fn serves(step: &Step, pool: &Value) -> bool {
    let Some(names) = &step.serves else { return true };
    pool.get("name").and_then(Value::as_str).is_some_and(|name| names.iter().any(|n| n == name))
}

fn has_ranges(pool: &Value) -> bool {
    pool["ranges"].as_array().is_some_and(|ranges| !ranges.is_empty())
}

/// Whether a delegate's object names this pool and no other.
fn serves_only(step: &Step, pool: &Value) -> bool {
    match step.serves.as_deref() {
        Some([name]) => pool["name"] == name.as_str(),
        _ => false,
    }
}

pub(crate) fn describe_pools(pools: &[Value]) -> String {
    if pools.is_empty() {
        return "no pool".to_owned();
    }
    Error::listed(pools.iter().map(describe_pool), ", ")
}

pub(crate) fn describe_pool(pool: &Value) -> String {
    let ranges = pool["ranges"].as_array().into_iter().flatten();
    match pool["name"].as_str() {
        Some(name) => format!("the pool {name:?}"),
        None => format!("the pool {}", ranges.map(describe_range).collect::<Vec<_>>().join(", ")),
    }
}

fn describe_range(range: &Value) -> String {
    let [start, end, subnet] = ["rangeStart", "rangeEnd", "subnet"]
        .map(|key| range[key].as_str().filter(|text| !text.is_empty()));
    match (start, end, subnet) {
        (Some(start), Some(end), _) => format!("{start}-{end}"),
        (_, _, Some(subnet)) => subnet.to_owned(),
        _ => "without a subnet".to_owned(),
    }
}
