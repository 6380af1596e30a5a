use serde_json::{Map, Value};

use super::{Purpose, key};
use crate::cni::{IpConfig, IpamResult};

/// The chain's message to a delegate in `prevResult`, beside the CNI result. A delegate reads it as
/// [`InputMembers`](super::InputMembers).
///
/// [`Default`] is a call of the runtime that is about no pool and no lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelegateInput {
    /// The pools to serve; `None` if no delegate has named any.
    pub pools: Option<Vec<Value>>,
    /// The leases that the call is about, as the delegate answered them.
    pub leases: Vec<Value>,
    /// Addresses that selectors named outside of pools, without those already answered.
    pub static_addresses: Vec<IpConfig>,
    /// Why the delegate is called.
    pub purpose: Purpose,
    /// The section `ipam` of the present configuration, if the record names the store by another
    /// one.
    pub present: Option<Map<String, Value>>,
}

impl DelegateInput {
    /// Writes it to a `prevResult`, and replaces all its members of the contract.
    pub fn write_to(self, prev_result: &mut IpamResult) {
        Self::strip(prev_result);
        let members = &mut prev_result.extra;
        if let Some(pools) = self.pools {
            members.insert(key::POOLS.to_owned(), pools.into());
        }
        if !self.leases.is_empty() {
            members.insert(key::LEASES.to_owned(), self.leases.into());
        }
        if !self.static_addresses.is_empty() {
            let addresses = self.static_addresses.iter().map(IpConfig::to_json).collect();
            members.insert(key::STATIC.to_owned(), addresses);
        }
        self.purpose.write(members);
        if let Some(ipam) = self.present {
            members.insert(key::PRESENT.to_owned(), ipam.into());
        }
    }

    /// Removes all members of the contract from a `prevResult` that did not come from a chain.
    pub fn strip(prev_result: &mut IpamResult) {
        for key in key::OF_INPUT {
            prev_result.extra.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::InputMembers;
    use super::*;
    use crate::cni::Version;

    #[test]
    fn every_purpose_is_read_as_it_is_written() {
        let between = |before| Purpose::TakenBetween { after: 5, before };
        for (purpose, wire) in [
            (Purpose::Runtime, json!({})),
            (Purpose::Undo, json!({"undo": true})),
            (between(None), json!({"fence": {"after": 5}})),
            (between(Some(7)), json!({"fence": {"after": 5, "before": 7}})),
            (Purpose::Reassert, json!({"reassert": true})),
        ] {
            let mut result = IpamResult::default();
            DelegateInput { purpose, ..DelegateInput::default() }.write_to(&mut result);
            assert_eq!(Value::Object(result.extra.clone()), wire);
            assert_eq!(InputMembers::of_result(&result).purpose().unwrap(), purpose);
        }
    }

    #[test]
    fn a_purpose_that_cannot_be_read_is_an_error_and_not_the_runtimes() {
        for wire in [json!({"undo": 1}), json!({"fence": []}), json!({"fence": {"after": "x"}})] {
            let error = InputMembers::of(Some(&wire)).purpose().unwrap_err();
            assert!(error.to_string().starts_with("prevResult."), "{error}");
        }
        for wire in [json!({"undo": null, "fence": null}), json!({"undo": false}), json!(null)] {
            assert_eq!(InputMembers::of(Some(&wire)).purpose().unwrap(), Purpose::Runtime);
        }
    }

    #[test]
    fn members_that_are_not_of_the_contract_stay() {
        let wire =
            json!({"cniVersion": "1.1.0", "ips": [], "x": {"y": 1}, "undo": true, "pools": []});
        let mut result = IpamResult::parse(&wire, "prevResult").unwrap();
        let input = DelegateInput {
            leases: vec![json!("mine")],
            static_addresses: IpConfig::parse_all(
                Some(json!([{"address": "10.0.0.9/24", "gateway": "10.0.0.1", "z": 1}])),
                "p",
            )
            .unwrap(),
            present: json!({"type": "t"}).as_object().cloned(),
            ..DelegateInput::default()
        };
        input.clone().write_to(&mut result);
        assert_eq!(
            result.to_json(Version::V1_1_0).unwrap(),
            json!({"cniVersion": "1.1.0", "ips": [], "x": {"y": 1}, "leases": ["mine"], "present": {"type": "t"},
                   "static": [{"address": "10.0.0.9/24", "gateway": "10.0.0.1", "z": 1}]})
        );
        let members = InputMembers::of_result(&result);
        assert_eq!(members.pools().unwrap(), None);
        assert_eq!(members.leases::<Value>().unwrap(), input.leases);
        assert_eq!(members.static_addresses().unwrap(), input.static_addresses);
        assert_eq!(members.present(), input.present.as_ref());
    }
}
