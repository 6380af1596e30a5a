use std::net::IpAddr;

use serde_json::Value;

use super::Row;
use ipam_kit::cni::address::parse_address;
use ipam_kit::error::{Error, Result};

/// One address in the answer of an allocator's `list` or `release`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The address that is held.
    pub address: IpAddr,
    /// The pool's name; `None` for a pool without a name.
    pub(crate) pool: Option<String>,
    /// The owner's container (`containerID`); `None` where the ledger does not say.
    pub container: Option<String>,
    /// The owner's interface.
    pub ifname: Option<String>,
    /// The owner's node; `None` where neither the ledger nor the configuration (`ipam.node`, which
    /// the chain sets) names it.
    pub node: Option<String>,
    /// The seconds since it was taken or last renewed (`ageSeconds`).
    pub(crate) age: Option<u64>,
    /// The state of the ledger's entry.
    pub(crate) state: LeaseState,
    /// A remark for people.
    pub(crate) note: Option<String>,
}

/// The state of a ledger's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// An owner holds the address.
    Held,
    /// A rest of a killed call or of another program, which blocks the address.
    Leftover,
    /// The entry cannot be read.
    Unreadable,
    /// It is kept for a sticky name, which no container holds.
    Kept,
}

/// One pool in the answer of an allocator's `pools`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// The pool's name; `None` for a pool without a name.
    pub(crate) pool: Option<String>,
    /// First and last address of each range, as in `10.1.2.1-10.1.2.254,10.1.3.1-10.1.3.9`.
    pub(crate) ranges: String,
    /// The number of its addresses.
    pub(crate) size: u128,
    /// The number of held addresses; `None` if it is unknown.
    pub(crate) held: Option<u128>,
    /// The number of free addresses; `None` if it is unknown.
    pub(crate) free: Option<u128>,
    /// The gateways among its addresses, which are never given.
    pub gateways: Vec<IpAddr>,
    /// The `rules` of its ranges, which forbid to give some of its addresses.
    pub(crate) rules: Option<String>,
    /// The pool in pieces, at most 1024 unless excludes cut it into more: the cells of the map.
    pub blocks: Vec<Block>,
}

/// Neighbouring addresses of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first address.
    pub from: IpAddr,
    /// The last address.
    pub to: IpAddr,
    /// The number of the pool's addresses between the two.
    pub(crate) size: u128,
    /// The number of held ones among them; `None` if it is unknown.
    pub(crate) held: Option<u128>,
}

impl LeaseState {
    const ALL: [Self; 4] = [Self::Held, Self::Leftover, Self::Unreadable, Self::Kept];

    /// The word on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Leftover => "leftover",
            Self::Unreadable => "unreadable",
            Self::Kept => "kept",
        }
    }
}

impl LeaseRow {
    /// Reads a row; `path` is where it is, for errors. Unknown members are ignored.
    ///
    /// # Errors
    /// Error 7: a member is of the wrong type, or `address` or `state` is missing.
    pub fn parse(row: &Value, path: &str) -> Result<Self> {
        let members = RowMembers { row, path };
        let state = members.text("state")?.unwrap_or_default();
        let known = LeaseState::ALL.into_iter().find(|known| known.as_str() == state);
        Ok(Self {
            address: members.address("address")?,
            pool: members.text("pool")?,
            container: members.text("containerID")?,
            ifname: members.text("ifname")?,
            node: members.text("node")?,
            age: members.optional("ageSeconds", "a whole number", Value::as_u64)?,
            state: known
                .ok_or_else(|| members.wrong("state", "held, leftover, unreadable or kept"))?,
            note: members.text("note")?,
        })
    }

    /// The row on the wire.
    pub(crate) fn to_row(&self) -> Row {
        let mut row = Row::default();
        row.set_text("address", &self.address.to_string());
        row.set_text_or_null("pool", self.pool.as_deref());
        row.set_text_or_null("containerID", self.container.as_deref());
        row.set_text_or_null("ifname", self.ifname.as_deref());
        row.set_text_or_null("node", self.node.as_deref());
        row.set("ageSeconds", self.age.into());
        row.set_text("state", self.state.as_str());
        if let Some(note) = &self.note {
            row.set_text("note", note);
        }
        row
    }
}

impl PoolRow {
    /// Reads a row; `path` is where it is, for errors. Unknown members are ignored.
    ///
    /// # Errors
    /// Error 7: a member is of the wrong type, or a required one is missing.
    pub fn parse(row: &Value, path: &str) -> Result<Self> {
        let members = RowMembers { row, path };
        let list = members.optional("blocks", "an array", |value| value.as_array().cloned())?;
        let mut blocks = Vec::new();
        for (i, block) in list.iter().flatten().enumerate() {
            blocks.push(Block::parse(block, &format!("{path}.blocks[{i}]"))?);
        }
        Ok(Self {
            pool: members.text("pool")?,
            ranges: members.text("ranges")?.unwrap_or_default(),
            size: members.size()?,
            held: members.count("held")?,
            free: members.count("free")?,
            gateways: members.addresses("gateways")?,
            rules: members.text("rules")?,
            blocks,
        })
    }

    /// The row on the wire.
    pub(crate) fn to_row(&self) -> Row {
        let blocks: Vec<Value> = self.blocks.iter().copied().map(Block::to_json).collect();
        let mut row = Row::default();
        row.set_text_or_null("pool", self.pool.as_deref());
        row.set_text("ranges", &self.ranges);
        row.set("size", count_to_json(Some(self.size)));
        row.set("held", count_to_json(self.held));
        row.set("free", count_to_json(self.free));
        let gateways: Vec<String> = self.gateways.iter().map(IpAddr::to_string).collect();
        row.set("gateways", gateways.into());
        if let Some(rules) = &self.rules {
            row.set_text("rules", rules);
        }
        row.set("blocks", blocks.into());
        row
    }
}

impl Block {
    fn parse(block: &Value, path: &str) -> Result<Self> {
        let members = RowMembers { row: block, path };
        Ok(Self {
            from: members.address("from")?,
            to: members.address("to")?,
            size: members.size()?,
            held: members.count("held")?,
        })
    }

    fn to_json(self) -> Value {
        let mut row = Row::default();
        row.set_text("from", &self.from.to_string());
        row.set_text("to", &self.to.to_string());
        row.set("size", count_to_json(Some(self.size)));
        row.set("held", count_to_json(self.held));
        row.into()
    }
}

/// A count as a number, or as a string if it does not fit 64 bits.
fn count_to_json(count: Option<u128>) -> Value {
    match count {
        None => Value::Null,
        Some(count) => u64::try_from(count).map_or_else(|_| count.to_string().into(), Value::from),
    }
}

/// The members of a row, and where it is.
struct RowMembers<'a> {
    row: &'a Value,
    path: &'a str,
}

impl RowMembers<'_> {
    fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::config(format!("{}.{key}", self.path), format!("expected {expected}"))
    }

    /// A member; `None` if it is missing or null.
    fn optional<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.row.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        self.optional(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn address(&self, key: &str) -> Result<IpAddr> {
        let address = self.row.get(key).and_then(Value::as_str).map(parse_address);
        address.and_then(Result::ok).ok_or_else(|| self.wrong(key, "an address"))
    }

    fn addresses(&self, key: &str) -> Result<Vec<IpAddr>> {
        let parse = |value: &Value| {
            let texts = value.as_array()?.iter().map(Value::as_str);
            texts.map(|text| parse_address(text?).ok()).collect()
        };
        Ok(self.optional(key, "an array of addresses", parse)?.unwrap_or_default())
    }

    fn count(&self, key: &str) -> Result<Option<u128>> {
        self.optional(key, "a whole number, or a string with one", |value| {
            let text = value.as_str().and_then(|text| text.parse().ok());
            value.as_u64().map(u128::from).or(text)
        })
    }

    fn size(&self) -> Result<u128> {
        self.count("size")?.ok_or_else(|| self.wrong("size", "the number of addresses"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_is_read_as_it_is_written() {
        for value in [
            json!({"address": "10.1.2.3", "pool": "blue", "containerID": "abc", "ifname": "eth0",
                   "node": "n", "ageSeconds": 12, "state": "held"}),
            json!({"address": "fd00::1", "pool": null, "containerID": null, "ifname": null,
                   "node": null, "ageSeconds": null, "state": "unreadable", "note": "empty file"}),
        ] {
            assert_eq!(Value::from(LeaseRow::parse(&value, "[0]").unwrap().to_row()), value);
        }
        let short = json!({"address": "10.1.2.3", "state": "leftover", "later": 1});
        let row = LeaseRow::parse(&short, "[0]").unwrap();
        assert_eq!((row.container, row.note, row.state), (None, None, LeaseState::Leftover));
    }

    #[test]
    fn a_count_beyond_64_bits_is_a_string() {
        let value = json!({
            "pool": null, "ranges": "fd00::1-fd00::ffff:ffff:ffff:ffff:ffff",
            "size": "1208925819614629174706175", "held": 3, "free": null, "gateways": ["fd00::1"],
            "blocks": [{"from": "fd00::1", "to": "fd00::4", "size": 4, "held": null}],
        });
        let row = PoolRow::parse(&value, "[0]").unwrap();
        assert_eq!((row.size, row.held, row.blocks.len()), ((1 << 80) - 1, Some(3), 1));
        assert_eq!(Value::from(row.to_row()), value);
    }

    #[test]
    fn wrong_members_are_named() {
        for (value, start) in [
            (json!({"address": "10.1.2", "state": "held"}), "[3].address: expected an address"),
            (json!({"address": "10.1.2.3", "state": "gone"}), "[3].state: expected held"),
            (json!({"address": "10.1.2.3", "state": "held", "pool": 1}), "[3].pool: "),
            (json!([]), "[3].address: "),
        ] {
            let error = LeaseRow::parse(&value, "[3]").unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
        for (value, start) in [
            (json!({"ranges": ""}), "[3].size: expected the number of addresses"),
            (json!({"size": -1}), "[3].size: "),
            (json!({"size": "many"}), "[3].size: "),
            (json!({"size": 1, "blocks": {}}), "[3].blocks: "),
            (json!({"size": 1, "gateways": ["x"]}), "[3].gateways: expected an array of addr"),
            (json!({"size": 1, "blocks": [{"from": "10.0.0.1"}]}), "[3].blocks[0].to: "),
        ] {
            let error = PoolRow::parse(&value, "[3]").unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
