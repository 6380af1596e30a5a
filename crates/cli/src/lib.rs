//! The verbs that people type: a table of verbs ([`Cli`]) that parses the call and prints the help,
//! and the tables, maps and JSON that verbs print.
//!
//! A program without `CNI_COMMAND` is called by a person. `ipam-delegated` and every allocator of
//! this project have the same verbs, and print them alike.
//!
//! An allocator depends on this package for [`answer`], and the meta-plugin for the rest:
//!
//! ```no_run
//! use ipam_kit::Allocate;
//! # use ipam_suites::memory::MemoryLedger as Site;
//!
//! // `Site` is the allocator's own ledger.
//! fn delegate() -> Allocate<Site> {
//!     Allocate::answering(ipam_cli::answer::<Site>)
//! }
//! # let _ = delegate;
//! ```
//!
//! # Rooms
//!
//! From the top: inspect (the verbs of an allocator over a ledger) → leases · pools · lint; verbs
//! (the table of a program's verbs, which parses and prints the help) → arguments → options ·
//! file; print (what all programs print alike) · release → map → pieces · table → rows → row ·
//! age

#![warn(unreachable_pub)]

mod age;
mod arguments;
mod file;
mod inspect;
mod map;
mod options;
mod pieces;
mod print;
mod release;
mod row;
mod rows;
mod table;
mod verbs;

use age::age;
use map::{Glyphs, map};

pub use arguments::{Arguments, not_an_address, usage_error};
pub use file::read_file;
pub use inspect::{InspectCall, RunInspect, answer, answer_with};
pub use options::OptionSpec;
pub use pieces::PoolPlace;
pub use print::{finding, print_leases, print_pools, print_rows, push_findings, push_line};
pub use release::{NAME_WHOLE_ID, no_lease_of_node, release_summary};
pub use row::Row;
pub use rows::{Block, LeaseRow, PoolRow};
pub use table::{Column, table};
pub use verbs::{Cli, CliRequest, CliVerb};
