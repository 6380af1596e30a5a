//! What stands in for a store in tests, and the suites that every ledger and every allocator must
//! pass.
//!
//! - [`memory`]: a ledger in memory, for tests of what is above one, and with what can go wrong.
//! - [`ledger_suite`]: what a [`Ledger`](ipam_kit::allocate::Ledger) promises, check by check.
//! - [`allocator_suite`]: what an allocator promises, be it an
//!   [`Allocator`](ipam_kit::allocate::Allocator) in this process or any program that speaks CNI:
//!   a [`subject`].
//! - [`between`]: any ledger, with a test that comes between its look and its change.
//! - [`mutants`]: ledgers with one known bug each, which the suites must find.
//!
//! A suite runs every check, each on networks of its own, and answers a [`Report`]. The example
//! `ipam-conformance` runs the allocator suite from a command line.

#![warn(unreachable_pub)]

pub mod allocator_suite;
mod bench;
pub mod between;
pub mod ledger_suite;
pub mod memory;
pub mod mutants;
mod report;
pub mod subject;
mod table;

pub use report::{Finding, Outcome, Report, Verdict};
