//! The pool that the benchmarks of cluster-wide stores use. Included by them.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

pub const SUBNET: &str = "10.77.0.0/16";

/// The first address that is given out of the subnet: the one before is the gateway.
const FIRST: u32 = 0x0A4D_0002;

/// How many addresses can be given out.
const SIZE: u32 = (1 << 16) - 3;

/// As many addresses as if drawn by lot, a line each; the same at every call.
pub fn spread(count: usize) -> String {
    let mut numbers: Vec<u32> = (0..SIZE).collect();
    let mut state = 1_u64;
    for i in (1..numbers.len()).rev() {
        // Knuth's MMIX generator: its high bits are good enough.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(i, (state >> 33) as usize % (i + 1));
    }
    let mut addresses = String::new();
    for n in &numbers[..count] {
        let _ = writeln!(addresses, "{}", Ipv4Addr::from(FIRST + n));
    }
    addresses
}
