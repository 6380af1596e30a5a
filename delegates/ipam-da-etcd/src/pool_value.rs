//! The value of a pool's key in the layout of whereabouts, by the rules of whereabouts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipam_kit::cni::address::parse_address;
use ipnet::IpNet;

/// The leases of a pool: lines `ADDRESS ID`, joined by line feeds, in any order. Clones share the
/// text, which may be long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolValue(Arc<ParsedText>);

/// The text of a value, and the address of each line with its place, so that none is searched twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ParsedText {
    text: String,
    lines: Vec<ParsedLine>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ParsedLine {
    address: IpAddr,
    start: usize,
}

/// A lease of a pool. The id names a container, which may hold several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolLine<'a> {
    pub(crate) address: IpAddr,
    pub(crate) id: &'a str,
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

/// The values of pools, by the subnets.
pub(crate) type PoolValues = BTreeMap<IpNet, PoolValue>;

/// A line that is not a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedLine {
    /// Counted from one.
    number: usize,
    reason: &'static str,
}

/// The length of a short line, in bytes.
const SHORT_LINE: usize = 16;

const NO_SPACE: &str = "has no space between address and id";

impl MalformedLine {
    /// Tells whether whereabouts takes the pool of such a line for empty, and overwrites it.
    pub(crate) fn empties_pool(&self) -> bool {
        self.reason == NO_SPACE
    }
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} {}", self.number, self.reason)
    }
}

/// Returns the values of the pools that a change makes others than they were seen.
pub(crate) fn changed_values(seen: &SeenPools, next: &SeenPools) -> PoolValues {
    let changed = next
        .iter()
        .filter(|(subnet, pool)| seen.get(*subnet).is_none_or(|before| before.value != pool.value));
    changed.map(|(subnet, pool)| (*subnet, pool.value.clone())).collect()
}

impl PoolValue {
    /// Reads a value. Each line, also the last, has to be a lease, unless the value is empty.
    ///
    /// # Errors
    /// A line is malformed.
    pub(crate) fn parse(value: Vec<u8>) -> Result<Self, MalformedLine> {
        let text = String::from_utf8(value).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let number = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
            MalformedLine { number, reason: "is not UTF-8" }
        })?;
        // Room that no line needs costs no memory.
        let mut lines = Vec::with_capacity(text.len() / SHORT_LINE);
        if !text.is_empty() {
            let mut start = 0;
            for (line, number) in text.split('\n').zip(1..) {
                let address =
                    address_of(line).map_err(|reason| MalformedLine { number, reason })?;
                lines.push(ParsedLine { address, start });
                start += line.len() + 1;
            }
        }
        Ok(Self(Arc::new(ParsedText { text, lines })))
    }

    /// Returns the value as whereabouts writes it.
    pub(crate) fn as_str(&self) -> &str {
        &self.0.text
    }

    /// The address of every lease.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.lines.iter().map(|line| line.address)
    }

    /// Every lease.
    pub(crate) fn lines(&self) -> impl Iterator<Item = PoolLine<'_>> {
        self.texts().map(|(address, line)| PoolLine { address, id: id_of(line) })
    }

    /// The leases of a container.
    pub(crate) fn lines_of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = PoolLine<'a>> {
        let lines = self.texts().filter(move |(_, line)| line.ends_with(id));
        lines
            .map(|(address, line)| PoolLine { address, id: id_of(line) })
            .filter(move |line| line.id == id)
    }

    /// Tells whether a container holds an address.
    pub(crate) fn has(&self, address: IpAddr, id: &str) -> bool {
        self.lines_of(id).any(|line| line.address == address)
    }

    /// Returns the holder of an address.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<&str> {
        self.texts().find(|(held, _)| *held == address).map(|(_, line)| id_of(line))
    }

    /// Adds a lease.
    pub(crate) fn add(&mut self, address: IpAddr, id: &str) {
        let between = if self.as_str().is_empty() { "" } else { "\n" };
        let text = [self.as_str(), &format!("{between}{address} {id}")].concat();
        let mut lines = self.0.lines.clone();
        lines.push(ParsedLine { address, start: self.as_str().len() + between.len() });
        self.0 = Arc::new(ParsedText { text, lines });
    }

    /// Removes a lease as whereabouts does: the last line takes its place. Answers whether it was
    /// there.
    pub(crate) fn remove(&mut self, address: IpAddr, id: &str) -> bool {
        let is_gone = |(held, line): (IpAddr, &str)| held == address && id_of(line) == id;
        let Some(position) = self.texts().position(is_gone) else {
            return false;
        };
        let text = self.as_str();
        let mut lines = self.0.lines.clone();
        let gone = lines.swap_remove(position);
        let text = match &mut lines[position..] {
            [] => text[..gone.start].strip_suffix('\n').unwrap_or_default().to_owned(),
            [moved, later @ ..] => {
                let end = self.0.lines[position + 1].start - 1;
                let (line, between) = (&text[moved.start..], &text[end..moved.start - 1]);
                moved.start = gone.start;
                for other in later {
                    other.start = other.start + line.len() - (end - gone.start);
                }
                [&text[..gone.start], line, between].concat()
            }
        };
        self.0 = Arc::new(ParsedText { text, lines });
        true
    }

    /// Every line, with its address.
    fn texts(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        let ParsedText { text, lines } = &*self.0;
        let ends = lines.iter().skip(1).map(|next| next.start - 1).chain([text.len()]);
        lines.iter().zip(ends).map(|(line, end)| (line.address, &text[line.start..end]))
    }
}

impl PoolLine<'_> {
    /// Returns the address with the prefix length of its pool.
    pub(crate) fn in_pool(&self, subnet: IpNet) -> IpNet {
        let address = IpNet::new(self.address, subnet.prefix_len());
        // Of another family than its pool.
        address.unwrap_or_else(|_| self.address.into())
    }
}

fn address_of(line: &str) -> Result<IpAddr, &'static str> {
    let (address, _) = line.split_once(' ').ok_or(NO_SPACE)?;
    parse_address(address).map_err(|_| "does not begin with an address")
}

fn id_of(line: &str) -> &str {
    line.split_once(' ').map_or("", |(_, id)| id)
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
        value.lines().map(|line| (line.address.to_string(), line.id.to_owned())).collect()
    }

    #[test]
    fn whereabouts_reads_what_we_write_after_any_change() {
        let mut value = PoolValue::default();
        assert_eq!(value.as_str(), "");
        for (address, id) in [
            ("10.1.0.1", "c1"),
            ("10.1.0.2", "c1"),
            ("2001:db8::7", "c2"),
            ("10.1.0.3", "with a space"),
            ("10.1.0.1", "c3"),
            ("10.1.0.9", ""),
        ] {
            value.add(address.parse().unwrap(), id);
            assert_eq!(old_parse(value.as_str()), told(&value));
            assert_eq!(PoolValue::parse(value.as_str().into()), Ok(value.clone()));
        }
        assert!(value.remove("10.1.0.1".parse().unwrap(), "c1"));
        assert!(!value.remove("10.1.0.1".parse().unwrap(), "c1"));
        assert_eq!(PoolValue::parse(value.as_str().into()), Ok(value.clone()));
        assert_eq!(
            value.as_str(),
            "10.1.0.9 \n10.1.0.2 c1\n2001:db8::7 c2\n10.1.0.3 with a space\n10.1.0.1 c3"
        );
        assert_eq!(old_parse(value.as_str()), told(&value));
        for PoolLine { address, id } in value.clone().lines() {
            assert!(value.has(address, id) && value.remove(address, id));
            assert_eq!(PoolValue::parse(value.as_str().into()), Ok(value.clone()));
        }
        assert_eq!(value.as_str(), "");
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
            let error = PoolValue::parse(value.into()).unwrap_err();
            assert_eq!(error.to_string(), message, "{value:?}");
        }
        let error = PoolValue::parse(b"10.1.0.1 c\xff".into()).unwrap_err();
        assert_eq!(error.to_string(), "line 1 is not UTF-8");
    }
}
