//! The addresses that a listing of keys with a common prefix shows.
//!
//! Consul lists keys by their prefix alone: `…/10.5.123.` is one block of 256 addresses,
//! `…/10.5.12` is eleven blocks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A prefix of written addresses, with the stretches of addresses that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) prefix: String,
    /// Each from one address to another, both included; the first has the address that was asked
    /// for.
    pub(crate) stretches: Vec<(IpAddr, IpAddr)>,
    /// Whether no window shows more without a hole.
    pub(crate) is_widest: bool,
}

/// How many addresses a window shows at least where others claim at the same time.
const CONTENDED_WIDTH: u128 = 2048;

/// Returns windows to list one after the other, for `width` addresses from `from` on.
///
/// Without contention a window has no hole, because the lowest free address is wanted: a block of
/// 256, then all addresses with the same first 16 bits. IPv6 has no blocks, so that there the only
/// window has the same first 112 bits. Under contention one window is enough, and may have holes:
/// `10.5.12` shows the blocks 12 and 120 to 129.
pub(crate) fn windows(from: IpAddr, width: u128, contended: bool) -> Vec<Window> {
    let Some(line) = AddressDigits::of(from) else { return Vec::new() };
    let fits_block = line.unit > 1 && width <= line.unit;
    if contended {
        let wide = line.with_holes(width.max(CONTENDED_WIDTH));
        // Digits of the number 0 have no holes: nothing wide begins with them but everything.
        let without_holes = || if fits_block { line.block() } else { line.whole() };
        return vec![wide.unwrap_or_else(without_holes)];
    }
    if fits_block { vec![line.block(), line.whole()] } else { vec![line.whole()] }
}

/// The part of a written address by which windows differ: the third number of IPv4, the last of
/// IPv6.
struct AddressDigits {
    /// The text before the number.
    head: String,
    /// The number as it is written.
    digits: String,
    base: u32,
    largest: u32,
    /// How many addresses share one number.
    unit: u128,
    from: IpAddr,
}

impl AddressDigits {
    fn of(from: IpAddr) -> Option<Self> {
        match from {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                let head = format!("{a}.{b}.");
                Some(Self { head, digits: c.to_string(), base: 10, largest: 255, unit: 256, from })
            }
            IpAddr::V6(address) => {
                let text = address.to_string();
                let (head, digits) = text.rsplit_once(':')?;
                // An address that ends in :: leaves zeros out, and others have another prefix.
                let is_plain = !digits.is_empty() && !digits.contains('.');
                is_plain.then(|| Self {
                    head: format!("{head}:"),
                    digits: digits.to_owned(),
                    base: 16,
                    largest: 0xffff,
                    unit: 1,
                    from,
                })
            }
        }
    }

    fn number(&self, digits: &str) -> u32 {
        u32::from_str_radix(digits, self.base).unwrap_or(0)
    }

    /// Returns the block of addresses with this number.
    fn block(&self) -> Window {
        let number = self.number(&self.digits);
        self.window(format!("{}.", self.digits), vec![(number, number)], false)
    }

    /// Returns the addresses with any number.
    fn whole(&self) -> Window {
        self.window(String::new(), vec![(0, self.largest)], true)
    }

    /// Returns the numbers that begin with these digits.
    fn stretches(&self, digits: &str) -> Vec<(u32, u32)> {
        let number = self.number(digits);
        if number == 0 {
            return vec![(0, 0)];
        }
        (0..4)
            .map(|exponent| self.base.pow(exponent))
            .map(|power| (number * power, (number * power + power - 1).min(self.largest)))
            .filter(|(low, _)| *low <= self.largest)
            .collect()
    }

    /// Returns the narrowest window that shows at least `width` addresses.
    fn with_holes(&self, width: u128) -> Option<Window> {
        (1..=self.digits.len()).rev().find_map(|kept| {
            let digits = &self.digits[..kept];
            let stretches = self.stretches(digits);
            let shown = stretches.iter().map(|(low, high)| u128::from(high - low + 1) * self.unit);
            (shown.sum::<u128>() >= width).then(|| self.window(digits.to_owned(), stretches, false))
        })
    }

    fn window(&self, digits: String, mut numbers: Vec<(u32, u32)>, is_widest: bool) -> Window {
        let own = self.number(&self.digits);
        numbers.sort_by_key(|(low, high)| (!(*low <= own && own <= *high), *low));
        let stretches = numbers.iter().map(|(low, high)| self.addresses(*low, *high)).collect();
        Window { prefix: format!("{}{digits}", self.head), stretches, is_widest }
    }

    fn addresses(&self, low: u32, high: u32) -> (IpAddr, IpAddr) {
        match self.from {
            IpAddr::V4(address) => {
                let base = u32::from(address) & 0xffff_0000;
                let first = Ipv4Addr::from(base | (low << 8));
                let last = Ipv4Addr::from(base | (high << 8) | 0xff);
                (first.into(), last.into())
            }
            IpAddr::V6(address) => {
                let base = u128::from(address) & !0xffff;
                let first = Ipv6Addr::from(base | u128::from(low));
                let last = Ipv6Addr::from(base | u128::from(high));
                (first.into(), last.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(from: &str, asked: u128, contended: bool) -> Vec<(String, Vec<String>)> {
        let windows = windows(from.parse().unwrap(), asked, contended).into_iter();
        let stretches = |(from, to): &(IpAddr, IpAddr)| format!("{from}-{to}");
        windows.map(|w| (w.prefix, w.stretches.iter().map(stretches).collect())).collect()
    }

    fn window(text: &str, stretches: &[&str]) -> (String, Vec<String>) {
        (text.to_owned(), stretches.iter().copied().map(str::to_owned).collect())
    }

    #[test]
    fn the_lowest_address_is_looked_for_without_holes() {
        let block = window("10.5.123.", &["10.5.123.0-10.5.123.255"]);
        let whole = window("10.5.", &["10.5.0.0-10.5.255.255"]);
        assert_eq!(shown("10.5.123.7", 256, false), [block, whole.clone()]);
        assert_eq!(shown("10.5.1.0", 2048, false), [whole]);
        assert_eq!(shown("fd00::2", 256, false), [window("fd00::", &["fd00::-fd00::ffff"])]);
        assert_eq!(shown("fd00::2", 1, false), [window("fd00::", &["fd00::-fd00::ffff"])]);
        assert_eq!(shown("fd00::", 256, false), []);
    }

    #[test]
    fn a_crowd_looks_at_blocks_with_holes() {
        for (from, text, stretches) in [
            ("10.5.123.0", "10.5.12", &["10.5.120.0-10.5.129.255", "10.5.12.0-10.5.12.255"][..]),
            ("10.5.3.1", "10.5.3", &["10.5.3.0-10.5.3.255", "10.5.30.0-10.5.39.255"]),
            (
                "10.5.1.0",
                "10.5.1",
                &["10.5.1.0-10.5.1.255", "10.5.10.0-10.5.19.255", "10.5.100.0-10.5.199.255"],
            ),
            ("10.5.0.1", "10.5.0.", &["10.5.0.0-10.5.0.255"]),
            (
                "fd00::2",
                "fd00::2",
                &[
                    "fd00::2-fd00::2",
                    "fd00::20-fd00::2f",
                    "fd00::200-fd00::2ff",
                    "fd00::2000-fd00::2fff",
                ],
            ),
        ] {
            assert_eq!(shown(from, 256, true), [window(text, stretches)]);
        }
    }

    #[test]
    fn a_listing_shows_its_stretches_and_no_more() {
        for (from, contended) in
            [("10.5.1.0", false), ("10.5.1.0", true), ("10.5.25.0", true), ("10.5.9.0", true)]
        {
            for window in windows(from.parse().unwrap(), 256, contended) {
                for low in 0..=u16::MAX {
                    let [c, d] = low.to_be_bytes();
                    let address = IpAddr::from([10, 5, c, d]);
                    let within = |(from, to): &(IpAddr, IpAddr)| *from <= address && address <= *to;
                    let shown = window.stretches.iter().any(within);
                    assert_eq!(address.to_string().starts_with(&window.prefix), shown, "{address}");
                }
            }
        }
    }
}
