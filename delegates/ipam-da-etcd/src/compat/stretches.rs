//! Stretches of addresses as people write them. The order of addresses is not that of the texts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A part of the addresses from one to another, as they are written.
#[derive(Debug)]
pub(super) enum AddressStretch {
    /// All that begin so.
    Beginning(String),
    /// One.
    Address(IpAddr),
}

/// How many stretches are read at once: as many as the largest window of a search has.
const STRETCHES: u32 = 72;

/// Returns the addresses from one to another, both included, in parts; there may be others in them.
/// `None` where they would be too many.
pub(super) fn parts(from: IpAddr, to: IpAddr) -> Option<Vec<AddressStretch>> {
    match (from, to) {
        _ if from == to => Some(vec![AddressStretch::Address(from)]),
        (IpAddr::V4(from), IpAddr::V4(to)) => parts_of_v4(from.to_bits(), to.to_bits()),
        (IpAddr::V6(from), IpAddr::V6(to)) => parts_of_v6(from.to_bits(), to.to_bits()),
        _ => None,
    }
}

fn parts_of_v4(from: u32, to: u32) -> Option<Vec<AddressStretch>> {
    let shift =
        [8, 16, 24].into_iter().find(|shift| (to >> shift) - (from >> shift) < STRETCHES)?;
    let blocks = (from >> shift)..=(to >> shift);
    Some(blocks.map(|block| AddressStretch::Beginning(beginning_of_v4(block, shift))).collect())
}

/// Returns the common beginning of the addresses of a block in which `shift` bits differ.
fn beginning_of_v4(block: u32, shift: usize) -> String {
    let text = Ipv4Addr::from_bits(block << shift).to_string();
    let octets = (32 - shift) / 8;
    let kept: Vec<&str> = text.split('.').take(octets).collect();
    format!("{}.", kept.join("."))
}

fn parts_of_v6(from: u128, to: u128) -> Option<Vec<AddressStretch>> {
    let first = from >> 16;
    let last = to >> 16;
    if last - first >= u128::from(STRETCHES) / 2 {
        return None;
    }
    Some((first..=last).flat_map(parts_of_v6_block).collect())
}

/// Returns the addresses that differ in their last group. Up to that group, all are written alike,
/// except the one whose last group is zero.
fn parts_of_v6_block(block: u128) -> [AddressStretch; 2] {
    let zero = Ipv6Addr::from_bits(block << 16);
    let mut beginning = Ipv6Addr::from_bits((block << 16) | 1).to_string();
    beginning.pop();
    [AddressStretch::Address(zero.into()), AddressStretch::Beginning(beginning)]
}
