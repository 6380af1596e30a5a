//! Real openwisp-ipam servers for tests: Django behind gunicorn, with a database of their own.
//!
//! What is missing fails the test and says what to do; `tests/run.sh` installs it.

mod client;
mod program;
mod server;
mod shared;
mod users;

pub use crate::servers::http::Answer;
pub use crate::servers::relay::{Fate, Relay, Request};
pub use client::{Client, Record};
pub use server::{Builder, ORGANIZATION, OpenWisp, Snapshot, TOKEN};
pub use users::{OPERATOR, User};
