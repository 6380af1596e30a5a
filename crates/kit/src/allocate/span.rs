//! Spans of a pool: addresses without holes.

use std::net::IpAddr;

use crate::cni::address;

/// Addresses from one to another, both included.
pub(super) type AddressSpan = (IpAddr, IpAddr);

/// A random address of the spans.
pub(super) fn random_address(spans: &[AddressSpan], random: u64) -> Option<IpAddr> {
    let total = spans.iter().map(length).fold(0, u128::saturating_add);
    let wide = (u128::from(scramble(random)) << 64) | u128::from(scramble(!random));
    let mut index = wide % total.max(1);
    for span in spans {
        if index < length(span) {
            return address::offset(span.0, index);
        }
        index -= length(span);
    }
    None
}

fn length(&(first, last): &AddressSpan) -> u128 {
    address::distance(first, last).unwrap_or(0).saturating_add(1)
}

/// The addresses of a span, in order.
pub(super) struct SpanAddresses {
    next: Option<IpAddr>,
    last: IpAddr,
}

impl SpanAddresses {
    pub(super) fn of((first, last): AddressSpan) -> Self {
        Self { next: Some(first).filter(|first| *first <= last), last }
    }
}

impl Iterator for SpanAddresses {
    type Item = IpAddr;

    fn next(&mut self) -> Option<IpAddr> {
        let this = self.next?;
        self.next = if this < self.last { address::next(this) } else { None };
        Some(this)
    }
}

/// The parts of a span that lie in windows, in the order of the windows.
pub(super) fn clip(span: AddressSpan, windows: &[AddressSpan]) -> Vec<AddressSpan> {
    let mut parts = Vec::new();
    for (from, to) in windows {
        let (first, last) = (span.0.max(*from), span.1.min(*to));
        if first <= last {
            parts.push((first, last));
        }
    }
    parts
}

/// The parts of spans that windows show, in this order: from the first part that they show to the
/// next one that they do not show. So no address is chosen before one that was not scanned.
pub(super) fn first_shown(spans: Vec<AddressSpan>, windows: &[AddressSpan]) -> Vec<AddressSpan> {
    let mut shown: Vec<AddressSpan> = Vec::new();
    for span in spans {
        let mut parts = clip(span, windows);
        parts.sort_unstable();
        let mut next = Some(span.0);
        for (first, last) in parts {
            let is_next = next.is_some_and(|next| first <= next);
            if !is_next && !shown.is_empty() {
                return shown;
            }
            shown.push((first, last));
            next = address::next(last);
        }
        let is_whole = shown.last().is_some_and(|shown| shown.1 == span.1);
        if !is_whole && !shown.is_empty() {
            return shown;
        }
    }
    shown
}

/// Mixes the bits of a number (splitmix64).
pub(super) fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(strings: &[&str]) -> Vec<AddressSpan> {
        let ends = strings.iter().map(|string| string.split_once('-').unwrap());
        ends.map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap())).collect()
    }

    #[test]
    fn addresses_after_one_that_was_not_scanned_are_left_for_later() {
        let pool = ["10.1.0.4-10.1.0.9", "fd00::-fd00::3", "10.1.1.0-10.1.1.9"];
        for (windows, expected) in [
            (&["10.1.0.0-10.1.255.255"][..], &["10.1.0.4-10.1.0.9"][..]),
            (&["fd00::-fd00::ffff"], &["fd00::-fd00::3"]),
            (&["fd00::1-fd00::2"], &["fd00::1-fd00::2"]),
            (&["10.1.0.0-10.1.0.5", "10.1.0.8-10.1.0.9"], &["10.1.0.4-10.1.0.5"]),
            (&["10.1.1.0-10.1.1.4", "fd00::-fd00::ffff"], &["fd00::-fd00::3", "10.1.1.0-10.1.1.4"]),
            (
                &["10.1.0.8-10.1.0.9", "10.1.0.4-10.1.0.7"],
                &["10.1.0.4-10.1.0.7", "10.1.0.8-10.1.0.9"],
            ),
            (&["10.2.0.0-10.2.0.9"], &[]),
        ] {
            assert_eq!(first_shown(spans(&pool), &spans(windows)), spans(expected), "{windows:?}");
        }
    }
}
