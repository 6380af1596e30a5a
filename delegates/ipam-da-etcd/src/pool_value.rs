//! The value of a pool's key in the layout of whereabouts, by the rules of whereabouts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipam_kit::cni::address::parse_address;
use ipnet::IpNet;

/// The leases of a pool: lines `ADDRESS ID`, joined by line feeds, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolValue(Vec<PoolLine>);

/// A lease of a pool. The id names a container, which may hold several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolLine {
    pub(crate) address: IpAddr,
    pub(crate) id: String,
}

/// The value of a pool at a revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenPool {
    pub(crate) value: PoolValue,
    /// The modification revision; `None` if the key was missing.
    pub(crate) revision: Option<i64>,
}

/// Pools by their subnets, as one read showed them.
pub(crate) type SeenPools = BTreeMap<IpNet, SeenPool>;

/// The values of pools as they are written, by the subnets.
pub(crate) type PoolTexts = BTreeMap<IpNet, String>;

/// A line that is not a lease. whereabouts takes such a pool for empty, and overwrites it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedLine {
    /// Counted from one.
    number: usize,
    reason: &'static str,
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} {}", self.number, self.reason)
    }
}

/// Returns the values of the pools that a change makes others than they were seen.
pub(crate) fn changed_values(seen: &SeenPools, next: &SeenPools) -> PoolTexts {
    let changed = next
        .iter()
        .filter(|(subnet, pool)| seen.get(*subnet).is_none_or(|before| before.value != pool.value));
    changed.map(|(subnet, pool)| (*subnet, pool.value.to_text())).collect()
}

impl PoolValue {
    /// Reads a value. An empty one has no lease, and every other line has to be one: also the last.
    ///
    /// # Errors
    /// A line is malformed.
    pub(crate) fn parse(value: &[u8]) -> Result<Self, MalformedLine> {
        if value.is_empty() {
            return Ok(Self::default());
        }
        let lines = value.split(|byte| *byte == b'\n').zip(1..);
        let parsed = lines.map(|(line, number)| {
            PoolLine::parse(line).map_err(|reason| MalformedLine { number, reason })
        });
        Ok(Self(parsed.collect::<Result<_, _>>()?))
    }

    /// Returns the value as whereabouts writes it.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (number, PoolLine { address, id }) in self.0.iter().enumerate() {
            let between = if number == 0 { "" } else { "\n" };
            text.push_str(&format!("{between}{address} {id}"));
        }
        text
    }

    /// Every lease.
    pub(crate) fn lines(&self) -> &[PoolLine] {
        &self.0
    }

    /// Tells whether a container holds an address.
    pub(crate) fn has(&self, address: IpAddr, id: &str) -> bool {
        self.position(address, id).is_some()
    }

    /// Returns the holder of an address.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<&str> {
        self.0.iter().find(|line| line.address == address).map(|line| &*line.id)
    }

    /// Adds a lease.
    pub(crate) fn add(&mut self, address: IpAddr, id: &str) {
        self.0.push(PoolLine { address, id: id.to_owned() });
    }

    /// Removes a lease as whereabouts does: the last line takes its place. Answers whether it was
    /// there.
    pub(crate) fn remove(&mut self, address: IpAddr, id: &str) -> bool {
        let position = self.position(address, id);
        position.map(|position| self.0.swap_remove(position)).is_some()
    }

    fn position(&self, address: IpAddr, id: &str) -> Option<usize> {
        self.0.iter().position(|line| line.address == address && line.id == id)
    }
}

impl PoolLine {
    /// Returns the address with the prefix length of its pool.
    pub(crate) fn in_pool(&self, subnet: IpNet) -> IpNet {
        let address = IpNet::new(self.address, subnet.prefix_len());
        // Of another family than its pool.
        address.unwrap_or_else(|_| self.address.into())
    }

    fn parse(line: &[u8]) -> Result<Self, &'static str> {
        let line = std::str::from_utf8(line).map_err(|_| "is not UTF-8")?;
        let (address, id) = line.split_once(' ').ok_or("has no space between address and id")?;
        let address = parse_address(address).map_err(|_| "does not begin with an address")?;
        Ok(Self { address, id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `getRange` of whereabouts: what it makes of a value, with addresses as they are written. One
    /// line without a space, and the pool counts as empty.
    fn old_parse(value: &str) -> Vec<(String, String)> {
        let lines = value.split('\n').map(|line| {
            let (address, id) = line.split_once(' ')?;
            Some((address.to_owned(), id.to_owned()))
        });
        lines.collect::<Option<_>>().unwrap_or_default()
    }

    fn told(value: &PoolValue) -> Vec<(String, String)> {
        value.lines().iter().map(|line| (line.address.to_string(), line.id.clone())).collect()
    }

    #[test]
    fn whereabouts_reads_what_we_write_after_any_change() {
        let mut value = PoolValue::default();
        assert_eq!(value.to_text(), "");
        for (address, id) in [
            ("10.1.0.1", "c1"),
            ("10.1.0.2", "c1"),
            ("2001:db8::7", "c2"),
            ("10.1.0.3", "with a space"),
            ("10.1.0.1", "c3"),
            ("10.1.0.9", ""),
        ] {
            value.add(address.parse().unwrap(), id);
            assert_eq!(old_parse(&value.to_text()), told(&value));
            assert_eq!(PoolValue::parse(value.to_text().as_bytes()), Ok(value.clone()));
        }
        assert!(value.remove("10.1.0.1".parse().unwrap(), "c1"));
        assert!(!value.remove("10.1.0.1".parse().unwrap(), "c1"));
        assert_eq!(
            value.to_text(),
            "10.1.0.9 \n10.1.0.2 c1\n2001:db8::7 c2\n10.1.0.3 with a space\n10.1.0.1 c3"
        );
        assert_eq!(old_parse(&value.to_text()), told(&value));
        for PoolLine { address, id } in value.clone().lines() {
            assert!(value.has(*address, id) && value.remove(*address, id));
        }
        assert_eq!(value.to_text(), "");
    }

    #[test]
    fn a_line_that_is_not_a_lease_is_an_error_with_its_number() {
        for (value, message) in [
            ("garbage", "line 1 has no space between address and id"),
            ("10.1.0.1 c1\n", "line 2 has no space between address and id"),
            ("\n10.1.0.1 c1", "line 1 has no space between address and id"),
            ("10.1.0.1 c1\ngarbage\n10.1.0.2 c2", "line 2 has no space between address and id"),
            ("10.1.0.1\tc1", "line 1 has no space between address and id"),
            (" 10.1.0.1 c1", "line 1 does not begin with an address"),
            ("10.1.0.1 c1\n<nil> c2", "line 2 does not begin with an address"),
            ("10.1.0.1/24 c1", "line 1 does not begin with an address"),
        ] {
            let error = PoolValue::parse(value.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), message, "{value:?}");
        }
        let error = PoolValue::parse(b"10.1.0.1 c\xff").unwrap_err();
        assert_eq!(error.to_string(), "line 1 is not UTF-8");
    }
}
