//! Pieces of a pool: addresses without holes.

use std::net::IpAddr;

use crate::cni::address;

/// Addresses from one to another, both included.
pub(super) type Piece = (IpAddr, IpAddr);

/// The address at a random place.
pub(super) fn nth(pieces: &[Piece], random: u64) -> Option<IpAddr> {
    let length =
        |&(first, last): &Piece| address::distance(first, last).unwrap_or(0).saturating_add(1);
    let total = pieces.iter().map(length).fold(0, u128::saturating_add);
    let wide = (u128::from(scramble(random)) << 64) | u128::from(scramble(!random));
    let mut place = wide % total.max(1);
    for piece in pieces {
        if place < length(piece) {
            return address::offset(piece.0, place);
        }
        place -= length(piece);
    }
    None
}

/// The addresses from one to another, both included.
pub(super) struct Count {
    next: Option<IpAddr>,
    last: IpAddr,
}

impl Count {
    pub(super) fn new(first: IpAddr, last: IpAddr) -> Self {
        Self { next: Some(first).filter(|first| *first <= last), last }
    }
}

impl Iterator for Count {
    type Item = IpAddr;

    fn next(&mut self) -> Option<IpAddr> {
        let this = self.next?;
        self.next = if this < self.last { address::next(this) } else { None };
        Some(this)
    }
}

pub(super) fn clip(
    (first, last): (IpAddr, IpAddr),
    from: IpAddr,
    to: IpAddr,
) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = (first.max(from), last.min(to));
    (first <= last).then_some((first, last))
}

/// What windows show of pieces in this order: from the first part that they show to the next one
/// that they do not, so that no address is chosen before one that was not looked at.
pub(super) fn shown(pieces: Vec<Piece>, windows: &[Piece]) -> Vec<Piece> {
    let mut shown: Vec<Piece> = Vec::new();
    for piece in pieces {
        let mut parts: Vec<Piece> =
            windows.iter().filter_map(|(from, to)| clip(piece, *from, *to)).collect();
        parts.sort_unstable();
        let mut next = Some(piece.0);
        for (first, last) in parts {
            let is_next = next.is_some_and(|next| first <= next);
            if !is_next && !shown.is_empty() {
                return shown;
            }
            shown.push((first, last));
            next = address::next(last);
        }
        let is_whole = shown.last().is_some_and(|shown| shown.1 == piece.1);
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

    fn pieces(texts: &[&str]) -> Vec<Piece> {
        let read = |text: &&str| {
            let (first, last) = text.split_once('-').unwrap();
            (first.parse().unwrap(), last.parse().unwrap())
        };
        texts.iter().map(read).collect()
    }

    #[test]
    fn what_lies_behind_a_part_not_shown_is_left_for_later() {
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
            assert_eq!(shown(pieces(&pool), &pieces(windows)), pieces(expected), "{windows:?}");
        }
    }
}
