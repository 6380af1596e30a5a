//! What stands in for a store in tests, and the suites that every ledger and every allocator must
//! pass.
//!
//! - [`memory`]: a ledger in memory, for tests of what is above one, and with what can go wrong.
//! - [`ledger_suite`]: what a [`Ledger`](ipam_kit::allocate::Ledger) promises, check by check.
//! - [`allocator_suite`]: what an allocator promises, in this process or as any program that speaks
//!   CNI: a [`subject`].
//! - [`between`]: any ledger, with a test that comes between its look and its change.
//! - [`mutants`]: ledgers with one known bug each, which the suites must find.
//!
//! A suite runs every check, each on networks of its own, and answers a [`Report`]. The program
//! `ipam-conformance` runs the allocator suite from a command line.
//!
//! Tests depend on this package, by `[dev-dependencies]`: those of this project, and those of an
//! author's ledger or allocator. Here is both suites' test of a ledger:
//!
//! ```
//! use std::sync::Arc;
//!
//! use ipam_kit::Result;
//! use ipam_kit::allocate::{Allocate, Reach};
//! use ipam_kit::cni::NetworkName;
//! use ipam_suites::allocator_suite;
//! use ipam_suites::ledger_suite::{self, Stage};
//! use ipam_suites::subject::{InProcess, Subject};
//! # // A ledger that exists stands in for the author's.
//! # use ipam_suites::memory::{Memory as Site, Store};
//! # use serde_json::json;
//!
//! /// How the suite opens the ledger `Site`, as each process would.
//! #[derive(Clone)]
//! struct Opened;
//!
//! impl Stage for Opened {
//!     type Ledger = Site;
//!
//!     fn open(&self, network: &NetworkName) -> Result<Site> {
//!         Ok(Site::on(&Store::named("site"), network.clone()))
//!     }
//! }
//!
//! let report = ledger_suite::run(&Opened);
//! assert!(report.failed().is_empty(), "{report}");
//!
//! // The keys of `ipam` that the ledger reads.
//! let ipam = json!({"memory": "site"});
//! let delegate = Allocate::<Site>::default();
//! let subject: Arc<dyn Subject> = Arc::new(InProcess::new(delegate, Reach::Cluster, ipam));
//! let report = allocator_suite::run(&subject, &[], &[]);
//! assert!(report.failed().is_empty(), "{report}");
//! ```
//!
//! `subject::Binary` has the allocator suite run a program instead. [`between`] makes the checks run
//! in which another call comes between look and change, `InProcess::aging` those with old leases. A
//! report's line says so where a check was not made.

#![warn(unreachable_pub)]

pub mod allocator_suite;
mod ask;
mod bench;
pub mod between;
pub mod ledger_suite;
pub mod memory;
pub mod mutants;
mod plain;
mod report;
pub mod subject;
mod table;

use report::{Finding, Verdict};
pub use report::{Outcome, Report};
