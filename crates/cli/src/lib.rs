//! What verbs for people share: typed words, the file they name, tables, ages, the map of a pool,
//! and the rows that allocators answer `list` and `pools` with.
//!
//! A program called without `CNI_COMMAND` was called by a person. `ipam-delegated` and every
//! allocator of ours understand the same verbs then, and print them alike.

#![warn(unreachable_pub)]

mod age;
mod books;
mod file;
mod map;
mod pieces;
mod print;
mod row;
mod rows;
mod table;
mod verdict;
mod words;

pub use age::age;
pub use books::answer;
pub use file::read_file;
pub use map::{Glyphs, map};
pub use print::{POOL_COLUMNS, lease_columns, maps, use_percent};
pub use row::Row;
pub use rows::{Block, LeaseRow, LeaseState, PoolRow};
pub use table::{Column, table};
pub use words::{Known, Words};
