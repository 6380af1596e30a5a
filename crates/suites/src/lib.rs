//! A store in memory for tests, and the suites that every ledger and every allocator must pass.
//!
//! - [`memory`]: a ledger in memory that can fail on request, for tests of the code above a ledger.
//! - [`ledger_suite`]: what a [`Ledger`](ipam_kit::allocate::Ledger) promises, check by check.
//! - [`allocator_suite`]: what an allocator promises, in this process or as any program that speaks
//!   CNI: a [`subject`].
//! - [`selector_suite`]: what a selector promises, likewise.
//! - [`apart`]: any subject, with a configuration of its own for each network.
//! - [`between`]: any ledger, with a call of the test between a view and its commit.
//! - [`mutants`], [`selector_mutants`]: ledgers and selectors with one known bug each, which the
//!   suites must find.
//!
//! A suite runs every check, each on networks of its own, and answers a [`Report`]. The program
//! `ipam-conformance` runs the suites of allocators and selectors from a command line.
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
//! use ipam_suites::ledger_suite::{self, LedgerSubject};
//! use ipam_suites::subject::{InProcess, Subject};
//! # // A ledger that exists stands in for the author's.
//! # use ipam_suites::memory::{MemoryLedger as Site, MemoryStore};
//! # use serde_json::json;
//!
//! /// How the suite opens the ledger `Site`, as each process would.
//! #[derive(Clone)]
//! struct Opened;
//!
//! impl LedgerSubject for Opened {
//!     type Ledger = Site;
//!
//!     fn open(&self, network: &NetworkName) -> Result<Site> {
//!         Ok(Site::on(&MemoryStore::named("site"), network.clone()))
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
//! With `subject::Binary`, the allocator suite runs a program instead. [`between`] makes the checks run
//! in which another call comes between a view and its commit, `InProcess::aging` those with old leases.
//! If a check was not made, its line of the report says why.
//!
//! # Rooms
//!
//! From the top: allocator_suite → bench → pool_spec · subject (what is tested) → between ·
//! memory (a ledger in memory) → table; apart → subject; mutants → memory; ledger_suite;
//! selector_suite → subject; selector_mutants → subject; report · plain (values in messages)

#![warn(unreachable_pub)]

pub mod allocator_suite;
pub mod apart;
mod bench;
pub mod between;
pub mod ledger_suite;
pub mod memory;
pub mod mutants;
mod plain;
mod pool_spec;
mod report;
pub mod selector_mutants;
pub mod selector_suite;
pub mod subject;
mod table;

pub use report::{CheckOutcome, Report};
use report::{CheckResult, Finding};
