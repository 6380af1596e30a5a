//! A range as it is written, and the rules by which systems read it.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::keys::Key;

/// A range as a configuration writes it, unread; members in the order the etcd plugin stores.
///
/// Null and, for the addresses, `""` mean absent, as in Go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RangeConfig {
    /// The first address to give out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_start: Option<String>,
    /// The last address to give out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<String>,
    /// The network, a CIDR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// The gateway, which is never given out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// CIDRs and addresses that are not given out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Rules of its own, whatever the [`RangeRules`]: [`RangeConfig::WHEREABOUTS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<String>,
    /// Members of others, kept as they came.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl RangeConfig {
    /// The members of a range.
    pub const KEYS: &'static [Key] = &[
        Key::Value("subnet"),
        Key::Value("rangeStart"),
        Key::Value("rangeEnd"),
        Key::Value("gateway"),
        Key::Value("exclude"),
        Key::Value("rules"),
    ];

    /// The `rules` of whereabouts: a range has no gateway but a written one, and gives no IPv4
    /// address that ends in .0.
    pub const WHEREABOUTS: &'static str = "whereabouts";

    /// Whether the `rules` of a range forbid to give an address out.
    pub fn forbids(rules: Option<&str>, address: IpAddr) -> bool {
        let ends_in_zero = matches!(address, IpAddr::V4(address) if address.octets()[3] == 0);
        rules == Some(Self::WHEREABOUTS) && ends_in_zero
    }

    /// Refuses `strategy` in a range, where it would have no effect. `path` leads to the ranges.
    ///
    /// # Errors
    /// A range has it; the advice names the places where it counts.
    pub(crate) fn refuse_strategy(ranges: &[Self], path: &str) -> Result<()> {
        match ranges.iter().position(|range| range.unknown.contains_key("strategy")) {
            None => Ok(()),
            Some(index) => {
                let message = "strategy applies to a whole pool, not to one range";
                Err(Error::config(format!("{path}[{index}].strategy"), message)
                    .advise("set strategy in ipam, for all pools, or in one of ipam.pools"))
            }
        }
    }
}

/// How a system reads a [`RangeConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeRules {
    /// Whether the subnet may have host bits.
    pub(crate) host_bits: HostBits,
    /// Where the gateway may lie.
    pub(crate) gateway: GatewayPlace,
    /// Whether subnets of one or two addresses are ranges.
    pub(crate) small: SmallSubnets,
    /// Which gateway a range has that writes none.
    pub(crate) default_gateway: DefaultGateway,
    /// Which ranges make a set.
    pub(crate) sets: Sets,
}

/// The meaning of a subnet such as `10.1.2.3/24` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostBits {
    /// An error.
    Refuse,
    /// Gateway and start are by default the address after the one written.
    Accept,
    /// The subnet without them.
    Ignore,
}

/// Where a gateway may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatewayPlace {
    /// Anywhere in the subnet's family.
    Anywhere,
    /// In the subnet only.
    InsideSubnet,
}

/// Which gateway a range has that writes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultGateway {
    /// The first address, which is not given out then.
    First,
    /// None.
    Nothing,
}

/// The meaning of a /31, /32, /127 or /128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SmallSubnets {
    /// Too small to allocate from: an error.
    Refuse,
    /// Every address is given out; the gateway is missing unless it is written.
    Accept,
}

/// Which ranges make a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sets {
    /// Ranges of one family, none overlapping another, each with its bounds in its subnet.
    Strict,
    /// Any ranges, in order: the first that spans an address decides about it. Bounds only filter
    /// the addresses of the subnet.
    Lenient,
}

impl RangeRules {
    /// host-local's rules.
    pub const HOST_LOCAL: Self = Self {
        host_bits: HostBits::Refuse,
        gateway: GatewayPlace::Anywhere,
        small: SmallSubnets::Refuse,
        default_gateway: DefaultGateway::First,
        sets: Sets::Strict,
    };

    /// The rules of the etcd plugins, cni-ipam-etcd and host-etcd.
    pub const ETCD: Self = Self {
        host_bits: HostBits::Accept,
        gateway: GatewayPlace::InsideSubnet,
        small: SmallSubnets::Refuse,
        default_gateway: DefaultGateway::First,
        sets: Sets::Strict,
    };

    /// The rules of an allocator: the writer of the pool has checked it by rules of its own.
    pub const ANY: Self = Self {
        host_bits: HostBits::Accept,
        gateway: GatewayPlace::Anywhere,
        small: SmallSubnets::Accept,
        default_gateway: DefaultGateway::First,
        sets: Sets::Strict,
    };

    /// [`RangeRules::ANY`], without a gateway where none is written.
    pub const WITHOUT_GATEWAY: Self =
        Self { default_gateway: DefaultGateway::Nothing, ..Self::ANY };

    /// The rules of passcod's ipam-da-consul, with one exception: the network and the broadcast
    /// address are given out only if they are written.
    pub const CONSUL: Self = Self {
        host_bits: HostBits::Ignore,
        default_gateway: DefaultGateway::Nothing,
        sets: Sets::Lenient,
        ..Self::ANY
    };

    /// Our own rules: host-local's, with small subnets.
    pub const OURS: Self = Self { small: SmallSubnets::Accept, ..Self::HOST_LOCAL };
}

fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::keys::names;

    #[test]
    fn every_member_is_declared() {
        let range = RangeConfig {
            range_start: Some("a".to_owned()),
            range_end: Some("b".to_owned()),
            subnet: Some("c".to_owned()),
            gateway: Some("d".to_owned()),
            exclude: vec!["e".to_owned()],
            rules: Some("f".to_owned()),
            unknown: Map::new(),
        };
        let written = json!(range);
        let mut members: Vec<_> = written.as_object().unwrap().keys().map(String::as_str).collect();
        let mut declared = names(RangeConfig::KEYS);
        members.sort_unstable();
        declared.sort_unstable();
        assert_eq!(members, declared);
    }

    #[test]
    fn members_keep_the_order_the_etcd_plugin_stores() {
        let text = r#"{"rangeStart":"203.0.113.1","rangeEnd":"203.0.113.254","subnet":"203.0.113.0/24","gateway":"203.0.113.1"}"#;
        let config: RangeConfig = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&config).unwrap(), text);
    }

    #[test]
    fn null_is_absent_and_unknown_members_stay() {
        let text = r#"{"subnet":"10.0.0.0/8","gateway":null,"exclude":null,"vlan":7}"#;
        let config: RangeConfig = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&config).unwrap(), r#"{"subnet":"10.0.0.0/8","vlan":7}"#);
    }
}
