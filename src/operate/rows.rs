use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One address in the answer of an allocator's `list` or `release`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRow {
    /// The address that is held.
    pub address: IpAddr,
    /// The pool's name, where it has one.
    pub pool: Option<String>,
    /// The owner's container; `None` where the ledger does not say.
    #[serde(rename = "containerID")]
    pub container: Option<String>,
    /// The owner's interface.
    pub ifname: Option<String>,
    /// The owner's node; `None` in a ledger that belongs to one node.
    pub node: Option<String>,
    /// How long ago it was taken or last renewed, in seconds.
    pub age_seconds: Option<u64>,
    /// What the ledger's entry is worth.
    pub state: LeaseState,
    /// What else there is to say, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a ledger's entry is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseState {
    /// An owner holds the address.
    Held,
    /// Something that a killed call or another program has left, which blocks the address.
    Leftover,
    /// The entry cannot be read.
    Unreadable,
}

impl LeaseState {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Leftover => "leftover",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One pool in the answer of an allocator's `pools`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolRow {
    /// The pool's name, where it has one.
    pub pool: Option<String>,
    /// First and last address of each range, as in `10.1.2.1-10.1.2.254,10.1.3.1-10.1.3.9`.
    pub ranges: String,
    /// How many addresses it has.
    pub size: Count,
    /// How many are held; `None` where that cannot be told.
    pub held: Option<Count>,
    /// How many are free; `None` where that cannot be told.
    pub free: Option<Count>,
    /// The pool in pieces, at most 1024, in order: what the map is drawn from.
    #[serde(default)]
    pub blocks: Vec<Block>,
}

/// Neighbouring addresses of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The first address.
    pub from: IpAddr,
    /// The last address.
    pub to: IpAddr,
    /// How many addresses the pool has between the two.
    pub size: Count,
    /// How many of them are held; `None` where that cannot be told.
    pub held: Option<Count>,
}

/// How many addresses: a number in JSON, or a text where it does not fit 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "serde_json::Value", try_from = "serde_json::Value")]
pub struct Count(pub u128);

impl From<Count> for serde_json::Value {
    fn from(Count(count): Count) -> Self {
        match u64::try_from(count) {
            Ok(number) => number.into(),
            Err(_) => count.to_string().into(),
        }
    }
}

impl TryFrom<serde_json::Value> for Count {
    type Error = &'static str;

    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        let text = value.as_str().and_then(|text| text.parse().ok());
        let count = value.as_u64().map(u128::from).or(text);
        count.map(Count).ok_or("expected how many: a whole number, or one as text")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn rows_are_read_as_they_are_written() {
        let value = json!([
            {"address": "10.1.2.3", "pool": "blue", "containerID": "abc", "ifname": "eth0",
             "node": "n", "ageSeconds": 12, "state": "held"},
            {"address": "fd00::1", "pool": null, "containerID": null, "ifname": null,
             "node": null, "ageSeconds": null, "state": "unreadable", "note": "empty file"},
        ]);
        let rows: Vec<LeaseRow> = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(rows[0].state.as_str(), "held");
        assert_eq!(serde_json::to_value(&rows).unwrap(), value);

        let short = json!({"address": "10.1.2.3", "state": "leftover", "later": 1});
        let row: LeaseRow = serde_json::from_value(short).unwrap();
        assert_eq!((row.container, row.note), (None, None), "what is missing is not known");
    }

    #[test]
    fn a_count_beyond_64_bits_is_a_text() {
        let value = json!({
            "pool": null, "ranges": "fd00::1-fd00::ffff:ffff:ffff:ffff:ffff",
            "size": "1208925819614629174706175", "held": 3, "free": null,
            "blocks": [{"from": "fd00::1", "to": "fd00::4", "size": 4, "held": null}],
        });
        let row: PoolRow = serde_json::from_value(value.clone()).unwrap();
        assert_eq!((row.size.0, row.held), ((1 << 80) - 1, Some(Count(3))));
        assert_eq!(serde_json::to_value(&row).unwrap(), value);
        for bad in [json!(-1), json!(1.5), json!("many"), json!(true)] {
            assert!(serde_json::from_value::<Count>(bad.clone()).is_err(), "{bad}");
        }
        assert_eq!(serde_json::from_value::<Count>(Value::from("7")).unwrap(), Count(7));
    }
}
