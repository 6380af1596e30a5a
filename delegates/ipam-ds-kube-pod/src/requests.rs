//! The addresses that a pod requests, each of the pool that it is in.

use std::net::IpAddr;

use ipam_kit::pool::{Pool, RangeRules, RangeSet};
use ipam_kit::{Error, ErrorCode, Result};

use crate::wishes::Wish;

/// Requests addresses of pools. Such a request never takes an address from another owner.
///
/// # Errors
/// An address is in no pool or may not be given, or its pool has another request.
pub(crate) fn request(pools: &mut [Pool], wishes: &[Wish<IpAddr>]) -> Result<()> {
    let set = |pool: &Pool| pool.range_set(RangeRules::ANY, "prevResult.pools");
    let sets: Vec<Option<RangeSet>> = pools.iter().map(set).collect::<Result<_>>()?;
    for Wish { value: address, place } in wishes {
        let address = *address;
        let pool = &mut pools[find(&sets, address, place)?];
        if let Some(other) = pool.requested_ip.filter(|other| *other != address) {
            let message = format!("{address} and {other} are requested of one pool");
            return Err(refused(place, message)
                .advise("request one address of each pool; a runtime may request one, too"));
        }
        pool.requested_ip = Some(address);
        pool.takeover = Some(false);
    }
    Ok(())
}

/// The pool whose ranges have the address, else the only one without ranges.
fn find(sets: &[Option<RangeSet>], address: IpAddr, place: &str) -> Result<usize> {
    for (i, set) in sets.iter().enumerate() {
        if let Some(set) = set.as_ref().filter(|set| set.find(address).is_some()) {
            return match set.refusal(address) {
                None => Ok(i),
                Some(reason) => Err(refused(place, format!("{address} is {reason}"))),
            };
        }
    }
    let mut without_ranges = sets.iter().enumerate().filter(|(_, set)| set.is_none());
    match (without_ranges.next(), without_ranges.next()) {
        (Some((i, _)), None) => Ok(i),
        (Some(_), Some(_)) => {
            Err(refused(place, format!("{address} is ambiguous: several pools have no ranges"))
                .advise("choose the pool as well"))
        }
        (None, _) => {
            let ranges = sets.iter().flatten().map(RangeSet::to_string);
            let ranges = Error::listed(ranges, ", ");
            Err(refused(place, format!("{address} is not in {ranges}"))
                .advise("request an address inside a range of the network"))
        }
    }
}

fn refused(place: &str, message: String) -> Error {
    Error::new(ErrorCode::NOT_IN_POOL, message).at(place)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The requested address of each pool.
    fn requested(pools: &Value, addresses: &[&str]) -> Result<Vec<Option<IpAddr>>> {
        let pools = pools.as_array().unwrap().iter();
        let mut pools: Vec<Pool> = pools.map(|pool| Pool::parse(pool, "p").unwrap()).collect();
        let wish = |address: &&str| Wish { value: address.parse().unwrap(), place: "here".into() };
        let wishes: Vec<_> = addresses.iter().map(wish).collect();
        request(&mut pools, &wishes)?;
        assert!(pools.iter().all(|pool| pool.requested_ip.is_none() || pool.takeover.is_some()));
        Ok(pools.iter().map(|pool| pool.requested_ip).collect())
    }

    #[test]
    fn an_address_is_requested_of_the_pool_that_has_it() {
        let four = json!({"ranges": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.9"]}]});
        let six = json!({"ranges": [{"subnet": "fd00::/64"}]});
        let asked = json!({"name": "asked", "ranges": [{"subnet": "10.0.1.0/24"}],
                           "requested-ip": "10.0.1.5", "takeover": true});
        let stored = json!({"name": "stored"});
        let dual = json!([four, six, asked]);
        let given = requested(&dual, &["fd00::7", "10.0.0.7"]).unwrap();
        assert_eq!(given[..2], ["10.0.0.7", "fd00::7"].map(|it| Some(it.parse().unwrap())));
        assert!(requested(&dual, &["10.0.1.5"]).is_ok());
        let given = requested(&json!([four, stored]), &["10.9.0.1"]).unwrap();
        assert_eq!(given[1], Some("10.9.0.1".parse().unwrap()));
        for (pools, addresses, message) in [
            (&dual, &["10.9.0.1"][..], "10.9.0.1 is not in 10.0.0.1-10.0.0.254, fd00"),
            (&dual, &["10.0.0.1"], "10.0.0.1 is the gateway of"),
            (&dual, &["10.0.0.9"], "10.0.0.9 is excluded from"),
            (&dual, &["10.0.0.7", "10.0.0.8"], "10.0.0.8 and 10.0.0.7 are requested of one pool"),
            (&dual, &["10.0.1.6"], "10.0.1.6 and 10.0.1.5 are requested of one pool"),
            (&json!([stored, stored]), &["10.0.0.7"], "10.0.0.7 is ambiguous: several pools"),
        ] {
            let error = requested(pools, addresses).unwrap_err();
            assert_eq!(error.code().number(), 101, "{error}");
            assert!(error.to_string().starts_with(&format!("here: {message}")), "{error}");
        }
    }
}
