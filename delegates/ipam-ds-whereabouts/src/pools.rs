//! The pools of ranges and of requested addresses.

use ipam_kit::pool::{Pool, RangeConfig, RangeRules};
use ipam_kit::{Error, Result};

use crate::range::UsableRange;
use crate::requests::{OnRequest, RequestInRange};

/// Returns a pool of each range, and of each requested address beside.
///
/// # Errors
/// A range has no address left, or two requests would take its place.
pub(crate) fn pools(
    rule: OnRequest,
    ranges: &[UsableRange],
    requested: &[RequestInRange],
) -> Result<Vec<Pool>> {
    let mut pools = Vec::new();
    for (number, range) in ranges.iter().enumerate() {
        let mut its = requested.iter().filter(|requested| requested.range == number);
        let pool = match rule {
            OnRequest::Beside => without(range, its)?,
            OnRequest::Instead => match (its.next(), its.next()) {
                (None, _) => of_parts(range, vec![range.part(range.first, range.last)])?,
                (Some(first), None) => first.pool(range),
                (Some(first), Some(second)) => return Err(second_request(first, second, range)),
            },
        };
        pools.extend(pool);
    }
    if let OnRequest::Beside = rule {
        pools.extend(requested.iter().filter_map(|it| it.pool(&ranges[it.range])));
    }
    Ok(pools)
}

/// The pool of a range without addresses that have pools of their own.
fn without<'a>(
    range: &UsableRange,
    requested: impl Iterator<Item = &'a RequestInRange> + Clone,
) -> Result<Option<Pool>> {
    let holes = requested.clone().map(|requested| requested.address).collect();
    let pool = of_parts(range, range.parts_between(holes))?;
    match (&pool, requested.last()) {
        (None, Some(last)) => {
            let error = last.refused(&format!("the only address left in {}", range.place));
            Err(error.advise(r#"set "requested": "instead" in ipam to give the pod no other one"#))
        }
        _ => Ok(pool),
    }
}

/// A pool of parts of a range. Fails if all of them are excluded: the allocator would name its own
/// place of the pool.
fn of_parts(range: &UsableRange, parts: Vec<RangeConfig>) -> Result<Option<Pool>> {
    let pool = Pool::new(None, parts);
    let set = pool.as_ref().map(|pool| pool.range_set(RangeRules::ANY, "range"));
    if let Some(Err(_)) = set {
        let error = range.place.error(format!("every address of {range} is excluded"));
        let error = range.place.shown(error, "a range with an address that is not excluded");
        return Err(error.advise("exclude fewer addresses, or widen the range"));
    }
    Ok(pool)
}

fn second_request(first: &RequestInRange, second: &RequestInRange, range: &UsableRange) -> Error {
    let reason = format!(
        "the second request for {}, after {} of {}",
        range.place, first.address, first.path
    );
    second
        .refused(&reason)
        .advise("with \"requested\": \"instead\" a pod gets one address of each range")
}
