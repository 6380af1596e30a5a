//! The node object of the machine that this runs on, as selectors ask for it: which one it is, what
//! is remembered of it, by which login it is read, and what is said when that goes wrong.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod away;
mod login;
mod memory;
mod names;
mod site;
mod trouble;
