//! An imitation of phpIPAM, which has no package: the part of its API that keeps addresses, in this
//! process. Its answers are those of phpIPAM 1.8.2 as they were recorded, and its locks, its unique
//! indexes and its loose filters do what was seen there. `tests/phpipam.rs` compares them.
//!
//! With `IPAM_DELEGATED_PHPIPAM_URL`, tests use the real phpIPAM that it names instead, wherever they
//! do not need what only an imitation lets them do.

mod answer;
mod api;
mod by_hand;
mod database;
mod filter;
mod login;
mod real;
mod server;

pub use crate::servers::http::Answer;
pub use crate::servers::relay::{Fate, Relay, Request};
pub use database::{Record, Snapshot};
pub use login::Security;
pub use server::{APP, Builder, CODE, Hold, LockKind, PASSWORD, PhpIpam, USER};
