//! What verbs for people share: typed words, the file they name, tables, ages, the map of a pool,
//! and the rows that allocators answer `list` and `pools` with.
//!
//! A program called without `CNI_COMMAND` was called by a person. `ipam-delegated` and every
//! allocator of ours understand the same verbs then, and print them alike.
//!
//! An allocator depends on this package for [`answer`], and the meta-plugin for the rest:
//!
//! ```no_run
//! use ipam_kit::Allocate;
//! # use ipam_suites::memory::Memory as Site;
//!
//! // `Site` is the allocator's own ledger.
//! fn delegate() -> Allocate<Site> {
//!     Allocate::answering(ipam_cli::answer::<Site>)
//! }
//! # let _ = delegate;
//! ```

#![warn(unreachable_pub)]

mod age;
mod file;
mod inspect;
mod lint;
mod map;
mod pieces;
mod print;
mod row;
mod rows;
mod table;
mod words;

use age::age;
use map::map;
use rows::LeaseState;

pub use file::read_file;
pub use inspect::answer;
pub use map::Glyphs;
pub use print::{POOL_COLUMNS, lease_columns, maps, use_percent};
pub use row::Row;
pub use rows::{Block, LeaseRow, PoolRow};
pub use table::{Column, table};
pub use words::{Known, Words};
