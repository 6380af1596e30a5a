use serde_json::{Map, Value};

use super::{InputMembers, key};
use crate::cni::{IpConfig, IpamResult};
use crate::error::{Error, ErrorCode, Result};

/// The answer of a delegate, beside the CNI result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelegateAnswer {
    /// A selector: the pools that it chose, with those before it that stay. An allocator: the pools
    /// that it did not serve. `None` if the answer does not say.
    pub pools: Option<Vec<Value>>,
    /// An allocator: what it needs to find its leases again, in a form of its own.
    pub leases: Option<Vec<Value>>,
    /// A selector: addresses outside of pools, which the next allocator answers beside one for each
    /// pool.
    pub static_addresses: Vec<IpConfig>,
    /// An allocator: an earlier try may still take effect in the store, so the chain repeats the
    /// DEL.
    pub unsure: bool,
    /// A selector: a JSON merge patch for the section `ipam` of later delegates.
    pub ipam: Map<String, Value>,
    /// A selector: how old its answer is, if it did not ask its source now.
    pub remembered: Option<String>,
    /// A selector, on STATUS: settings without the effect that a person may expect, a text for each.
    pub remarks: Vec<String>,
}

impl DelegateAnswer {
    /// The answer of a selector that chooses nothing: the pools and the static addresses of those
    /// before it, and leases as they are.
    ///
    /// # Errors
    /// Error 7: they cannot be read.
    pub fn passed_on(prev_result: &IpamResult) -> Result<Self> {
        let members = InputMembers::of_result(prev_result);
        let pools = members.pools()?.map(<[Value]>::to_vec);
        let leases = prev_result.extra.get(key::LEASES).and_then(Value::as_array).cloned();
        let static_addresses = members.static_addresses()?;
        Ok(Self { pools, leases, static_addresses, ..Self::default() })
    }

    /// Removes it from an answer to ADD, together with members that only the chain may write.
    ///
    /// # Errors
    /// A member is not of the form that the contract says. The path begins with "its answer".
    pub fn take_from(answer: &mut IpamResult) -> Result<Self> {
        let members = &mut answer.extra;
        for key in key::OF_THE_CHAIN {
            members.remove(key);
        }
        let pools = match take(members, key::POOLS) {
            None => None,
            Some(Value::Array(pools)) if pools.iter().all(Value::is_object) => Some(pools),
            Some(_) => return Err(malformed("pools: expected an array of objects")),
        };
        let leases = match take(members, key::LEASES) {
            None => None,
            Some(Value::Array(leases)) => Some(leases),
            Some(_) => return Err(malformed("leases: expected an array")),
        };
        let ipam = match take(members, key::IPAM) {
            None => Map::new(),
            Some(Value::Object(ipam)) => ipam,
            Some(_) => return Err(malformed("ipam: expected an object")),
        };
        let static_addresses = take(members, key::STATIC);
        let remembered = take(members, key::REMEMBERED);
        let remarks = take(members, key::REMARKS);
        let remarks = remarks.as_ref().and_then(Value::as_array).into_iter().flatten();
        Ok(Self {
            pools,
            leases,
            static_addresses: IpConfig::parse_all(static_addresses, "its answer.static")?,
            unsure: take(members, key::UNSURE) == Some(Value::Bool(true)),
            ipam,
            remembered: remembered.and_then(|words| words.as_str().map(str::to_owned)),
            remarks: remarks.filter_map(|words| words.as_str().map(str::to_owned)).collect(),
        })
    }

    /// Writes it to an answer, and replaces the answer's members of the contract.
    pub fn write_to(self, answer: &mut IpamResult) {
        let members = &mut answer.extra;
        let static_addresses: Vec<Value> =
            self.static_addresses.iter().map(IpConfig::to_json).collect();
        let own = [
            (key::POOLS, self.pools.map(Value::from)),
            (key::LEASES, self.leases.map(Value::from)),
            (key::STATIC, (!static_addresses.is_empty()).then(|| static_addresses.into())),
            (key::UNSURE, self.unsure.then(|| true.into())),
            (key::IPAM, (!self.ipam.is_empty()).then(|| self.ipam.into())),
            (key::REMEMBERED, self.remembered.map(Value::from)),
            (key::REMARKS, (!self.remarks.is_empty()).then(|| self.remarks.into())),
        ];
        for (key, value) in own {
            match value {
                Some(value) => members.insert(key.to_owned(), value),
                None => members.remove(key),
            };
        }
    }
}

fn take(members: &mut Map<String, Value>, key: &str) -> Option<Value> {
    members.remove(key).filter(|value| !value.is_null())
}

fn malformed(message: &str) -> Error {
    Error::new(ErrorCode::DELEGATE, format!("its answer's {message}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(answer: Value) -> Result<(DelegateAnswer, Value)> {
        let mut result = IpamResult::parse(&answer, "its answer").unwrap();
        let taken = DelegateAnswer::take_from(&mut result)?;
        Ok((taken, Value::Object(result.extra)))
    }

    #[test]
    fn an_answer_is_read_as_it_is_written() {
        let answer = DelegateAnswer {
            pools: Some(vec![json!({"name": "a", "later": 1})]),
            leases: Some(Vec::new()),
            static_addresses: vec![IpConfig::new("10.0.0.9/24".parse().unwrap(), None)],
            unsure: true,
            ipam: json!({"ranges": null}).as_object().unwrap().clone(),
            remembered: Some("for 3s".to_owned()),
            remarks: vec!["ipam.old has no effect".to_owned()],
        };
        let mut result = IpamResult::default();
        result.extra.insert("x".to_owned(), 1.into());
        answer.clone().write_to(&mut result);
        let (read, rest) = taken(Value::Object(result.extra)).unwrap();
        assert_eq!((read, rest), (answer, json!({"x": 1})));
    }

    #[test]
    fn the_chains_own_words_are_data_in_an_answer() {
        let words =
            json!({"undo": true, "fence": {"after": 1}, "reassert": true, "present": {}, "x": 1});
        assert_eq!(taken(words).unwrap(), (DelegateAnswer::default(), json!({"x": 1})));
    }

    #[test]
    fn a_malformed_member_is_named() {
        for (answer, message) in [
            (json!({"pools": {}}), "pools: expected an array"),
            (json!({"pools": [1]}), "pools: expected an array"),
            (json!({"leases": {}}), "leases: expected an array"),
            (json!({"ipam": []}), "ipam: expected an object"),
            (json!({"static": [{"address": "10.0.0.9"}]}), ".static[0].address: "),
        ] {
            let error = taken(answer).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
