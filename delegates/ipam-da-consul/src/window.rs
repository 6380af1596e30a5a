//! Which addresses a listing of keys with a common beginning shows.
//!
//! Consul lists keys by their text alone: `…/10.5.123.` is one block of 256 addresses, `…/10.5.12` eleven.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A beginning of addresses' texts, with the stretches of addresses that begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub text: String,
    /// Each from one address to another, both included; the first is the one that was asked for.
    pub stretches: Vec<(IpAddr, IpAddr)>,
}

/// The shortest listing that shows at least so many addresses, beginning with this one; none where only
/// the whole folder would do.
///
/// It shows whole blocks: of the addresses asked for it may show fewer where they go on in another one.
pub fn window(from: IpAddr, width: u128) -> Option<Window> {
    let line = Line::of(from)?;
    if width <= line.unit {
        // The dot behind a block keeps others out.
        let number = line.number(&line.digits);
        return Some(line.window(format!("{}.", line.digits), vec![(number, number)]));
    }
    (1..=line.digits.len()).rev().find_map(|kept| {
        let digits = &line.digits[..kept];
        let stretches = line.stretches(digits);
        let shown = stretches.iter().map(|(low, high)| u128::from(high - low + 1) * line.unit);
        (shown.sum::<u128>() >= width).then(|| line.window(digits.to_owned(), stretches))
    })
}

/// The last number of an address that tells one stretch of addresses from the next.
struct Line {
    /// What stands before it.
    head: String,
    /// The number as it is written.
    digits: String,
    base: u32,
    largest: u32,
    /// How many addresses have one number.
    unit: u128,
    from: IpAddr,
}

impl Line {
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
                // A text that ends in :: has its zeros left out, and others begin otherwise.
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

    /// The numbers whose texts begin with these digits.
    fn stretches(&self, digits: &str) -> Vec<(u32, u32)> {
        let number = self.number(digits);
        if number == 0 {
            return vec![(0, 0)];
        }
        let powers = (0..4).map(|exponent| self.base.pow(exponent));
        let stretch = |power: u32| (number * power, (number * power + power - 1).min(self.largest));
        powers.map(stretch).filter(|(low, _)| *low <= self.largest).collect()
    }

    fn window(&self, digits: String, mut numbers: Vec<(u32, u32)>) -> Window {
        let own = self.number(&self.digits);
        numbers.sort_by_key(|(low, high)| (!(*low <= own && own <= *high), *low));
        let stretches = numbers.iter().map(|(low, high)| self.addresses(*low, *high)).collect();
        Window { text: self.head.clone() + &digits, stretches }
    }

    fn addresses(&self, low: u32, high: u32) -> (IpAddr, IpAddr) {
        match self.from {
            IpAddr::V4(address) => {
                let base = u32::from(address) & 0xffff_0000;
                let at = |number: u32, host: u32| {
                    IpAddr::V4(Ipv4Addr::from(base | (number << 8) | host))
                };
                (at(low, 0), at(high, 0xff))
            }
            IpAddr::V6(address) => {
                let base = u128::from(address) & !0xffff;
                let at = |number: u32| IpAddr::V6(Ipv6Addr::from(base | u128::from(number)));
                (at(low), at(high))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(from: &str, width: u128) -> Option<(String, Vec<String>)> {
        let window = window(from.parse().unwrap(), width)?;
        let stretches = window.stretches.iter().map(|(from, to)| format!("{from}-{to}"));
        Some((window.text, stretches.collect()))
    }

    #[test]
    fn a_listing_shows_whole_blocks() {
        for (from, width, text, stretches) in [
            ("10.5.123.7", 256, "10.5.123.", &["10.5.123.0-10.5.123.255"][..]),
            ("10.5.123.0", 2048, "10.5.12", &["10.5.120.0-10.5.129.255", "10.5.12.0-10.5.12.255"]),
            ("10.5.3.1", 2048, "10.5.3", &["10.5.3.0-10.5.3.255", "10.5.30.0-10.5.39.255"]),
            (
                "10.5.1.0",
                16384,
                "10.5.1",
                &["10.5.1.0-10.5.1.255", "10.5.10.0-10.5.19.255", "10.5.100.0-10.5.199.255"],
            ),
            (
                "fd00::2",
                4,
                "fd00::2",
                &[
                    "fd00::2-fd00::2",
                    "fd00::20-fd00::2f",
                    "fd00::200-fd00::2ff",
                    "fd00::2000-fd00::2fff",
                ],
            ),
            (
                "fd00:0:0:1::1a2b",
                256,
                "fd00:0:0:1::1a",
                &[
                    "fd00:0:0:1::1a00-fd00:0:0:1::1aff",
                    "fd00:0:0:1::1a-fd00:0:0:1::1a",
                    "fd00:0:0:1::1a0-fd00:0:0:1::1af",
                ],
            ),
        ] {
            let Some((told, shows)) = shown(from, width) else { panic!("{from} {width}") };
            assert_eq!(
                (told.as_str(), shows.iter().map(String::as_str).collect::<Vec<_>>()),
                (text, stretches.to_vec())
            );
        }
        assert_eq!(shown("10.5.0.1", 2048), None);
        assert_eq!(shown("fd00::", 256), None);
    }

    #[test]
    fn a_listing_shows_its_stretches_and_no_more() {
        for (from, width) in
            [("10.5.1.0", 256), ("10.5.1.0", 2048), ("10.5.25.0", 2048), ("10.5.9.0", 600)]
        {
            let window = window(from.parse().unwrap(), width).unwrap();
            for low in 0..=u16::MAX {
                let [c, d] = low.to_be_bytes();
                let address = IpAddr::from([10, 5, c, d]);
                let within = |(from, to): &(IpAddr, IpAddr)| *from <= address && address <= *to;
                let shown = window.stretches.iter().any(within);
                assert_eq!(address.to_string().starts_with(&window.text), shown, "{address}");
            }
        }
    }
}
